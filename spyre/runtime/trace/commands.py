"""Command streams as a Chrome trace, for Perfetto: a process per card, tracks in it.

Times are the host's, in microseconds from the first command of all cards, or from the origin of a
`TimeAxis`. The tracks of a card are its streams, engines and cores that were used. Spans on one
track must not overlap. Those of engines and cores never do; those of a stream do if later jobs are
prepared early, and then the stream has several tracks. Files are written piece by piece, so that
their length is not limited by memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from spyre.errors import LaunchError
from spyre.files import atomic_write, writable_target
from spyre.hw.memory import AllocationHistory
from spyre.runtime.flex import Command, CommandStream, Engine, launch_of, recorded_block_of
from spyre.runtime.kernel import ExecutedLaunch
from spyre.runtime.trace.events import (
    HBM_TRACK,
    TraceEvent,
    TraceProcess,
    Track,
    core_track,
    hbm_counters,
    microseconds,
)


@dataclass(frozen=True, slots=True)
class CoreSpan:
    """One dispatch: the same span, on the host's clock, for every core that takes part."""

    name: str
    cores: tuple[int, ...]
    span_ns: tuple[int, int]
    details: Mapping[str, object]


def timed_launch_of(command: Command) -> ExecutedLaunch | None:
    """Return the timed launch of a command, None for other commands."""
    launch = launch_of(command)
    return None if launch is None or launch.elapsed_ns is None else launch


def core_spans(command: Command) -> Iterator[CoreSpan]:
    """Yield the dispatches of a command one after another, without the gaps between them."""
    timed = timed_launch_of(command)
    if timed is None or timed.elapsed_ns is None:
        return
    program, labels = timed.linked.view, timed.label
    dispatches = program.dispatches
    sources = [_source(command, statement.index) for statement in program.statements]
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
        yield CoreSpan(statement.name, dispatches.cores[part], (end - elapsed, end), details)


def _source(command: Command, execute: int) -> dict[str, list[str]]:
    """Return the lines of the user's program, if known."""
    origin = command.block.origin
    places = () if origin is None else origin.places_of(execute)
    return {"source": list(map(str, places))} if places else {}


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


@cache
def engine_track(engine: Engine) -> Track:
    """The track of an engine."""
    return Track(_ENGINES + engine, f"engine {engine.name.lower()}")


@cache
def group_track(group: str) -> Track:
    """Return the track of the collectives of a group; those of several groups may overlap."""
    return Track(_ENGINES + len(Engine) + crc32(group.encode()) % _GROUPS, group)


def execution_track(command: Command) -> Track:
    """Return the track of the engine or group that executes a command."""
    recorded = recorded_block_of(command)
    return engine_track(command.engine) if recorded is None else group_track(recorded.channel)


def lanes_of(commands: CommandStream) -> list[Track]:
    """Return the track of each command: the first one of its stream that is free at its begin."""
    lanes: dict[int, Track] = {}
    ends: dict[int, list[int]] = {}
    for number, command in sorted(enumerate(commands), key=_begin_of):
        lines = ends.setdefault(command.stream_id, [])
        free = (k for k, end in enumerate(lines) if end <= command.begin_ns)
        line = next(free, len(lines))
        lines[line : line + 1] = [command.end_ns]
        lanes[number] = stream_track(command.stream_id, line)
    return [lanes[number] for number in range(len(commands))]


def _begin_of(numbered: tuple[int, Command]) -> tuple[int, int]:
    return numbered[1].begin_ns, numbered[1].end_ns


def used_tracks(commands: CommandStream, lanes: Sequence[Track]) -> Iterator[Track]:
    """Yield the tracks that have spans, in order."""
    yield from sorted(set(lanes))
    yield from sorted({execution_track(c) for c in commands})
    cores = frozenset[int]().union(*(used_cores(c) for c in commands))
    yield from (core_track(core) for core in sorted(cores))


Recordings = Mapping[int, CommandStream]
"""The recording of each card, by its index."""
_PIECE = 4096
"""Events that are encoded at once."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The time axis of another trace that this one is merged with.

    ``origin_ns``: host clock at time 0 of the other trace. ``base_ns``: the same moment in
    nanoseconds since 1970, as written in the other trace. ``first_process``: number of card 0's
    process, not used in the other trace.
    """

    origin_ns: int
    base_ns: int
    first_process: int


def chrome_trace(recordings: Recordings, axis: TimeAxis | None = None) -> dict[str, Any]:
    """Return the trace as the JSON object that Perfetto reads."""
    return {**_head(axis), "traceEvents": list(trace_events(recordings, axis))}


def _head(axis: TimeAxis | None) -> dict[str, Any]:
    base = {} if axis is None else {"baseTimeNanoseconds": axis.base_ns}
    return {"displayTimeUnit": "ns", **base}


def trace_events(recordings: Recordings, axis: TimeAxis | None = None) -> Iterator[TraceEvent]:
    """Yield names of processes and tracks, spans, and arrows between dependent commands."""
    chosen = axis or _own_axis(recordings)
    arrows = 0
    for index, commands in recordings.items():
        card = _CardTrace(index, commands, chosen, arrows)
        yield from card.events()
        arrows = card.arrows


def _own_axis(recordings: Recordings) -> TimeAxis:
    start = min((c.begin_ns for r in recordings.values() for c in r), default=0)
    return TimeAxis(start, 0, 1)  # Perfetto takes process 0 for the idle one


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
    target = check_trace_file(path)
    try:
        with atomic_write(target) as temporary, temporary.open("wb") as file:
            events = chain(trace_events(recordings, axis), more)
            file.writelines(_encoded(_head(axis), events))
    except OSError as error:
        raise _refusal(path, str(error.strerror)) from error


def _refusal(path: Path | str, found: str) -> LaunchError:
    return LaunchError(
        "SPY886",
        f"cannot write the trace {path}",
        expected="a file in a directory that may be written",
        found=found,
    )


def _encoded(head: Mapping[str, Any], events: Iterable[TraceEvent]) -> Iterator[bytes]:
    """Yield the JSON text of the trace in pieces."""
    source = iter(events)
    # The list is written in pieces, because the events of a long recording may not fit into memory.
    separator = msgspec.json.encode(head)[:-1] + b',"traceEvents":['
    while piece := list(islice(source, _PIECE)):
        yield separator + msgspec.json.encode(piece)[1:-1]
        separator = b",\n"
    yield b"]}\n" if separator == b",\n" else separator + b"]}\n"


class _CardTrace:
    """The events of one card. ``arrows``: number of arrows so far, in all cards."""

    def __init__(self, index: int, commands: CommandStream, axis: TimeAxis, arrows: int) -> None:
        self.arrows = arrows
        self._index = index
        self._commands = commands
        self._origin_ns = axis.origin_ns
        self._lanes = lanes_of(commands)
        self._process = TraceProcess(axis.first_process + index)
        self._sources: dict[str, tuple[Command, Track]] = {}

    def events(self) -> Iterator[TraceEvent]:
        """Yield all events of the card."""
        tracks = used_tracks(self._commands, self._lanes)
        yield from self._process.names(f"Spyre device {self._index}", self._index, tracks)
        for command, lane in zip(self._commands, self._lanes, strict=True):
            yield from self._spans(command, lane)
            yield from self._arrows(command, lane)
            self._sources[command.label] = (command, lane)
        if self._commands.memory is not None and len(self._commands):
            yield from self._memory(self._commands.memory)

    def _memory(self, history: AllocationHistory) -> Iterator[TraceEvent]:
        """Yield the counters of allocated bytes, from the first command on."""
        first_ns = min(command.begin_ns for command in self._commands)
        # The recording begins before the first command, which is time 0 of the trace.
        clock_ns = np.maximum(np.append(first_ns, history.times_ns), first_ns)
        moments = clock_ns - self._origin_ns
        values = hbm_counters(history.allocated_bytes)
        yield from self._process.counters(HBM_TRACK, moments, values)

    def _spans(self, command: Command, lane: Track) -> Iterator[TraceEvent]:
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
        name, span = f"{block.kind} {block.name}", (command.begin_ns, command.end_ns)
        for track in (lane, execution_track(command)):
            yield self._span(name, block.kind, track, span, details)
        for part in core_spans(command):
            for core in part.cores:
                yield self._span(part.name, "execute", core_track(core), part.span_ns, part.details)

    def _span(
        self,
        name: str,
        category: str,
        track: Track,
        clock_ns: tuple[int, int],
        details: Mapping[str, object],
    ) -> TraceEvent:
        begin, end = (each - self._origin_ns for each in clock_ns)
        return self._process.span(name, category, track, (begin, end), details)

    def _arrows(self, command: Command, lane: Track) -> Iterator[TraceEvent]:
        """Yield arrows from the recorded commands that ``command`` waited for, between streams."""
        for label in command.after:
            if label not in self._sources:
                continue  # it ran before the recording
            source, source_lane = self._sources[label]
            self.arrows += 1
            head = {"name": "after", "cat": "after", "id": self.arrows}
            head["pid"] = self._process.number
            begin, end = self._microseconds(source.begin_ns), self._microseconds(command.begin_ns)
            yield {"ph": "s", **head, "tid": source_lane.number, "ts": begin}
            yield {"ph": "f", "bp": "e", **head, "tid": lane.number, "ts": end}

    def _microseconds(self, clock_ns: int) -> float:
        return microseconds(clock_ns - self._origin_ns)
