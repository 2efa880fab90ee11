"""Modelled time in a trace: sums of the spans equal the counters, nothing overlaps."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

import spyre
from spyre.hw.cost.timeline import Span
from spyre.hw.counters.counts import Counters
from spyre.hw.counters.execute import CORE_COLUMNS
from spyre.runtime.profile.trace import EXECUTES, modelled_events, part_of, within
from tests.runtime.trace.trace_reader import span_ns


@pytest.mark.parametrize("name", ["softmax", "add_loop", "matmul"])
def test_sums_equal_the_counters(name, request):
    result = request.getfixturevalue(name)
    found = spyre.profile(result)
    spans = [e for e in modelled_events(found) if e["ph"] == "X"]
    executes = [s for s in spans if s["tid"] == EXECUTES.number]
    sums = [sum(s["args"][key] for s in executes) for key in Counters.__struct_fields__]
    assert sums == list(result.counters.values)
    assert sum(s["args"]["time_ns"] for s in executes) == pytest.approx(found.compute_ns)
    assert sum(s["dur"] for s in executes) * 1000 == pytest.approx(found.compute_ns, abs=1)
    for core in range(32):
        own = [s for s in spans if s["tid"] == 3000 + core]
        counts = [sum(s["args"][key] for s in own) for key in CORE_COLUMNS]
        assert counts == found.per_core.counts[core].tolist()
        busy = sum(s["args"]["time_ns"] for s in own)
        assert busy == pytest.approx(found.per_core.busy_ns[core])


@pytest.mark.parametrize("overlap", ["serial", "overlapped", "double-buffered"])
def test_nothing_overlaps(add_loop, overlap):
    """On any track, nor leaves the process; spans begin and end at whole nanoseconds."""
    events = list(modelled_events(spyre.profile(add_loop, overlap=overlap), 2, 1000, 5000))
    assert {e["pid"] for e in events} == {1102}
    spans = [e for e in events if e["ph"] == "X"]
    assert min(s["ts"] for s in spans) == 5.0
    for track in Counter(s["tid"] for s in spans):
        own = sorted(span_ns(s) for s in spans if s["tid"] == track)
        assert all(a[1] <= b[0] for a, b in pairwise(own))
    for span in spans:
        begin, end = span_ns(span)
        assert (span["ts"], span["dur"]) == (begin / 1000, (end - begin) / 1000)
    named = {e["tid"] for e in events if e["name"] == "thread_name"}
    assert {s["tid"] for s in spans} <= named


def test_executions_end_with_their_launch():
    """Sums of tenths pass 2.5 by a bit, and would be rounded up where the launch is not."""
    ends = np.cumsum(np.full(25, 0.1))
    assert round(ends[-1]) > round(2.5)
    begins, ends = within(Span(0.0, 2.5), np.append(0.0, ends)[:-1], ends)
    assert ends[-1] == 2.5
    assert (begins[1:] == ends[:-1]).all()


@pytest.mark.parametrize(("total", "count"), [(7, 3), (0, 4), (10, 10), (1, 5)])
def test_spreading(total, count):
    parts = [part_of(total, count, k) for k in range(count)]
    assert (sum(parts), len(parts)) == (total, count)
    assert max(parts) - min(parts) <= 1
