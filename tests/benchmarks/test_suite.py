"""Results, comparison, command line and pictures of the suite, and a part of its quick run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as suite
from benchmarks.comparison import compare, missing, noise
from benchmarks.figures import Figure
from benchmarks.results import Measurement, ratio, read_results, results_of
from benchmarks.sections import SECTIONS, Section, of_figures, repeated

ROOT = Path(__file__).parents[2]


def results(**sections):
    return results_of(sections, {}, quick=True)


def timed(name, *values, **more):
    return Measurement(name, "ms", values, **more)


def test_results_are_read_as_they_were_written(tmp_path):
    found = results(a=(timed("x", 1.0, 2.0, target=3.0, labels={"tiles": 4}),), b=())
    found.write(tmp_path / "deep" / "r.json")
    assert read_results(tmp_path / "deep" / "r.json") == found
    assert {"processor", "cpus"} <= found.machine.keys()
    assert {"python", "numpy", "spyre"} <= found.versions.keys()
    assert found.commit
    (tmp_path / "other.json").write_text(json.dumps({"format": 0}))
    with pytest.raises(ValueError, match="no result"):
        read_results(tmp_path / "other.json")


def test_deviation_targets_and_ratios():
    row = timed("x", 1.0, 2.0, 9.0, target=1.5)
    assert (row.median, row.deviation, row.missed) == (2.0, 1.0, True)
    assert not replace(row, target=None).missed
    paired = ratio("r", [2.0, 9.0], [1.0, 3.0], target=3.0)
    assert paired.values == (2.0, 3.0)
    assert paired.missed


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ((100, 100, 100), (104, 104, 104), False),  # within 5 %
        ((100, 100, 100), (106, 106, 106), True),
        ((90, 100, 110), (125, 126, 127), False),  # within three deviations of 10
        ((90, 100, 110), (131, 131, 131), True),
        ((100,), (120,), False),  # too few samples to know
        ((100,), (130,), True),
    ],
)
def test_what_is_beyond_noise(before, after, changed):
    old, new = results(s=(timed("x", *before),)), results(s=(timed("x", *after),))
    (change,) = compare(old, new)
    assert change.is_change is changed
    assert change.verdict == ("WORSE" if changed else "")
    (back,) = compare(new, old)
    assert not back.is_change or back.better


def test_computed_values_have_no_noise():
    old, new = (Measurement("x", "bytes", (v,), exact=True) for v in (1000.0, 1001.0))
    assert noise(old, new) < 1
    (change,) = compare(results(s=(old,)), results(s=(new,)))
    assert change.verdict == "WORSE"


def test_times_of_other_machines_are_not_compared():
    rows = (timed("x", 1), ratio("r", [1], [2]), Measurement("b", "bytes", (1,), exact=True))
    here = results(s=rows)
    there = replace(here, machine={"processor": "another"})
    assert [change.name for change in compare(there, here)] == ["r", "b"]
    assert len(compare(here, here)) == 3


def test_what_is_missing_is_said():
    old, new = results(s=(timed("x", 1),), t=()), results(s=(timed("y", 1),))
    new = replace(new, errors={"u": "KaboomError: no"})
    assert missing(old, new) == ["s: x: gone", "s: y: new", "u: failed: KaboomError: no"]


def test_figures_become_measurements_with_all_repetitions():
    values = iter((1.0, 2.0, 3.0))
    found = list(repeated(lambda: of_figures([Figure("f", next(values), "us", 5)]), 3))
    assert found == [Measurement("f", "us", (1.0, 2.0, 3.0), target=5)]


def test_a_section_that_fails_is_no_loss_to_the_others(capsys):
    def fails(quick):
        yield timed("x", 1)
        raise ValueError("no")

    found = suite.run(
        [Section("bad", "", fails), Section("good", "", lambda quick: [timed("y", 1)])], True
    )
    assert found.errors == {"bad": "ValueError: no"}
    assert list(found.sections) == ["good"]
    suite.show(found)
    assert "bad failed" in capsys.readouterr().out


def test_wrong_command_lines(capsys):
    for arguments in ([], ["nonsense"], ["ktir"]):
        with pytest.raises(SystemExit) as caught:
            suite.main(arguments)
        assert caught.value.code == 2
    assert "--ktir DIR" in capsys.readouterr().err


def test_help_is_light_and_names_all_sections():
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "benchmarks", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert all(section.name in shown.stdout for section in SECTIONS)
    assert not any(f"| {name}\n" in shown.stderr for name in ("torch", "numba", "numpy"))


def test_a_quick_run_is_written_compared_and_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "r.json"
    assert suite.main(["scaling", "--quick", "--json", str(out), "--plot", str(tmp_path)]) == 0
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    found = read_results(out)
    exact = [row for row in found.sections["scaling"] if row.exact]
    assert exact
    slower = [
        replace(row, values=(2 * row.median,)) if row.exact else row
        for row in found.sections["scaling"]
    ]
    suite.show_comparison(replace(found, sections={"scaling": slower}), found)
    shown = capsys.readouterr().out
    assert f"{len(exact)} of {len(slower)} quantities changed" in shown
    assert "better" in shown
