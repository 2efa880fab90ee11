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

from collections.abc import Iterator, Sequence

import numpy as np

from spyre.hw.cost import Resource, Span
from spyre.hw.counters import CORE_COLUMNS, Counters
from spyre.layout import Int64Array
from spyre.runtime.profile.kernels import ExecuteProfile, Float64Array, KernelProfile
from spyre.runtime.profile.profile import Profile
from spyre.runtime.trace import (
    HBM_TRACK,
    TraceEvent,
    TraceProcess,
    Track,
    core_track,
    hbm_counters,
    places_object,
)

PROCESSES = 100
"""Difference of the numbers of a card's processes with modelled time and with the host's."""
RESOURCE_TRACKS = {r: Track(10 + k, f"modelled {r}") for k, r in enumerate(Resource)}
EXECUTES = Track(20, "executes")
LX = "LX bytes of a core"
_CATEGORY = "modelled"


def modelled_events(
    profile: Profile, card: int = 0, first_process: int = 1, begin_ns: int = 0
) -> Iterator[TraceEvent]:
    """Yield names of the process and its tracks, and spans. ``begin_ns``: of modelled time."""
    process = TraceProcess(first_process + PROCESSES + card, -begin_ns)
    title = f"Spyre device {card}, modelled ({profile.cost_model})"
    yield from process.names(title, process.number, _tracks(profile))
    yield from _task_spans(process, profile)
    for kernel, task in profile.launches:
        yield from _launch_spans(process, profile, kernel, task)
    if profile.hbm is not None and profile.activities:
        thin = profile.hbm.thinned()
        moments = np.rint(thin.time_ns).astype(np.int64)
        yield from process.counters(HBM_TRACK, moments, hbm_counters(thin.allocated_bytes))
    times_ns, live_bytes = lx_live_bytes(profile)
    if live_bytes.any():
        moments = np.rint(times_ns).astype(np.int64)
        yield from process.counters(LX, moments, {"live": live_bytes})


def _tracks(profile: Profile) -> list[Track]:
    """The tracks that have spans, in order."""
    cores = sorted({c for _, e in profile.executes for c in e.cores})
    used = {task.resource for task in profile.timeline.tasks}
    tracks = [RESOURCE_TRACKS[r] for r in Resource if r in used]
    return [*tracks, *([EXECUTES] if cores else []), *map(core_track, cores)]


def _task_spans(process: TraceProcess, profile: Profile) -> Iterator[TraceEvent]:
    """Yield the spans of the timeline."""
    rows = zip(profile.timeline.tasks, profile.timeline.spans, profile.owners, strict=True)
    for task, span, owner in rows:
        activity = profile.activities[owner]
        details = {
            "block": activity.label,
            "stream": activity.stream,
            "bytes": activity.size_bytes,
            "time_ns": task.duration_ns,
        }
        name, track = f"{task.kind} {activity.name}", RESOURCE_TRACKS[task.resource]
        yield process.span(name, _CATEGORY, track, (span.begin_ns, span.end_ns), details)


def _launch_spans(
    process: TraceProcess, profile: Profile, kernel: KernelProfile, task: int
) -> Iterator[TraceEvent]:
    """Yield the executions of a launch, on the track of executes and those of the cores."""
    executions, origin = kernel.view.executions, profile.activities[profile.owners[task]].origin
    columns = (executions.statement, executions.instance, kernel.end_ns - kernel.begin_ns)
    placed = within(profile.timeline.spans[task], kernel.begin_ns, kernel.end_ns)
    rows = zip(*(column.tolist() for column in (*columns, *placed)), strict=True)
    heads = {
        statement: {
            "execute": execute.index,
            "sdsc": execute.sdsc,
            "bound": str(execute.bound),
            **places_object(origin, statement),
        }
        for statement, execute in kernel.by_statement.items()
    }
    cores = {statement: _core_rows(e) for statement, e in kernel.by_statement.items()}
    for statement, instance, time, begin, end in rows:
        execute, head = kernel.by_statement[statement], heads[statement]
        total = execute.statement.counters
        counts = _parts(Counters.__struct_fields__, total.values, total.executions, instance)
        details = {**head, "time_ns": time, **counts}
        yield process.span(execute.op, _CATEGORY, EXECUTES, (begin, end), details)
        for core, share, row in cores[statement]:
            busy = (begin, min(begin + (end - begin) * share, end))
            counts = _parts(CORE_COLUMNS, row, total.executions, instance)
            details = {**head, "time_ns": time * share, **counts}
            yield process.span(execute.op, _CATEGORY, core_track(core), busy, details)


def _core_rows(execute: ExecuteProfile) -> list[tuple[int, float, list[int]]]:
    """Each core that takes part, with its busy share and its counts of all executions."""
    counts = execute.statement.core_counts
    return [
        (core, float(execute.core_shares[core]), counts[core].tolist()) for core in execute.cores
    ]


def lx_live_bytes(profile: Profile) -> tuple[Float64Array, Int64Array]:
    """Moments (ns) and the bytes live in a scratchpad from each; between launches it is empty."""
    times, live = [np.zeros(1)], [np.zeros(1, np.int64)]
    placed = [(profile.timeline.spans[task], kernel) for kernel, task in profile.launches]
    for span, kernel in sorted(placed, key=lambda each: each[0].begin_ns):
        times += [within(span, kernel.begin_ns, kernel.end_ns)[0], np.array([span.end_ns])]
        live += [kernel.lx_live_bytes, np.zeros(1, np.int64)]
    return np.concatenate(times), np.concatenate(live)


def within(
    launch: Span, begin_ns: Float64Array, end_ns: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Return the begins and ends of a launch's executions, limited to its end despite rounding."""
    begins, ends = (
        np.minimum(each + launch.begin_ns, launch.end_ns) for each in (begin_ns, end_ns)
    )
    return begins, ends


def _parts(names: Sequence[str], totals: Sequence[int], count: int, k: int) -> dict[str, int]:
    return {name: part_of(total, count, k) for name, total in zip(names, totals, strict=True)}


def part_of(total: int, count: int, k: int) -> int:
    """Return the part of ``total`` for execution ``k`` of ``count``; parts differ by at most 1."""
    return total * (k + 1) // count - total * k // count
