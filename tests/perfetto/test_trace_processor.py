"""Perfetto's trace processor reports wrong traces, so tests with it can fail."""

from __future__ import annotations

import json

import pytest

from spyre.runtime.trace import microseconds
from tests.perfetto.trace_processor import TraceError, TraceProcessor


@pytest.fixture
def written(tmp_path):
    """``written(*(tid, ts, dur))``: a trace with a span for each, times in microseconds."""

    def write(*spans):
        events = [
            {"ph": "X", "name": "span", "pid": 1, "tid": tid, "ts": ts, "dur": dur}
            for tid, ts, dur in spans
        ]
        file = tmp_path / "trace.json"
        file.write_text(json.dumps({"traceEvents": events}))
        return file

    return write


def test_values(written):
    with TraceProcessor(written((1, 0, 5))) as trace:
        (row,) = trace.query(
            "select 9223372036854775807 as most, -1 as less, 2.0 as real, null as none, 'ä' as text"
        )
        assert row == {"most": (1 << 63) - 1, "less": -1, "real": 2.0, "none": None, "text": "ä"}
        assert isinstance(row["real"], float)
        assert trace.query("select name from slice where dur < 0") == []
        many = "with recursive n(k) as (select 1 union all select k + 1 from n where k < 20000)"
        assert trace.value(f"{many} select sum(k) from n") == 200_010_000
        assert len(trace.query(f"{many} select k, 'text' as t from n")) == 20_000
        with pytest.raises(TraceError, match="no such column: no_column"):
            trace.query("select no_column from slice")


@pytest.mark.parametrize("begin", [0, 1 << 44, 4_398_046_511_104_000, 1 << 52, 7_889_237 * 10**9])
def test_whole_nanoseconds_are_kept(written, begin):
    """Also a quarter of a year from where times begin, as in traces of torch."""
    times = [begin + int(k * 1.27**0.5) for k in range(1000)] + [begin + 90 * 10**12]
    spans = [(k + 1, microseconds(ns), k / 1000) for k, ns in enumerate(times)]
    with TraceProcessor(written(*spans)) as trace:
        found = trace.query("select ts, dur from slice order by dur")
        assert [row["ts"] for row in found] == times
        assert [row["dur"] for row in found] == list(range(len(times)))
        assert trace.problems() == []


def test_the_nearest_number_may_be_another_time(written):
    """`microseconds` must not just divide: the nearest float may be another time."""
    late = 4_461_553_686_088_236
    with TraceProcessor(written((1, late / 1000, 1), (2, microseconds(late), 1))) as trace:
        found = trace.query("select ts from slice order by ts")
        assert [row["ts"] - late for row in found] == [0, 1]


@pytest.mark.parametrize(
    "spans",
    [
        ((1, 0, 2), (1, 1, 2)),
        ((1, 0, 2), (1, 1.999, 2)),
        ((1, 0.0006, 0.0018), (1, 0.0024, 0.002)),  # the fractions of neighbours are rounded
    ],
)
def test_spans_that_overlap_are_missed(written, spans):
    with TraceProcessor(written(*spans)) as trace:
        (problem,) = trace.problems()
        assert (problem["name"], problem["value"]) == ("slice_drop_overlapping_complete_event", 1)
        assert trace.value("select count() from slice") == 1


def test_what_is_no_whole_trace(written):
    file = written((1, 0, 2), (1, 3, 2))
    text = file.read_text()
    for broken in (text[:-20], "{}", "no trace"):
        file.write_text(broken)
        with pytest.raises(TraceError, match=r"incomplete|Unknown trace type"):
            TraceProcessor(file)
