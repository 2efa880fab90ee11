"""Modelled time in a trace: sums of the spans equal the counters, nothing overlaps."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

import spyre
from spyre.hw.counters import Counters
from spyre.hw.execute_counters import CORE_COLUMNS
from spyre.runtime.profile.kernel_model import part_of
from spyre.runtime.profile.simulated_trace import EXECUTES, simulated_events


@pytest.mark.parametrize("name", ["softmax", "add_loop", "matmul"])
def test_sums_equal_the_counters(name, request):
    result = request.getfixturevalue(name)
    found = spyre.profile(result)
    spans = [e for e in simulated_events(found) if e["ph"] == "X"]
    executes = [s for s in spans if s["tid"] == EXECUTES.number]
    sums = [sum(s["args"][key] for s in executes) for key in Counters.__slots__]
    assert sums == list(result.counters.values)
    assert sum(s["dur"] for s in executes) * 1000 == pytest.approx(found.compute_ns)
    for core in range(32):
        own = [s for s in spans if s["tid"] == 3000 + core]
        counts = [sum(s["args"][key] for s in own) for key in CORE_COLUMNS]
        assert counts == found.core_counts[core].tolist()
        assert sum(s["dur"] for s in own) * 1000 == pytest.approx(found.core_busy_ns[core])


def test_nothing_overlaps(add_loop):
    """On any track, nor leaves the process."""
    events = list(simulated_events(spyre.profile(add_loop), 2, 1000, 5.0))
    assert {e["pid"] for e in events} == {1102}
    spans = [e for e in events if e["ph"] == "X"]
    assert min(s["ts"] for s in spans) == 5.0
    for track in Counter(s["tid"] for s in spans):
        own = sorted((s["ts"], s["ts"] + s["dur"]) for s in spans if s["tid"] == track)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(own))
    named = {e["tid"] for e in events if e["name"] == "thread_name"}
    assert {s["tid"] for s in spans} <= named


@pytest.mark.parametrize(("total", "count"), [(7, 3), (0, 4), (10, 10), (1, 5)])
def test_spreading(total, count):
    parts = [part_of(total, count, k) for k in range(count)]
    assert (sum(parts), len(parts)) == (total, count)
    assert max(parts) - min(parts) <= 1
