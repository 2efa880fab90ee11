"""Reports: measures counted anew operation by operation, and the text people read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from spyre.torch_backend.inductor.scratchpad.accesses import LiveBuffer
from spyre.torch_backend.inductor.scratchpad.plan import SOLVERS, ScratchpadPlan, plan_scratchpad
from spyre.torch_backend.inductor.scratchpad.report import Quality, report_of, report_text
from tests.torch_backend.inductor.scratchpad.kernels import chain, softmax
from tests.torch_backend.inductor.scratchpad.test_solvers import CAPACITY, FOUR, groups


def plan_of(buffers, solver="greedy", capacity=CAPACITY, steps=10):
    places = SOLVERS[solver](buffers, capacity)
    return ScratchpadPlan(tuple(buffers), places, {}, steps, capacity, solver, "all")


def test_measures_of_the_first_vector():
    report = report_of(plan_of(FOUR, steps=5))
    kib = 1024
    assert report.quality == Quality(1200 * kib, 1000 * kib)
    assert report.live_peak_bytes == 1000 * kib
    assert report.average_bytes == (600 + 1000 + 400 + 400 + 400) * kib / 5
    assert report.fragmentation == pytest.approx(1 - 2800 / (600 + 4 * 1000))
    assert report.best == Quality(0, 1600 * kib)
    assert report.bound_bytes == 1600 * kib


@given(groups(), st.sampled_from(list(SOLVERS)), st.sampled_from([512, 1024, 4096]))
@settings(deadline=None)
def test_measures_are_what_lies_there(buffers, solver, capacity):
    """Against the sticks that are taken at each operation, one by one."""
    plan = plan_of(buffers, solver, capacity)
    live, top = [], []
    for step in range(plan.steps):
        sticks: set[int] = set()
        for b in buffers:
            place = plan.places[b.name]
            if place is not None and b.start <= step < b.end:
                sticks |= set(range(place // 128, (place + b.size_bytes) // 128))
        live.append(128 * len(sticks))
        top.append(128 * (max(sticks) + 1) if sticks else 0)
    report = report_of(plan)
    assert report.live_peak_bytes == max(live)
    assert report.average_bytes == pytest.approx(sum(live) / len(live))
    assert report.quality.peak_bytes == max(top)
    assert report.fragmentation == pytest.approx(1 - sum(live) / sum(top) if sum(top) else 0.0)
    best = report.best
    assert (best.spilled_bytes, best.peak_bytes) <= (
        report.quality.spilled_bytes,
        report.quality.peak_bytes,
    )


def test_text_of_a_plan():
    assert report_text(plan_scratchpad(*softmax())) == SOFTMAX


SOFTMAX = """\
LX plan by greedy, rule june: 4 of 6 buffers in LX
peak 1,114,112 of 1,677,721 bytes per core, average 891,290, fragmentation 1%
0 bytes did not fit
optimal: this plan is

 buffer   bytes per core    place   lives   uses      why
 ───────────────────────────────────────────────────────────────────────────────────
 max              65,536        0   0-1     0, 1
 sub           1,048,576   65,536   1-2     1, 2
 exp           1,048,576   65,536   2-4     2, 3, 4   in place of sub
 sum              65,536        0   3-4     3, 4
 x                            HBM                     max reads it before it is made
 y                            HBM                     is used by one operation only
"""


def test_text_says_what_does_not_fit_and_what_the_best_is():
    text = report_text(plan_of(FOUR, steps=5))
    assert "1,228,800 bytes did not fit" in text
    assert "optimal: peak 1,638,400 bytes, 0 bytes do not fit" in text
    assert "this plan leaves 1,228,800 bytes more in HBM" in text
    row = next(line for line in text.splitlines() if line.startswith(" C "))
    assert row.endswith("does not fit")


def test_text_says_how_much_higher_the_peak_is():
    text = report_text(plan_scratchpad(*softmax(), solver="first_fit", capacity_bytes=1 << 22))
    assert "optimal: this plan is" in text
    buffers = [
        LiveBuffer("a", 256, (0, 1)),
        LiveBuffer("b", 128, (1, 3)),
        LiveBuffer("c", 384, (2, 3)),
    ]
    text = report_text(plan_of(buffers, steps=4))
    assert "optimal: peak 512 bytes, 0 bytes do not fit; this plan reaches 256 bytes higher" in text


def test_text_of_large_and_empty_plans():
    specs, names = chain(*["exp"] * 20)
    text = report_text(plan_scratchpad(specs, names))
    assert "optimal: not searched for with 19 buffers; all of them need 1,048,576 bytes" in text
    empty = report_text(plan_scratchpad([], []))
    assert "0 of 0 buffers in LX" in empty
    assert " buffer " not in empty


def test_text_keeps_its_width():
    text = report_text(plan_scratchpad(*softmax()), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
