"""Allocated bytes of the regions over time, against the allocator's statistics."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from spyre.hw.device.device import Device
from spyre.hw.memory.regions import AllocationHistory
from spyre.hw.spec import REGIONS


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5000), st.booleans()), max_size=30))
def test_every_step_is_what_is_allocated(steps):
    device = Device(threads=1)
    before = device.allocate(1000, 2)
    history = device.regions.history = AllocationHistory(device.allocated_bytes)
    expected, held = [device.allocated_bytes], [before]
    for region, size_bytes, frees in steps:
        if frees and held:
            device.free(held.pop(0))
        else:
            held.append(device.allocate(size_bytes, region))
        expected.append(device.allocated_bytes)
    assert [tuple(row) for row in history.allocated_bytes.tolist()] == expected
    times = history.times_ns
    assert len(times) == len(steps)
    assert all(a <= b for a, b in pairwise(times.tolist()))


def test_a_reset_frees_everything():
    device = Device(threads=1)
    device.allocate(256, 3)
    history = device.regions.history = AllocationHistory(device.allocated_bytes)
    device.reset()
    assert history.allocated_bytes[0].tolist() == [0, 0, 0, 256, 0, 0, 0, 0]
    assert not history.allocated_bytes[-1].any()


def test_nothing_changes():
    history = AllocationHistory()
    assert history.allocated_bytes.tolist() == [[0] * REGIONS]
    assert history.times_ns.tolist() == []
