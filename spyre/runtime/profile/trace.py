"""Modelled time as a process of a Chrome trace, next to the host's time of the same run.

The tracks are host, DMA engine, launching, compute, executes and cores, and counters of the bytes
in HBM and LX. Spans of the track ``executes`` have the counters of all cores, spans of a core those
of this core; their sums are the counters of the profile. The counters of a statement are divided
evenly among its executions, in whole numbers.

Perfetto rounds the begin and the length of a span to nanoseconds separately and drops spans that
overlap then. Spans therefore begin and end at whole nanoseconds; ``time_ns`` is the modelled
length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from spyre.hw.cost import Resource, Span
from spyre.hw.counters import CORE_COLUMNS, Counters
from spyre.layout import Int64Array
from spyre.runtime.profile.data import ProfileData, TimelineLaunch
from spyre.runtime.profile.kernels import (
    ExecuteProfile,
    Float64Array,
    KernelProfile,
    part_of,
)
from spyre.runtime.trace import HBM_TRACK, TraceEvent, TraceProcess, Track, core_track, hbm_counters

PROCESSES = 100
"""Difference of the numbers of a card's processes with modelled time and with the host's."""
RESOURCE_TRACKS = {r: Track(10 + k, f"modelled {r}") for k, r in enumerate(Resource)}
EXECUTES = Track(20, "executes")
LX = "LX bytes of a core"


def modelled_events(
    profile: ProfileData, card: int = 0, first_process: int = 1, begin_ns: int = 0
) -> Iterator[TraceEvent]:
    """Yield names of the process and its tracks, and spans. ``begin_ns``: of modelled time."""
    process = first_process + PROCESSES + card
    writer = _ModelledTrace(profile, process, begin_ns)
    yield from writer.names(f"Spyre device {card}, modelled ({profile.cost_model})")
    yield from writer.tasks()
    for launch in profile.launches:
        yield from writer.launch(launch)
    yield from writer.memory()


class _ModelledTrace:
    """Events of one process."""

    def __init__(self, profile: ProfileData, process: int, begin_ns: int) -> None:
        self._profile = profile
        self._process = TraceProcess(process)
        self._begin_ns = begin_ns
        self._parts: dict[int, _KernelParts] = {}

    def names(self, title: str) -> Iterator[TraceEvent]:
        """Metadata."""
        cores = sorted({c for _, e in self._profile.executes for c in e.cores})
        used = {task.resource for task in self._profile.timeline.tasks}
        tracks = [RESOURCE_TRACKS[r] for r in Resource if r in used]
        if cores:
            tracks.append(EXECUTES)
        tracks += map(core_track, cores)
        yield from self._process.names(title, self._process.number, tracks)

    def tasks(self) -> Iterator[TraceEvent]:
        """Yield the spans of the timeline."""
        profile = self._profile
        rows = zip(profile.timeline.tasks, profile.timeline.spans, profile.owners, strict=True)
        for task, span, owner in rows:
            activity = profile.activities[owner]
            details = {
                "block": activity.label,
                "stream": activity.stream,
                "bytes": activity.size_bytes,
                "time_ns": task.duration_ns,
            }
            name = f"{task.kind} {activity.name}"
            span_ns = (span.begin_ns, span.end_ns)
            yield self._span(name, RESOURCE_TRACKS[task.resource], span_ns, details)

    def launch(self, launch: TimelineLaunch) -> Iterator[TraceEvent]:
        """Yield the executions of a launch, on the track of executes and those of the cores."""
        kernel = self._profile.kernels[launch.kernel]
        parts = self._parts.setdefault(launch.kernel, _KernelParts(kernel))
        model, executions = kernel.model, kernel.model.executions
        times = model.end_ns - model.begin_ns
        columns = (executions.statement, executions.instance, times)
        placed = within(self._profile.span_of(launch), model.begin_ns, model.end_ns)
        rows = zip(*(column.tolist() for column in (*columns, *placed)), strict=True)
        heads = {s: self._head(launch, kernel.execute_of(s)) for s in kernel.model.times}
        for statement, instance, time, begin, end in rows:
            execute, head = kernel.execute_of(statement), heads[statement]
            details = {**head, "time_ns": time, **parts.counters(execute, instance)}
            yield self._span(execute.op, EXECUTES, (begin, end), details)
            for core, share, counts in parts.cores(execute, instance):
                busy = (begin, min(begin + (end - begin) * share, end))
                details = {**head, "time_ns": time * share, **counts}
                yield self._span(execute.op, core_track(core), busy, details)

    def _head(self, launch: TimelineLaunch, execute: ExecuteProfile) -> dict[str, object]:
        origin = self._profile.origin_of(launch)
        places = () if origin is None else origin.places_of(execute.statement.index)
        source = {"source": list(map(str, places))} if places else {}
        bound = str(execute.bound)
        return {"execute": execute.index, "sdsc": execute.sdsc, "bound": bound, **source}

    def memory(self) -> Iterator[TraceEvent]:
        """Yield the counters of bytes allocated in HBM and of live bytes in a scratchpad."""
        occupancy = self._profile.hbm
        if occupancy is not None and self._profile.activities:
            thin = occupancy.thinned()
            values = hbm_counters(thin.allocated_bytes)
            yield from self._counter(HBM_TRACK, thin.time_ns, values)
        times_ns, live_bytes = lx_live_bytes(self._profile)
        if live_bytes.any():
            yield from self._counter(LX, times_ns, {"live": live_bytes})

    def _counter(
        self, name: str, times_ns: Float64Array, values: Mapping[str, Int64Array]
    ) -> Iterator[TraceEvent]:
        moments = self._begin_ns + np.rint(times_ns).astype(np.int64)
        return self._process.counters(name, moments, values)

    def _span(
        self, name: str, track: Track, span_ns: tuple[float, float], details: Mapping[str, object]
    ) -> TraceEvent:
        # Ends are rounded, not lengths: neighbours then meet (see above).
        begin, end = (self._begin_ns + round(each) for each in span_ns)
        return self._process.span(name, "modelled", track, (begin, end), details)


def lx_live_bytes(profile: ProfileData) -> tuple[Float64Array, Int64Array]:
    """Return ascending moments (ns) and the live bytes of a scratchpad from each to the next.

    Between launches it is empty.
    """
    times, live = [np.zeros(1)], [np.zeros(1, np.int64)]
    for launch in sorted(profile.launches, key=lambda each: profile.span_of(each).begin_ns):
        model, span = profile.kernels[launch.kernel].model, profile.span_of(launch)
        times += [within(span, model.begin_ns, model.end_ns)[0], np.array([span.end_ns])]
        live += [model.lx_live_bytes, np.zeros(1, np.int64)]
    return np.concatenate(times), np.concatenate(live)


def within(
    launch: Span, begin_ns: Float64Array, end_ns: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Return the begins and ends of a launch's executions, limited to its end despite rounding."""
    begins, ends = (
        np.minimum(each + launch.begin_ns, launch.end_ns) for each in (begin_ns, end_ns)
    )
    return begins, ends


class _KernelParts:
    """The counters of a kernel's executes, divided among their executions."""

    def __init__(self, kernel: KernelProfile) -> None:
        self._cores = {
            e.index: [
                (core, float(e.core_shares[core]), e.statement.core_counts[core].tolist())
                for core in e.cores
            ]
            for e in kernel.executes
        }

    def counters(self, execute: ExecuteProfile, instance: int) -> dict[str, int]:
        """Return the counters of one execution."""
        total = execute.statement.counters
        return _parts(Counters.__slots__, total.values, total.executions, instance)

    def cores(
        self, execute: ExecuteProfile, instance: int
    ) -> Iterator[tuple[int, float, dict[str, int]]]:
        """Yield each core with its busy share and its counts of one execution."""
        count = execute.statement.counters.executions
        for core, share, row in self._cores[execute.index]:
            yield core, share, _parts(CORE_COLUMNS, row, count, instance)


def _parts(names: Sequence[str], totals: Sequence[int], count: int, k: int) -> dict[str, int]:
    return {name: part_of(total, count, k) for name, total in zip(names, totals, strict=True)}
