"""Lifetimes and occupancy of LX against twins that look at every byte and every execution."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spyre.runtime.profile.lx_accesses import LxAccesses, LxLifetimes, lifetimes, peak_bytes

Use = tuple[int, int, int, int]
"""Low, high, position, writes."""


@st.composite
def uses(draw: st.DrawFn) -> list[Use]:
    found = []
    for _ in range(draw(st.integers(0, 12))):
        low = draw(st.integers(0, 5))
        size = draw(st.integers(1, 4))
        found.append((low, low + size, draw(st.integers(0, 5)), draw(st.integers(0, 1))))
    return found


def accesses_of(found: list[Use]) -> LxAccesses:
    columns = np.array(found, np.int64).reshape(-1, 4).T
    return LxAccesses(columns[0], columns[1], columns[2], columns[2], columns[3])


def lifetimes_one_by_one(found: list[Use]) -> set[tuple[int, int, int, int]]:
    """Walk every range's uses in order: a write begins anew unless that execution reads it too."""
    result = set()
    for low, high in {use[:2] for use in found}:
        mine = sorted((use[2], use[3]) for use in found if use[:2] == (low, high))
        reads = {position for position, writes in mine if not writes}
        seen: set[int] = set()
        begin = last = None
        for position, writes in mine:
            anew = writes and position not in reads and position not in seen
            if begin is None or anew:
                if begin is not None:
                    result.add((low, high, begin, last))
                begin = position
            last = position
            seen.add(position)
        result.add((low, high, begin, last))
    return result


@settings(max_examples=200, deadline=None)
@given(found=uses())
def test_lifetimes(found: list[Use]):
    lived = lifetimes(accesses_of(found))
    rows = zip(*(c.tolist() for c in (lived.low, lived.high, lived.first, lived.last)), strict=True)
    assert set(rows) == lifetimes_one_by_one(found)


@settings(max_examples=200, deadline=None)
@given(found=uses())
def test_the_peak(found: list[Use]):
    lived = lifetimes(accesses_of(found))
    rows = list(
        zip(*(c.tolist() for c in (lived.low, lived.high, lived.first, lived.last)), strict=True)
    )
    peak = 0
    for position in range(6):
        held = {b for low, high, first, last in rows if first <= position <= last
                for b in range(low, high)}  # fmt: skip
        peak = max(peak, len(held))
    assert peak_bytes(lived) == peak


def test_nothing():
    none = lifetimes(accesses_of([]))
    assert (len(none), peak_bytes(none)) == (0, 0)


def test_what_was_there_before_is_not_written():
    lived = lifetimes(accesses_of([(0, 2, 1, 0), (0, 2, 3, 1)]))
    assert isinstance(lived, LxLifetimes)
    assert lived.written.tolist() == [0, 1]
