"""Solvers: the reference's vectors, and what must hold of every plan."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings, strategies as st

from spyre.errors import UnsupportedError
from spyre.torch_backend.inductor.scratchpad.accesses import LiveBuffer
from spyre.torch_backend.inductor.scratchpad.solvers import (
    peak_bound,
    placing_order,
    solve_best_fit,
    solve_first_fit,
    solve_greedy,
    solve_optimal,
)

KIB = 1024
CAPACITY = 1_677_721
FAST = (solve_greedy, solve_first_fit, solve_best_fit)
ALL = (*FAST, solve_optimal)

FOUR = [
    LiveBuffer("A", 600 * KIB, (0, 1)),
    LiveBuffer("B", 400 * KIB, (1, 2, 3)),
    LiveBuffer("C", 1200 * KIB, (3, 4)),
    LiveBuffer("D", 400 * KIB, (3, 4), in_place_of="B"),
]
SOFTMAX = [
    LiveBuffer("max", 64 * KIB, (0, 1)),
    LiveBuffer("sub", 1024 * KIB, (1, 2)),
    LiveBuffer("exp", 1024 * KIB, (2, 3, 4), in_place_of="sub"),
    LiveBuffer("sum", 64 * KIB, (3, 4)),
]


def spilled(buffers, places):
    return sum(b.size_bytes for b in buffers if places[b.name] is None)


def peak(buffers, places):
    tops = [places[b.name] + b.size_bytes for b in buffers if places[b.name] is not None]
    return max(tops, default=0)


def is_in_place(a, b, places):
    same = places[a.name] == places[b.name]
    return same and (a.in_place_of == b.name or b.in_place_of == a.name)


def check(buffers, places, capacity):
    """Every pair, every operation: the slow way to say that nothing is overwritten."""
    assert list(places) == [b.name for b in buffers]
    placed = [b for b in buffers if places[b.name] is not None]
    for b in placed:
        at = places[b.name]
        assert at % 128 == 0
        assert 0 <= at <= capacity - b.size_bytes
    for k, a in enumerate(placed):
        for b in placed[k + 1 :]:
            together = set(range(a.start, a.end)) & set(range(b.start, b.end))
            if together and not is_in_place(a, b, places):
                x, y = places[a.name], places[b.name]
                assert x + a.size_bytes <= y or y + b.size_bytes <= x, (a, b, places)


@st.composite
def groups(draw, most=7, unit=128, sizes=12):
    """Buffers of a made-up kernel, some in place of others, some held longer by a loop."""
    buffers = []
    for k in range(draw(st.integers(0, most))):
        uses = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=3)))
        taken = {b.in_place_of for b in buffers}
        ending = [b for b in buffers if b.end == uses[0] + 1 and b.start < uses[0]]
        dying = [b for b in ending if b.name not in taken]
        size = draw(st.integers(1, sizes)) * unit
        parent = draw(st.sampled_from([None, *dying])) if dying else None
        held = None
        if parent is None and draw(st.booleans()):
            held = (max(0, uses[0] - draw(st.integers(0, 2))), uses[-1] + 1)
        buffers.append(
            LiveBuffer(
                f"b{k}",
                size if parent is None else parent.size_bytes,
                tuple(uses),
                draw(st.booleans()),
                None if parent is None else parent.name,
                held,
            )
        )
    return draw(st.permutations(buffers))


def test_greedy_vectors():
    found = solve_greedy(FOUR, CAPACITY)
    assert found == {"A": 0, "B": 614400, "C": None, "D": 614400}
    assert solve_greedy(SOFTMAX, CAPACITY) == {"max": 0, "sub": 65536, "exp": 65536, "sum": 0}


@pytest.mark.parametrize("solve", [solve_first_fit, solve_best_fit])
def test_fit_vectors(solve):
    assert solve(FOUR, CAPACITY) == {"A": 409600, "B": 0, "C": 409600, "D": 0}


def test_first_fit_softmax_vector():
    found = solve_first_fit(SOFTMAX, CAPACITY)
    assert found == {"sub": 0, "exp": 0, "max": 1048576, "sum": 1048576}


def test_fit_order_is_by_priority_and_operands_come_first():
    assert [b.name for b in placing_order(FOUR)] == ["B", "D", "A", "C"]
    often = [LiveBuffer("rare", 128, (0, 5)), LiveBuffer("often", 128, (0, 1, 2, 3, 4, 5))]
    assert [b.name for b in placing_order(often)] == ["often", "rare"]
    first_read = [LiveBuffer("read", 128, (0, 1), False), LiveBuffer("written", 128, (0, 1))]
    assert [b.name for b in placing_order(first_read)] == ["written", "read"]
    same_value = [
        LiveBuffer("long", 128, (0, 1, 2, 3), False, held=(0, 6)),
        LiveBuffer("short", 128, (0, 2), False),
    ]
    assert [b.name for b in placing_order(same_value)] == ["short", "long"]


def test_best_fit_takes_the_tightest_gap():
    fixed = [
        LiveBuffer("a", 512, (0, 1, 2, 3)),
        LiveBuffer("b", 128, (1, 2, 3, 4)),
        LiveBuffer("c", 256, (0, 1, 2, 3, 4)),
    ]
    late = LiveBuffer("late", 128, (4, 9))
    first, best = (s([*fixed, late], 1024) for s in (solve_first_fit, solve_best_fit))
    check([*fixed, late], first, 1024)
    check([*fixed, late], best, 1024)
    assert first["c"] == best["c"] == 640
    assert first["late"] == 0
    assert best["late"] == 896


def test_greedy_uses_the_first_gap_where_the_top_is_full():
    buffers = [
        LiveBuffer("low", 256, (0, 9)),
        LiveBuffer("middle", 256, (1, 2)),
        LiveBuffer("high", 512, (1, 9)),
        LiveBuffer("late", 128, (3, 9)),
    ]
    assert solve_greedy(buffers, 1024) == {"low": 0, "middle": 256, "high": 512, "late": 256}


@pytest.mark.parametrize("solve", ALL)
def test_what_is_larger_than_lx_stays_in_hbm(solve):
    buffers = [LiveBuffer("large", 1280, (0, 1)), LiveBuffer("small", 128, (0, 1))]
    assert solve(buffers, 1024) == {"large": None, "small": 0}
    assert solve([], 1024) == {}


@pytest.mark.parametrize("solve", FAST)
@given(groups(most=30), st.sampled_from([128, 1000, 2048, CAPACITY]))
def test_no_two_living_buffers_overlap(solve, buffers, capacity):
    check(buffers, solve(buffers, capacity), capacity)


@pytest.mark.parametrize("solve", FAST)
@given(groups(most=30, unit=100))
def test_sizes_need_not_be_whole_sticks(solve, buffers):
    check(buffers, solve(buffers, 2000), 2000)


@given(groups(), st.sampled_from([500, 1024, 2048, CAPACITY]))
@settings(deadline=None)
def test_optimal_is_no_worse_than_the_others(buffers, capacity):
    best = solve_optimal(buffers, capacity)
    check(buffers, best, capacity)
    quality = spilled(buffers, best), peak(buffers, best)
    for solve in FAST:
        other = solve(buffers, capacity)
        assert quality <= (spilled(buffers, other), peak(buffers, other))
    if quality[0] == 0:
        assert quality[1] >= peak_bound(buffers)


@given(groups(most=4, sizes=3))
@settings(deadline=None, max_examples=60)
def test_optimal_is_the_best_of_all_assignments(buffers):
    capacity = 640
    qualities = []
    for offsets in product([None, *range(0, capacity, 128)], repeat=len(buffers)):
        places = dict(zip([b.name for b in buffers], offsets, strict=True))
        try:
            check(buffers, places, capacity)
        except AssertionError:
            continue
        qualities.append((spilled(buffers, places), peak(buffers, places)))
    best = solve_optimal(buffers, capacity)
    check(buffers, best, capacity)
    assert (spilled(buffers, best), peak(buffers, best)) == min(qualities)


def test_optimal_refuses_large_groups():
    with pytest.raises(UnsupportedError, match="SPY986"):
        solve_optimal([LiveBuffer(f"b{k}", 128, (k, k + 1)) for k in range(13)], CAPACITY)


def test_optimal_is_reached_where_greedy_is_not():
    assert spilled(FOUR, solve_greedy(FOUR, CAPACITY)) == 1200 * KIB
    best = solve_optimal(FOUR, CAPACITY)
    assert (spilled(FOUR, best), peak(FOUR, best)) == (0, 1600 * KIB)
