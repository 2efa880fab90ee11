"""The bar, the totals, the tables and the file."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.opinfo import outcome as o
from tests.opinfo.outcome import OpResult, SampleResult, summarised, worst
from tests.opinfo.report import as_json, print_report, write_json
from tests.opinfo.summary import delivered, shortcomings, summaries


def result(op: str, outcome: str, **fallbacks: int) -> OpResult:
    sample = SampleResult(0, outcome, f"why [{op}]", "float32[2]")
    return summarised(op, "float32", [sample, SampleResult(1, o.PASSED)], fallbacks, 0.5)


def passing(count: int) -> list[OpResult]:
    return [result(f"op{number}", o.PASSED) for number in range(count)]


def test_an_operator_has_the_outcome_of_its_worst_sample() -> None:
    assert worst([o.PASSED, o.WRONG, o.RAISED]) == o.WRONG
    assert worst([]) == o.UNREFERENCED
    assert result("a", o.RAISED).counts == {o.PASSED: 1, o.RAISED: 1}


def test_results_go_through_json() -> None:
    for one in (result("a", o.WRONG, neg=2), result("b", o.PASSED)):
        assert OpResult.from_json(json.loads(json.dumps(one.as_json()))) == one


def test_the_bar_is_97_percent() -> None:
    assert shortcomings([*passing(97), *(result(f"r{n}", o.RAISED) for n in range(3))]) == []
    assert (
        "96.0%" in shortcomings([*passing(96), *(result(f"r{n}", o.RAISED) for n in range(4))])[0]
    )
    assert shortcomings([]) == ["nothing ran"]


@pytest.mark.parametrize("outcome", [o.WRONG, o.CRASHED, o.TIMEOUT])
def test_one_wrong_operator_is_too_many(outcome: str) -> None:
    assert shortcomings([*passing(200), result("bad", outcome)]) == [f"1 operators: {outcome}"]


def test_refusals_pass_and_unreferenced_operators_do_not_count() -> None:
    results = [*passing(1), result("no", o.REFUSED), summarised("j", "float32", [], {}, 0.0)]
    summary = summaries(results)[0]
    assert (summary.ops, summary.passed, summary.unreferenced) == (2, 2, 1)


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
