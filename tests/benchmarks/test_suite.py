"""Results, comparison, command line and pictures of the suite, and a part of its quick run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks import __main__ as suite, suite as suite_module
from benchmarks.comparison import compare, missing
from benchmarks.report import show
from benchmarks.results import Figure, Measurement, ratio, read_results, results_of
from benchmarks.suite import (
    SECTIONS,
    Section,
    SectionError,
    measured_per_process,
    of_figures,
    repeated,
)

ROOT = Path(__file__).parents[2]


def results(**sections):
    return results_of(sections, {}, {}, quick=True)


def timed(name, *values, **more):
    return Measurement(name, "ms", values, **more)


def test_results_are_read_as_they_were_written(tmp_path):
    found = results(a=(timed("x", 1.0, 2.0, target=3.0, labels={"tiles": 4}),), b=())
    found = replace(found, reference={"a": {"loop": (0.5, 0.25)}})
    found.write(tmp_path / "deep" / "r.json")
    assert read_results(tmp_path / "deep" / "r.json") == found
    assert {"processor", "cpus"} <= found.machine.keys()
    assert {"python", "numpy", "spyre"} <= found.versions.keys()
    assert found.commit


@pytest.mark.parametrize("text", ["[]", '{"format": 0}', '{"format": 2, "sections": {}}', "{"])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"no result|line 1"):
        read_results(path)


def test_deviation_targets_and_ratios():
    row = timed("x", 1.0, 2.0, 9.0, target=1.5)
    assert (row.median, row.deviation, row.missed) == (2.0, 1.0, True)
    assert not replace(row, target=None).missed
    paired = ratio("r", [2.0, 9.0], [1.0, 3.0], target=3.0)
    assert paired.values == (2.0, 3.0)
    assert paired.missed


def test_what_is_missing_is_said():
    old, new = results(s=(timed("x", 1),), t=()), results(s=(timed("y", 1),))
    new = replace(new, errors={"u": "KaboomError: no"})
    assert missing(old, new) == ["s: x: gone", "s: y: new", "u: failed: KaboomError: no"]


def test_figures_become_measurements_with_all_repetitions():
    values = iter((1.0, 2.0, 3.0))
    found = list(repeated(lambda: of_figures([Figure("f", next(values), "us", 5)]), 3))
    assert found == [Measurement("f", "us", (1.0, 2.0, 3.0), target=5)]


def test_what_depends_on_the_process_is_measured_in_one_of_its_own():
    rows = measured_per_process("loops")
    assert [row.unit for row in rows] == ["ns", "ns"]
    driver, python = (row.median for row in rows)
    assert 0 < driver < python


def test_a_section_that_fails_is_no_loss_to_the_others(capsys):
    def fails(quick):
        yield timed("x", 1)
        raise ValueError("no")

    def cannot(quick):
        raise SectionError("no such checkout")

    found = suite.run(
        [
            Section("bad", "", fails),
            Section("absent", "", cannot),
            Section("good", "", lambda quick: [timed("y", 1)]),
        ],
        True,
    )
    assert found.errors == {"bad": "ValueError: no", "absent": "no such checkout"}
    # measurements before the failure of a section are kept
    assert [m.name for m in found.sections["bad"]] == ["x"]
    assert list(found.sections) == ["bad", "good"]
    assert found.reference["good"].keys() >= {"interpreted", "arithmetic", "memory"}
    show(found)
    shown, said = capsys.readouterr()
    assert "bad failed" in shown
    assert "ValueError" in said
    assert "SectionError" not in said


def test_wrong_command_lines(capsys, tmp_path):
    other = tmp_path / "other.json"
    other.write_text("{}")
    for arguments, said in (
        ([], "SECTION"),
        (["nonsense"], "nonsense"),
        (["ktir"], "--ktir DIR"),
        (["all", "--ktir", str(tmp_path / "absent")], "no directory"),
        (["all", "--compare", str(tmp_path / "absent")], "absent"),
        (["all", "--compare", str(other)], "no result"),
        (["all", "--report", "page.pdf"], ".html"),
    ):
        with pytest.raises(SystemExit) as caught:
            suite.main(arguments)
        assert caught.value.code == 2
        assert said in capsys.readouterr().err


def test_help_is_light_and_names_all_sections():
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "benchmarks", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert all(section.name in shown.stdout for section in SECTIONS)
    assert not any(f"| {name}\n" in shown.stderr for name in ("torch", "numba", "numpy"))


def test_every_section_finds_its_module():
    later = [section.measure for section in SECTIONS if isinstance(section.measure, partial)]
    modules = [call.args[0] for call in later if call.func is not suite_module._apart]
    assert modules
    assert all((ROOT / "benchmarks" / f"{module}.py").is_file() for module in modules)


def test_a_quick_run_is_short_by_what_it_leaves_out():
    quick, every = (
        [section.name for section in suite._chosen(suite._parse(arguments))]
        for arguments in (["all", "--quick"], ["all"])
    )
    left_out = {"streams", "observers", "growth", "eager", "beside", "distributed"}
    left_out |= {"compile", "decode"}
    assert set(every) - set(quick) == left_out
    assert len(every) == len(SECTIONS)
    assert [s.name for s in suite._chosen(suite._parse(["eager", "--quick"]))] == ["eager"]


def test_a_quick_run_is_written_compared_drawn_and_reported(tmp_path, capsys):
    first, again = tmp_path / "r.json", tmp_path / "s.json"
    assert suite.main(["scaling", "--quick", "--json", str(first), "--plot", str(tmp_path)]) == 0
    assert (tmp_path / "scaling.svg").read_text().rstrip().endswith("</svg>")
    page = tmp_path / "r.html"
    arguments = ["scaling", "--quick", "--json", str(again), "--compare", str(first)]
    assert suite.main([*arguments, "--report", str(page)]) == 0
    shown = capsys.readouterr().out
    changed = next(line for line in shown.splitlines() if "beyond noise" in line)
    assert changed.strip() in page.read_text(encoding="utf-8")
    before, after = map(read_results, (first, again))
    exact = [change for change in compare(before, after) if change.name.endswith("simulated")]
    assert len(exact) == 12
    assert not any(change.is_change for change in exact)
