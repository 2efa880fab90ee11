"""Command streams as a Chrome trace, for Perfetto: a process per card, tracks in it.

Times are the host's, in microseconds from the first command of all cards, or from the origin of a
`TimeAxis`. The tracks of a card are its streams, engines and cores that were used. Spans on one
track must not overlap. Those of engines and cores never do; those of a stream do if later jobs are
prepared early, and then the stream has several tracks. Files are written piece by piece, so that
their length is not limited by memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, count, islice
from math import nextafter
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from spyre.errors import LaunchError
from spyre.files import replaced_file, writable_target
from spyre.hw.memory import PROGRAM_REGION
from spyre.layout import Int64Array
from spyre.runtime.flex import (
    Command,
    CommandStream,
    Engine,
    SourceLines,
    launch_of,
    recorded_block_of,
)
from spyre.runtime.kernel import ExecutedLaunch

# --- events ---------------------------------------------------------------------------------------

TraceEvent = dict[str, Any]
HBM_TRACK = "HBM bytes allocated"
_FIRST_CORE = 3000
"""Number of core 0's track: below those of streams and engines."""


class Track(NamedTuple):
    """A row of the trace, sorted by ``number``. Spans on one track must not overlap."""

    number: int
    name: str


@cache
def core_track(core: int) -> Track:
    """The track of a core."""
    return Track(_FIRST_CORE + core, f"core {core}")


class TraceProcess(msgspec.Struct, frozen=True):
    """Makes the events of a process from times in nanoseconds on a clock.

    ``origin_ns``: the moment of the clock that is the begin of the trace.
    """

    number: int
    origin_ns: int = 0

    def names(self, title: str, sort_index: int, tracks: Iterable[Track]) -> Iterator[TraceEvent]:
        """Yield the names of the process and its tracks. ``sort_index``: of the process."""
        yield self._metadata("process_name", 0, name=title)
        yield self._metadata("process_sort_index", 0, sort_index=sort_index)
        for track in tracks:
            yield self._metadata("thread_name", track.number, name=track.name)
            yield self._metadata("thread_sort_index", track.number, sort_index=track.number)

    def _metadata(self, kind: str, track: int, **content: object) -> TraceEvent:
        head = {"ph": "M", "name": kind, "pid": self.number, "tid": track, "ts": 0}
        return {**head, "args": content}

    def span(
        self,
        name: str,
        category: str,
        track: Track,
        span_ns: tuple[float, float],
        details: Mapping[str, object],
    ) -> TraceEvent:
        """Return an event from begin to end, rounded to whole nanoseconds."""
        # Ends are rounded, not lengths: neighbours then meet. Perfetto drops spans that overlap.
        begin_ns, end_ns = (round(each) - self.origin_ns for each in span_ns)
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": self.number,
            "tid": track.number,
            "ts": microseconds(begin_ns),
            "dur": (end_ns - begin_ns) / 1000,
            "args": details,
        }

    def arrow(
        self, number: int, begin_ns: int, source: Track, end_ns: int, target: Track
    ) -> Iterator[TraceEvent]:
        """Yield both ends of an arrow. ``number``: not used by another arrow of the trace."""
        head = {"name": "after", "cat": "after", "id": number, "pid": self.number}
        begin, end = (microseconds(each - self.origin_ns) for each in (begin_ns, end_ns))
        yield {"ph": "s", **head, "tid": source.number, "ts": begin}
        yield {"ph": "f", "bp": "e", **head, "tid": target.number, "ts": end}

    def counters(
        self, name: str, times_ns: Int64Array, values: Mapping[str, Int64Array]
    ) -> Iterator[TraceEvent]:
        """Yield an event per moment with all ``values``, which Perfetto shows as separate tracks.

        ``values``: [moments], like the times. Moments without a change are left out.
        """
        # Perfetto holds a counter until its next event: repeating a value only makes files larger.
        rows = np.stack(list(values.values()), axis=1)
        changed = np.append(True, (np.diff(rows, axis=0) != 0).any(axis=1))
        moments = times_ns[changed] - self.origin_ns
        for moment, row in zip(moments.tolist(), rows[changed].tolist(), strict=True):
            ts = microseconds(moment)
            head = {"ph": "C", "name": name, "pid": self.number, "tid": 0, "ts": ts}
            yield {**head, "args": dict(zip(values, row, strict=True))}


def microseconds(time_ns: int) -> float:
    """Return the microseconds that Perfetto reads as ``time_ns``, for 0 to 2**53 (100 days).

    Perfetto multiplies by 1000 and rounds. From 2**42 µs on, floats are almost a nanosecond from
    each other, so the product of the nearest float may be rounded up; then the float below is
    returned.
    """
    nearest = time_ns / 1000
    return nearest if nearest * 1000 - time_ns < 0.5 else nextafter(nearest, 0.0)


def hbm_counters(allocated_bytes: Int64Array) -> dict[str, Int64Array]:
    """Return the columns of the used regions by name. ``allocated_bytes``: [moments, REGIONS].

    Without any used region, the first one is returned.
    """
    used = np.flatnonzero(allocated_bytes.any(axis=0)).tolist() or [0]
    return {region_name(region): allocated_bytes[:, region] for region in used}


def region_name(region: int) -> str:
    """Return the name of a region of device memory in reports and traces."""
    return "programs" if region == PROGRAM_REGION else f"region {region}"


# --- tracks of a card -----------------------------------------------------------------------------


def timed_launch_of(command: Command) -> ExecutedLaunch | None:
    """Return the timed launch of a command, None for other commands."""
    launch = launch_of(command)
    return None if launch is None or launch.elapsed_ns is None else launch


def used_cores(command: Command) -> frozenset[int]:
    """Return the cores that took part in a command."""
    timed = timed_launch_of(command)
    if timed is None:
        return frozenset()
    return frozenset(core for s in timed.linked.view.statements for core in s.cores)


_STREAMS = 1000
_ENGINES = 2000
_GROUPS = 900
_LINES = len(Engine)
"""Maximum number of tracks of a stream, which has at most one span per engine at a time."""


@cache
def stream_track(stream_id: int, line: int) -> Track:
    """Return a track of a stream; it has several if its spans overlap."""
    name = f"stream {stream_id}" if line == 0 else f"stream {stream_id} ({line + 1})"
    return Track(_STREAMS + stream_id * _LINES + line, name)


def execution_track(command: Command) -> Track:
    """Return the track of the engine or group that executes a command."""
    recorded = recorded_block_of(command)
    if recorded is not None and (group := recorded.channel):
        # Collectives of several groups may overlap.
        return Track(_ENGINES + len(Engine) + crc32(group.encode()) % _GROUPS, group)
    return Track(_ENGINES + command.engine, f"engine {command.engine.name.lower()}")


def lanes_of(commands: CommandStream) -> list[Track]:
    """Return the track of each command: the first one of its stream that is free at its begin."""
    lanes: dict[int, Track] = {}
    ends: dict[int, list[int]] = {}
    for number, command in sorted(
        enumerate(commands), key=lambda each: (each[1].begin_ns, each[1].end_ns)
    ):
        lines = ends.setdefault(command.stream_id, [])
        free = (k for k, end in enumerate(lines) if end <= command.begin_ns)
        line = next(free, len(lines))
        lines[line : line + 1] = [command.end_ns]
        lanes[number] = stream_track(command.stream_id, line)
    return [lanes[number] for number in range(len(commands))]


def used_tracks(commands: CommandStream, lanes: Sequence[Track]) -> Iterator[Track]:
    """Yield the tracks that have spans, in order."""
    yield from sorted(set(lanes))
    yield from sorted({execution_track(c) for c in commands})
    cores = frozenset[int]().union(*(used_cores(c) for c in commands))
    yield from (core_track(core) for core in sorted(cores))


# --- traces ---------------------------------------------------------------------------------------

Recordings = Mapping[int, CommandStream]
"""The recording of each card, by its index."""
_PIECE = 4096
"""Events that are encoded at once."""


class TimeAxis(msgspec.Struct, frozen=True):
    """The time axis of another trace that this one is merged with.

    ``origin_ns``: host clock at time 0 of the other trace. ``base_ns``: the same moment in
    nanoseconds since 1970, as written in the other trace. ``first_process``: number of card 0's
    process, not used in the other trace.
    """

    origin_ns: int
    base_ns: int
    first_process: int


def trace_events(recordings: Recordings, axis: TimeAxis | None = None) -> Iterator[TraceEvent]:
    """Yield names of processes and tracks, spans, and arrows between dependent commands."""
    if axis is None:
        start = min((c.begin_ns for r in recordings.values() for c in r), default=0)
        axis = TimeAxis(start, 0, 1)  # Perfetto takes process 0 for the idle one
    arrows = count(1)
    for index, commands in recordings.items():
        yield from _card_events(index, commands, axis, arrows)


def check_trace_file(path: Path | str) -> Path:
    """Return the path to write, symbolic links resolved. LaunchError SPY886 if it is refused."""
    return writable_target(path, partial(_refusal, path))


def write_trace(
    path: Path | str,
    recordings: Recordings,
    axis: TimeAxis | None = None,
    more: Iterable[TraceEvent] = (),
) -> None:
    """Write a trace, completely or not at all. ``more``: events of other processes.

    LaunchError SPY886 if it cannot be written.
    """
    with replaced_file(path, partial(_refusal, path)) as temporary, temporary.open("wb") as file:
        events = chain(trace_events(recordings, axis), more)
        base = {} if axis is None else {"baseTimeNanoseconds": axis.base_ns}
        file.writelines(_encoded({"displayTimeUnit": "ns", **base}, events))


def _refusal(path: Path | str, found: str) -> LaunchError:
    expected = "a file in a directory that may be written"
    return LaunchError("SPY886", f"cannot write the trace {path}", expected=expected, found=found)


def _encoded(head: Mapping[str, Any], events: Iterable[TraceEvent]) -> Iterator[bytes]:
    """Yield the JSON text of the trace in pieces."""
    source = iter(events)
    # The list is written in pieces, because the events of a long recording may not fit into memory.
    separator = msgspec.json.encode(head)[:-1] + b',"traceEvents":['
    while piece := list(islice(source, _PIECE)):
        yield separator + msgspec.json.encode(piece)[1:-1]
        separator = b",\n"
    yield b"]}\n" if separator == b",\n" else separator + b"]}\n"


def _card_events(
    index: int, commands: CommandStream, axis: TimeAxis, arrows: Iterator[int]
) -> Iterator[TraceEvent]:
    """Yield the events of one card. ``arrows``: numbers for the arrows of all cards."""
    process = TraceProcess(axis.first_process + index, axis.origin_ns)
    lanes = lanes_of(commands)
    yield from process.names(f"Spyre device {index}", index, used_tracks(commands, lanes))
    begun: dict[str, tuple[int, Track]] = {}
    for command, lane in zip(commands, lanes, strict=True):
        yield from _command_spans(process, command, lane)
        yield from _dispatch_spans(process, command)
        for label in command.after:
            if label in begun:  # others ran before the recording
                yield from process.arrow(next(arrows), *begun[label], command.begin_ns, lane)
        begun[command.label] = command.begin_ns, lane
    if commands.memory is not None and len(commands):
        # The recording begins before the first command, which is time 0 of the trace.
        history, first_ns = commands.memory, min(command.begin_ns for command in commands)
        moments = np.maximum(np.append(first_ns, history.times_ns), first_ns)
        yield from process.counters(HBM_TRACK, moments, hbm_counters(history.allocated_bytes))


def _command_spans(process: TraceProcess, command: Command, lane: Track) -> Iterator[TraceEvent]:
    """Yield the span of a command on the track of its stream and on that of its engine."""
    block = command.block
    details = {
        "block": command.label,
        "stream": command.stream_id,
        "iteration": command.iteration,
        "after": list(command.after),
        "bytes": block.size_bytes,
        "addresses": [str(place) for place in block.places],
    }
    noted = recorded_block_of(command)
    if noted is not None:
        details |= noted.shown
    if command.error:
        details["error"] = command.error
    name, span_ns = f"{block.kind} {block.name}", (command.begin_ns, command.end_ns)
    for track in (lane, execution_track(command)):
        yield process.span(name, block.kind, track, span_ns, details)


def _dispatch_spans(process: TraceProcess, command: Command) -> Iterator[TraceEvent]:
    """Yield the dispatches of a command, one after another without the gaps between them.

    A dispatch has the same span on every core that takes part.
    """
    timed = timed_launch_of(command)
    if timed is None or timed.elapsed_ns is None:
        return
    program, labels, origin = timed.linked.view, timed.label, command.block.origin
    dispatches = program.dispatches
    sources = [places_object(origin, statement.index) for statement in program.statements]
    ends = np.cumsum(timed.elapsed_ns) + timed.begin_ns
    columns = (dispatches.statement, dispatches.instance, dispatches.part, timed.elapsed_ns, ends)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for index, instance, part, elapsed, end in rows:
        statement = program.statements[index]
        details = {
            "block": command.label,
            "iteration": command.iteration,
            "execute": labels.first_execute + index,
            "instance": instance,
            "loop_indices": list(program.loop_indices(index, instance)),
            "sdsc": labels.sdsc(statement.source),
            **sources[index],
        }
        for core in dispatches.cores[part]:
            span_ns = end - elapsed, end
            yield process.span(statement.name, "execute", core_track(core), span_ns, details)


def places_object(origin: SourceLines | None, execute: int) -> dict[str, list[str]]:
    """Return the lines of the user's program for the details of an execute, if known."""
    places = () if origin is None else origin.places_of(execute)
    return {"source": list(map(str, places))} if places else {}
