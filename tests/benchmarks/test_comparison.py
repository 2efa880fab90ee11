"""The rule for changes, and that a slower quantity is found among unchanged ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.comparison import compare, machine_factors
from benchmarks.report import comparison_lines
from benchmarks.results import Measurement, ratio, results_of
from benchmarks.sampling import EVERY_CPU, PROCESS, Reference
from benchmarks.suite import SECTIONS

ONE_CPU = next(section.name for section in SECTIONS if section.one_cpu)
STEADY = {"interpreted": (1.0, 1.0), "memory": (1.0, 1.0)}


def timed(*values, name="x"):
    return Measurement(name, "ms", values)


def run(*rows, section="s", reference=STEADY):
    return results_of({section: rows}, {}, {section: reference}, quick=True)


def only(before, after):
    (change,) = compare(before, after)
    return change


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ((100, 100, 100), (114, 114, 114), False),  # within the margin
        ((100, 100, 100), (116, 116, 116), True),
        ((100, 120, 900), (119, 120, 900), False),  # its own medians are 20 % and 1 % above
        ((100, 120, 900), (150, 151, 900), True),
        ((100, 100, 100), (101, 900, 900), False),  # the best one counts
        ((100,), (116,), True),
    ],
)
def test_what_is_beyond_noise(before, after, changed):
    change = only(run(timed(*before)), run(timed(*after)))
    assert change.is_change is changed
    assert change.verdict == ("WORSE" if changed else "")
    back = only(run(timed(*after)), run(timed(*before)))
    assert back.verdict == ("better" if changed else "")


@pytest.mark.parametrize(
    ("after", "changed"), [(95, True), (105, False), (125, False), (160, True)]
)
def test_a_machine_that_changed_explains_what_its_loops_show(after, changed):
    slower = run(timed(after), reference={"interpreted": (1.3, 1.3), "memory": (1.15, 1.15)})
    change = only(run(timed(100)), slower)
    assert change.machine == pytest.approx((1.15, 1.3))
    assert change.is_change is changed


def test_a_machine_that_varied_hides_small_changes_and_that_is_said():
    busy = run(timed(140), reference={**STEADY, "memory": (1.0, 2.2, 2.2)})
    change = only(run(timed(100)), busy)
    assert change.noise == pytest.approx(1.6)
    assert not change.is_change
    assert any("the machine was not steady" in line for line in comparison_lines(busy, busy))
    assert not any("steady" in line for line in comparison_lines(*[run(timed(100))] * 2))


def test_every_cpu_says_nothing_of_one_and_varies_as_it_likes():
    loops = {**STEADY, EVERY_CPU: (2.0, 9.0), PROCESS: (0.5, 9.0)}
    calm = {**STEADY, EVERY_CPU: (1.0, 1.0), PROCESS: (0.5, 9.0)}
    for section, largest in ((ONE_CPU, 1.0), ("tiled", 2.0)):
        runs = [run(timed(1), section=section, reference=found) for found in (calm, loops)]
        assert machine_factors(section, *runs).largest == largest
        assert machine_factors(section, *runs).variation == 0


def test_computed_values_have_no_noise():
    old, new = (Measurement("x", "bytes", (v,), exact=True) for v in (1000.0, 1001.0))
    slower = {"interpreted": (2.0, 2.0)}
    change = only(run(old), run(new, reference=slower))
    assert change.verdict == "WORSE"
    assert change.machine == (1.0, 1.0)
    assert not only(run(old), run(old)).is_change


def test_only_ratios_and_computed_values_travel_between_machines():
    rows = (timed(1), ratio("r", [1], [2]), Measurement("b", "bytes", (1,), exact=True))
    here = run(*rows)
    there = replace(here, machine={"processor": "another"})
    assert [change.name for change in compare(there, here)] == ["r", "b"]
    assert [change.name for change in compare(here, here)] == ["x", "b"]
    steeper = run(ratio("r", [1], [4]))
    assert only(there, steeper).verdict == "WORSE"


def test_one_slower_quantity_is_seen_among_unchanged_ones():
    """Two runs of the same work, of which the second has one quantity 1.5 times slower."""

    def work(slowdown):
        spread = (1.0, 1.03, 1.02, 1.06)
        return [
            timed(*(t * f * (slowdown if k == 3 else 1) for f in spread), name=f"work {k}")
            for k, t in enumerate((0.02, 1.7, 40.0, 300.0, 5.0))
        ]

    before = run(*work(1.0), reference={"interpreted": (1.0, 1.02), "memory": (1.0, 1.05)})
    drifted = {"interpreted": (1.12, 1.15), "memory": (1.05, 1.07)}
    after = run(*(replace(row, values=tuple(1.1 * v for v in row.values)) for row in work(1.5)),
                reference=drifted)  # fmt: skip
    found = [change for change in compare(before, after) if change.is_change]
    assert [(change.name, change.verdict) for change in found] == [("work 3", "WORSE")]
    lines = comparison_lines(before, after)
    assert "  1 of 5 quantities changed beyond noise" in lines
    assert any("WORSE  s: work 3: 300 -> 495 ms (1.65x" in line for line in lines)


def test_reference_loops_are_timed_at_most_once_a_period():
    found = Reference(period_seconds=60)
    found.tick()
    found.tick()
    first = found.take()
    assert {len(seconds) for seconds in first.values()} == {1}
    assert all(seconds > 0 for loop in first.values() for seconds in loop)
    found.tick()
    assert found.take() == {}
    found.tick(anyway=True)
    found.start_process()
    assert found.take().keys() == {*first, PROCESS}
