"""Occupancy of the scratchpads: against a walk from the end, and a program counted by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from spyre.hw.counters.program import is_live, live_bytes, lx_peak_bytes
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.operation.operation import Component
from tests.hw.harness import allocations_of, engine, link, region, windows

COUNT = 12
executes = st.sets(st.integers(0, COUNT - 1))


def live_reference(written: set[int], read: set[int]) -> list[int]:
    """Backwards: needed from a read back to the write before it."""
    live, needed = [0] * COUNT, False
    for place in reversed(range(COUNT)):
        live[place] = int(needed or place in written or place in read)
        needed = place in read or (needed and place not in written)
    return live


@given(written=executes, read=executes)
def test_live(written: set[int], read: set[int]):
    found = is_live(*(np.array(sorted(s), np.int64) for s in (written, read)), COUNT)
    assert found.tolist() == live_reference(written, read)


def test_a_chain_in_scratchpads():
    """Two cores: 4 KiB each in LX, then 4 KiB more at another place, then in place."""
    x, y = (HostOperand(region(k)) for k in range(2))
    first, second = (HostOperand(n, component=Component.LX) for n in (0, 1 << 16))
    shape, split = (64, 64), {"mb": 2}
    steps = ([x, first], [first, second], [second, second], [second, y])
    ops = [build_operation(pointwise("neg", shape, [a], b, split)) for a, b in steps]
    places = [a for op in (ops[0], ops[3]) for a in allocations_of(windows(op))]
    view = link(engine(), ops, places, repeat=2).view
    live = live_bytes(view.lx_accesses, len(view.executions))
    kib = 1024
    assert live.tolist() == [4 * kib, 8 * kib, 4 * kib, 4 * kib] * 2
    assert lx_peak_bytes(view) == 8 * kib
    assert view.lx_accesses.highest == (1 << 16) + 4 * kib


def test_nothing_in_scratchpads():
    x, y = (HostOperand(region(k)) for k in range(2))
    op = build_operation(pointwise("neg", (64, 64), [x], y, {"mb": 2}))
    view = link(engine(), [op], allocations_of(windows(op))).view
    assert (lx_peak_bytes(view), view.lx_accesses.highest) == (0, 0)
