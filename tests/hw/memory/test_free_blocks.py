"""The free list of a region against an obvious one, step by step."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spyre.hw.memory.regions import FreeBlocks, IntegerSet
from tests.examples import examples

values = st.one_of(
    st.integers(0, 1100),
    st.integers(0, 1 << 27),
    st.sampled_from([0, 511, 512, (1 << 18) - 1, 1 << 18, 1 << 27]),
)


class PlainFreeBlocks:
    """A sorted list of (start, size); best fit by looking at all of them, the lowest first."""

    def __init__(self, capacity: int) -> None:
        self.free_ranges = [(0, capacity)] if capacity else []

    def take(self, count: int) -> int | None:
        best = None
        for start, size in self.free_ranges:
            if size >= count and (best is None or size < best[1]):
                best = (start, size)
        if best is None:
            return None
        start, size = best
        self.free_ranges.remove(best)
        if size > count:
            self.free_ranges.append((start + count, size - count))
        self.free_ranges.sort()
        return start

    def give(self, start: int, count: int) -> None:
        joined: list[tuple[int, int]] = []
        for at, size in sorted([*self.free_ranges, (start, count)]):
            if joined and sum(joined[-1]) == at:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((at, size))
        self.free_ranges = joined


class FreeListMachine(RuleBasedStateMachine):
    """Both free lists do the same steps."""

    @initialize(capacity=st.sampled_from([0, 1, 40, 300, 1 << 27]))
    def start(self, capacity: int) -> None:
        self.capacity = capacity
        self.fast, self.plain = FreeBlocks(capacity), PlainFreeBlocks(capacity)
        self.live: list[tuple[int, int]] = []

    @rule(count=st.one_of(st.integers(1, 9), st.integers(1, 1 << 27)))
    def take(self, count: int) -> None:
        start = self.fast.take(count)
        assert start == self.plain.take(count)
        if start is not None:
            self.live.append((start, count))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        start, count = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.fast.give(start, count)
        self.plain.give(start, count)

    @invariant()
    def same(self) -> None:
        ranges = self.plain.free_ranges
        assert list(self.fast.ranges()) == ranges
        assert self.fast.free == sum(size for _, size in ranges)
        assert self.fast.largest() == max((size for _, size in ranges), default=0)

    def teardown(self) -> None:
        for start, count in getattr(self, "live", ()):
            self.fast.give(start, count)
        if hasattr(self, "fast"):
            assert list(self.fast.ranges()) == ([(0, self.capacity)] if self.capacity else [])


TestFreeLists = FreeListMachine.TestCase
TestFreeLists.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_steps(seed: int):
    """Enough for dead heap entries to be cleared away; few sizes, so that heaps grow."""
    rng = random.Random(seed)
    fast, plain = FreeBlocks(3000), PlainFreeBlocks(3000)
    live: list[tuple[int, int]] = []
    most_dead = 0
    for _ in range(6000):
        if rng.random() < (0.6 if len(live) > 700 else 0.2) and live:
            start, count = live.pop(rng.randrange(len(live)))
            fast.give(start, count)
            plain.give(start, count)
        else:
            count = rng.choice((1, 1, 2, 3, 7))
            start = fast.take(count)
            assert start == plain.take(count)
            if start is not None:
                live.append((start, count))
        most_dead = max(most_dead, fast._dead)
        entries = sum(map(len, fast._heaps.values()))
        assert entries == len(plain.free_ranges) + fast._dead
    assert list(fast.ranges()) == plain.free_ranges
    assert most_dead > 0


def test_dead_entries_stay_few():
    """A range that comes and goes behind a lower one of its size."""
    blocks = FreeBlocks(1000)
    starts = [blocks.take(1) for _ in range(1000)]
    assert starts == list(range(1000))
    blocks.give(10, 1)
    for _ in range(3000):
        blocks.give(500, 1)
        blocks.give(501, 1)
        assert blocks.take(2) == 500
        assert blocks._dead < 300
    assert list(blocks.ranges()) == [(10, 1)]
    assert blocks.take(1) == 10
    assert blocks.take(1) is None


@examples(200)
@given(st.lists(values, max_size=60), st.lists(values, max_size=20))
def test_integer_set(members: list[int], asked: list[int]):
    numbers = IntegerSet()
    for member in members:
        numbers.add(member)
    left = sorted(set(members))
    while True:
        assert numbers.largest() == (left[-1] if left else None)
        for value in [*asked, *left, *(v + 1 for v in left)]:
            assert numbers.at_least(value) == next((m for m in left if m >= value), None)
        if not left:
            break
        numbers.remove(left.pop(len(left) // 2))
