"""The packer against vectors of the reference, and against the best packing there is."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, strategies as st

from spyre.torch_backend.program.builder import LiveBuffer, pack
from tests.examples import examples
from tests.torch_backend.program.optimal import peak_bound, solve_optimal

KIB = 1024
CAPACITY = 1_677_721

FOUR = [
    LiveBuffer("A", 600 * KIB, 0, 2),
    LiveBuffer("B", 400 * KIB, 1, 4),
    LiveBuffer("C", 1200 * KIB, 3, 5),
    LiveBuffer("D", 400 * KIB, 3, 5, in_place_of="B"),
]
SOFTMAX = [
    LiveBuffer("max", 64 * KIB, 0, 2),
    LiveBuffer("sub", 1024 * KIB, 1, 3),
    LiveBuffer("exp", 1024 * KIB, 2, 5, in_place_of="sub"),
    LiveBuffer("sum", 64 * KIB, 3, 5),
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
    """Buffers of a made-up kernel, some in place of others."""
    buffers = []
    for k in range(draw(st.integers(0, most))):
        start = draw(st.integers(0, 9))
        taken = {b.in_place_of for b in buffers}
        ending = [b for b in buffers if b.end == start + 1 and b.start < start]
        dying = [b for b in ending if b.name not in taken]
        size = draw(st.integers(1, sizes)) * unit
        parent = draw(st.sampled_from([None, *dying])) if dying else None
        end = draw(st.integers(start + 1, 12))
        size = size if parent is None else parent.size_bytes
        name = None if parent is None else parent.name
        buffers.append(LiveBuffer(f"b{k}", size, start, end, name))
    return draw(st.permutations(buffers))


def test_vectors():
    assert pack(FOUR, CAPACITY) == {"A": 0, "B": 614400, "C": None, "D": 614400}
    assert pack(SOFTMAX, CAPACITY) == {"max": 0, "sub": 65536, "exp": 65536, "sum": 0}


def test_the_lowest_gap_is_used():
    buffers = [
        LiveBuffer("low", 256, 0, 10),
        LiveBuffer("middle", 256, 1, 3),
        LiveBuffer("high", 512, 1, 10),
        LiveBuffer("late", 128, 3, 10),
    ]
    assert pack(buffers, 1024) == {"low": 0, "middle": 256, "high": 512, "late": 256}


def test_a_buffer_larger_than_the_memory_does_not_fit():
    buffers = [LiveBuffer("large", 1280, 0, 2), LiveBuffer("small", 128, 0, 2)]
    assert pack(buffers, 1024) == {"large": None, "small": 0}
    assert pack(buffers) == {"large": 0, "small": 1280}
    assert pack([], 1024) == {}


@given(groups(most=30), st.sampled_from([128, 1000, 2048, CAPACITY]))
def test_no_two_living_buffers_overlap(buffers, capacity):
    check(buffers, pack(buffers, capacity), capacity)


@given(groups(most=30, unit=100))
def test_sizes_need_not_be_whole_sticks(buffers):
    check(buffers, pack(buffers, 2000), 2000)


@given(groups(most=30))
def test_without_a_limit_everything_fits(buffers):
    check(buffers, pack(buffers), 1 << 40)


@given(groups(), st.sampled_from([500, 1024, 2048, CAPACITY]))
def test_the_oracle_is_no_worse(buffers, capacity):
    best, found = solve_optimal(buffers, capacity), pack(buffers, capacity)
    check(buffers, best, capacity)
    quality = spilled(buffers, best), peak(buffers, best)
    assert quality <= (spilled(buffers, found), peak(buffers, found))
    if quality[0] == 0:
        assert quality[1] >= peak_bound(buffers)


@given(groups(most=4, sizes=3))
@examples(60)
def test_the_oracle_is_the_best_of_all_assignments(buffers):
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


@pytest.mark.parametrize("columns", [64, 1024])
def test_softmax_is_packed_as_well_as_can_be(columns):
    buffers = [
        LiveBuffer(b.name, b.size_bytes * columns // 1024, b.start, b.end, b.in_place_of)
        for b in SOFTMAX
    ]
    best, found = solve_optimal(buffers, CAPACITY), pack(buffers, CAPACITY)
    assert (spilled(buffers, found), peak(buffers, found)) == (0, peak(buffers, best))


def test_later_buffers_may_not_fit_though_a_better_packing_exists():
    assert spilled(FOUR, pack(FOUR, CAPACITY)) == 1200 * KIB
    best = solve_optimal(FOUR, CAPACITY)
    assert (spilled(FOUR, best), peak(FOUR, best)) == (0, 1600 * KIB)
