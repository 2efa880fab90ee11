"""Sums of a trace by SQL against the counters of its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spyre.hw.counters.counts import Counters
from spyre.runtime.profile.trace import PROCESSES
from tests.perfetto.trace_processor import TraceProcessor

BYTES = ("hbm_read_bytes", "hbm_written_bytes", "lx_read_bytes", "lx_written_bytes")


def sums_of(names: tuple[str, ...]) -> str:
    """SQL of the sums of arguments of spans, named as they are."""
    return ", ".join(f"sum(extract_arg(arg_set_id, 'args.{name}')) as {name}" for name in names)


def tracks_of(trace: TraceProcessor, process: int) -> list[str]:
    """Names of the tracks of a process that have spans, in order."""
    found = trace.query(f"select distinct tid, track from span where pid = {process} order by tid")
    return [row["track"] for row in found]


def assert_whole(trace: TraceProcessor, file: Path) -> None:
    """Perfetto has nothing to say about the trace and shows every span, side by side."""
    assert trace.problems() == []
    written = [e["ph"] for e in json.loads(file.read_text())["traceEvents"]]
    assert trace.value("select count() from slice") == written.count("X") > 0
    assert trace.value("select count() from flow") == written.count("s") == written.count("f")
    # spans of no duration may be nested in spans that begin at the same time
    assert trace.value("select count() from slice where depth > 0 and dur > 0") == 0


def assert_sums(trace: TraceProcessor, totals: dict[str, Any], host_process: int = 1) -> None:
    """Modelled sums of a card equal ``totals`` of a profile's JSON.

    Whole numbers exactly; times as far as floating-point sums do, and on the screen, where spans
    begin and end at whole nanoseconds, to one for every run of spans without a gap.
    """
    process = host_process + PROCESSES
    _assert_counters(trace, process, totals)
    _assert_copies(trace, process, totals)
    _assert_copies(trace, host_process, totals)
    _assert_times(trace, process, totals)
    _assert_cores(trace, process, totals)


def _assert_counters(trace: TraceProcessor, process: int, totals: dict[str, Any]) -> None:
    where = f"from span where pid = {process} and track"
    (found,) = trace.query(f"select {sums_of(Counters.__struct_fields__)} {where} = 'executes'")
    assert found == {name: totals[name] for name in Counters.__struct_fields__}
    (cores,) = trace.query(f"select {sums_of(BYTES)} {where} like 'core %'")
    assert cores == {name: totals[name] for name in BYTES}


def _assert_copies(trace: TraceProcessor, process: int, totals: dict[str, Any]) -> None:
    """The same bytes were copied on the host and in modelled time."""
    found = trace.query(f"""
        select iif(name glob '* to card *' or name glob 'dma to device *', 'in', 'out') as way,
            {sums_of(("bytes",))}
        from span where pid = {process} and track in ('engine dma', 'modelled dma') group by way
    """)
    copied = {"in": totals["copied_in_bytes"], "out": totals["copied_out_bytes"]}
    assert {row["way"]: row["bytes"] for row in found} == {k: v for k, v in copied.items() if v}


def _assert_times(trace: TraceProcessor, process: int, totals: dict[str, Any]) -> None:
    found = trace.query(f"""
        select track, sum(dur) as shown, count() as spans, {sums_of(("time_ns",))}
        from span where pid = {process} and track not like 'core %' group by track
    """)
    expected = {f"modelled {k}": ns for k, ns in totals["busy_ns"].items()}
    expected["executes"] = totals["compute_ns"]
    for row in found:
        time_ns = expected.pop(row["track"])
        runs = totals["launches"] if row["track"] == "executes" else row["spans"]
        assert row["time_ns"] == pytest.approx(time_ns, rel=1e-9)
        assert abs(row["shown"] - time_ns) <= runs
    assert not any(expected.values())
    last = trace.value(f"select max(ts + dur) - min(ts) from span where pid = {process}")
    assert last == round(totals["makespan_ns"])


def _assert_cores(trace: TraceProcessor, process: int, totals: dict[str, Any]) -> None:
    found = trace.query(f"""
        select track, sum(dur) as shown, count() as spans, {sums_of(("time_ns",))}
        from span where pid = {process} and track like 'core %' group by track
    """)
    busy = {f"core {k}": ns for k, ns in enumerate(totals["core_busy_ns"]) if ns}
    assert {row["track"] for row in found} == set(busy)
    for row in found:
        assert row["time_ns"] == pytest.approx(busy[row["track"]], rel=1e-9)
        assert abs(row["shown"] - busy[row["track"]]) <= row["spans"]
