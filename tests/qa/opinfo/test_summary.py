"""The bar, the totals, the tables and the file."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from qa.opinfo import outcome as o
from qa.opinfo.known import KNOWN, KnownFailure, read_known
from qa.opinfo.outcome import OpResult, SampleResult, summarised, worst
from qa.opinfo.report import as_json, print_report, write_json
from qa.opinfo.samples import load_database
from qa.opinfo.summary import BAR, delivered, shortcomings, summaries
from qa.opinfo.ways import WAYS, selected


def result(op: str, outcome: str, way: str = "forward", **fallbacks: int) -> OpResult:
    sample = SampleResult(0, outcome, f"why [{op}]", "float32[2]")
    return summarised(op, "float32", [sample, SampleResult(1, o.PASSED)], fallbacks, 0.5, way)


def passing(count: int, way: str = "forward") -> list[OpResult]:
    return [result(f"op{number}", o.PASSED, way) for number in range(count)]


def test_an_operator_has_the_outcome_of_its_worst_sample() -> None:
    assert worst([o.PASSED, o.WRONG, o.RAISED]) == o.WRONG
    assert worst([]) == o.UNREFERENCED
    assert result("a", o.RAISED).counts == {o.PASSED: 1, o.RAISED: 1}


def test_results_go_through_json() -> None:
    for one in (result("a", o.WRONG, neg=2), result("b", o.PASSED)):
        assert OpResult.from_json(json.loads(json.dumps(one.as_json()))) == one


@pytest.mark.parametrize(("way", "percent"), [("backward", "99.5"), ("compiled", "99.0")])
@pytest.mark.parametrize("outcome", [o.RAISED, o.REFUSED])
def test_every_way_has_its_bar(way: str, percent: str, outcome: str) -> None:
    total = 1000
    fit = round(total * (1 - float(percent) / 100))
    failing = [result(f"r{number}", outcome, way) for number in range(fit + 1)]
    assert shortcomings([*passing(total - fit, way), *failing[:fit]], {}) == []
    missed = shortcomings([*passing(total - fit - 1, way), *failing], {})
    assert len(missed) == 1
    assert f"not {percent}%" in missed[0]
    assert way in missed[0]


def test_other_dtypes_have_a_lower_bar() -> None:
    failing = [result(f"r{number}", o.RAISED) for number in range(3)]
    results = [replace(one, dtype="float16") for one in (*passing(97), *failing)]
    assert shortcomings(results, {}) == []
    assert shortcomings([]) == ["nothing ran"]


@pytest.mark.parametrize("outcome", [o.WRONG, o.CRASHED, o.TIMEOUT])
def test_one_wrong_operator_is_too_many(outcome: str) -> None:
    assert shortcomings([*passing(200), result("bad", outcome)], {}) == [f"1 operators: {outcome}"]


def test_what_is_known_to_fail_may_and_nothing_else() -> None:
    known = {("forward", "float32"): {"old": KnownFailure(o.WRONG, "the reason")}}
    results = [*passing(3), result("old", o.WRONG)]
    assert shortcomings(results, known) == []
    new = [*passing(999), result("new", o.RAISED)]
    assert shortcomings(new, known) == ["not known to fail: new (forward float32)"]
    assert shortcomings(new, {}) == []
    assert shortcomings([*passing(999), result("old", o.RAISED)], known) != []


def test_little_is_known_to_fail() -> None:
    database = load_database()
    for (way, dtype), failures in KNOWN.items():
        operators = selected(database, dtype, way, None)
        assert sorted(set(failures) - set(operators)) == []
        assert {one.outcome for one in failures.values()} <= set(o.SEVERITY)
        assert all(one.why for one in failures.values())
        bar = WAYS[way].bar if dtype == "float32" else BAR
        assert len(failures) <= (1 - bar) * len(operators)


def test_a_failure_without_a_reason_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text('[forward.float32]\nmm = { outcome = "wrong" }\n')
    with pytest.raises(KeyError, match="why"):
        read_known(path)


def test_what_counts_is_what_the_cpu_runs_and_the_device_has_a_format_for() -> None:
    results = [*passing(1), result("no", o.UNSUPPORTED), summarised("j", "float32", [], {}, 0.0)]
    summary = summaries(results)[0]
    assert (summary.ops, summary.supported, summary.passed) == (2, 1, 1)
    assert (summary.share, summary.unreferenced) == (1.0, 1)


def test_operators_on_the_cores_must_not_fall_back() -> None:
    results = [*passing(1), result("mm", o.PASSED), result("exp", o.PASSED, neg=3)]
    assert [(one.result.op, one.ok) for one in delivered(results)] == [("mm", True), ("exp", False)]
    assert "must run on the cores" in shortcomings(results)[0]


def test_the_tables_name_what_fails() -> None:
    results = [*passing(1), result("bad", o.WRONG), result("mm", o.PASSED, neg=3)]
    text = io.StringIO()
    print_report(results, Console(file=text, width=200))
    for part in ("why [bad]", "falls back", "neg 3", "float32[2]", "1 operators: wrong", "cancel"):
        assert part in text.getvalue()


def test_the_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_json(path, as_json(passing(1), {"jobs": 1}, 1.0))
    assert json.loads(path.read_text())["totals"][0]["passed"] == 1
    with pytest.raises(TypeError):
        write_json(path, {"bad": object()})
    assert json.loads(path.read_text())["totals"][0]["passed"] == 1
    assert list(tmp_path.iterdir()) == [path]
