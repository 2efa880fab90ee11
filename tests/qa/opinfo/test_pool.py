"""Worker processes: an operator that ends its process affects only its own outcome."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qa.opinfo import outcome as o
from qa.opinfo.__main__ import main
from qa.opinfo.outcome import OpResult
from qa.opinfo.pool import Job, PoolOptions, run_jobs
from qa.opinfo.process import WorkerDied

FAKES = "qa.opinfo.fakes:OPS"
COMMON = ["--device", "cpu", "--database", FAKES, "--ways", "forward", "--quiet"]


def outcomes(names: list[str], jobs: int = 1, timeout: float = 60.0) -> dict[str, OpResult]:
    options = PoolOptions("cpu", jobs, timeout, database=FAKES)
    heard: list[OpResult] = []
    results = run_jobs([Job(name, "float32") for name in names], options, heard.append)
    assert sorted(heard, key=lambda r: r.op) == sorted(results, key=lambda r: r.op)
    assert [result.op for result in results] == names
    return {result.op: result for result in results}


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_crash_is_the_outcome_of_one_operator(jobs: int) -> None:
    results = outcomes(["right", "dies", "fails", "prints"], jobs)
    assert results["right"].outcome == o.PASSED
    assert results["fails"].outcome == o.RAISED
    assert results["prints"].outcome == o.PASSED
    dead = results["dies"]
    assert (dead.outcome, dead.failures[0].index) == (o.CRASHED, 1)
    assert "SIGABRT" in dead.reason
    assert dead.failures[0].sample == "float32[2, 5]"


@pytest.mark.slow
def test_an_operator_that_hangs_is_stopped_and_the_next_one_runs() -> None:
    results = outcomes(["hangs", "right"], timeout=5.0)
    assert results["hangs"].outcome == o.TIMEOUT
    assert results["right"].outcome == o.PASSED


@pytest.mark.slow
def test_a_worker_that_does_not_start_is_no_result() -> None:
    with pytest.raises(WorkerDied, match="nonsense"):
        run_jobs([Job("right", "float32")], PoolOptions("nonsense", database=FAKES))
    assert main(["--device", "nonsense", "--database", FAKES, "--quiet"]) == 2


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    common = [*COMMON, "--dtype", "float32,float16"]
    assert main([*common, "--ops", "^(right|mm)$", "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    assert data["meets_the_bar"] is True
    assert [one["ops"] for one in data["totals"]] == [2, 2]
    assert [one["op"] for one in data["delivered"]] == ["mm", "mm"]
    assert list(tmp_path.iterdir()) == [file]
    capsys.readouterr()
    assert main([*common, "--ops", "^(right|dies)$", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert "2 operators: crashed" in data["shortcomings"]


@pytest.mark.slow
def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    options = [*COMMON, "--dtype", "float32", "--keep", str(kept), "--ops"]
    assert main([*options, "^right$"]) == 0
    ran: list[str] = []

    def run(jobs: list[Job], *others: object) -> list[OpResult]:
        ran.extend(job.op for job in jobs)
        return []

    monkeypatch.setattr("qa.opinfo.__main__.run_jobs", run)
    assert main([*options, "^(right|mm)$"]) == 0
    assert ran == ["mm"]
    assert [json.loads(line)["op"] for line in kept.read_text().splitlines()] == ["right"]


def test_the_list_of_operators(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--database", FAKES, "--dtype", "float16", "--ops", "^(mm|right)$", "--list"]
    assert main([*options, "--ways", "forward,backward"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == [
        f"{w} float16 {op}" for w in ("forward", "backward") for op in ("right", "mm")
    ]
    assert main([*options, "--ways", "forward,backward", "--sample", "2/3"]) == 0
    assert capsys.readouterr().out.splitlines() == listed[1::3]


@pytest.mark.parametrize("piece", ["0/3", "4/3", "1", "a/b"])
def test_a_piece_that_is_not_there(piece: str) -> None:
    with pytest.raises(SystemExit):
        main(["--sample", piece])


def test_an_unknown_dtype_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--dtype", "float17"])
    assert "float17" in capsys.readouterr().err
