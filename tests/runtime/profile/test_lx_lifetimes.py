"""Lifetimes in LX against a reference that looks at every use, and against the occupancy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.hw.counters.program import LxAccesses, LxLifetimes, lifetimes, live_bytes
from tests.examples import examples

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
                begin = position if writes else 0
            last = position
            seen.add(position)
        result.add((low, high, begin, last))
    return result


@examples(100)
@given(found=uses())
def test_lifetimes(found: list[Use]):
    lived = lifetimes(accesses_of(found))
    rows = zip(*(c.tolist() for c in (lived.low, lived.high, lived.first, lived.last)), strict=True)
    assert set(rows) == lifetimes_one_by_one(found)


@pytest.mark.parametrize("name", ["softmax", "add_loop"])
def test_as_full_as_the_occupancy_says(name, request):
    view = request.getfixturevalue(name).launches[0].linked.view
    found, live = lifetimes(view.lx_accesses), np.zeros(len(view.executions), np.int64)
    for k in range(len(found)):
        live[found.first[k] : found.last[k] + 1] += found.high[k] - found.low[k]
    assert live.tolist() == live_bytes(view.lx_accesses, len(live)).tolist()


def test_nothing():
    none = lifetimes(accesses_of([]))
    assert len(none) == 0


def test_what_was_there_before_is_not_written():
    lived = lifetimes(accesses_of([(0, 2, 1, 0), (0, 2, 3, 1)]))
    assert isinstance(lived, LxLifetimes)
    assert lived.written.tolist() == [0, 1]
    assert lived.first.tolist() == [0, 3]
