"""Command streams as a Chrome trace, for Perfetto: a process per card, tracks in it.

Times are the host's, in microseconds from the first command of all cards, or from where a
`TimeAxis` says. A card's tracks are its streams, engines and cores, as far as they did something.
Files of any length are written piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from spyre.errors import LaunchError
from spyre.hw.region_history import RegionHistory
from spyre.runtime.flex.command_stream import Command, CommandStream
from spyre.runtime.flex.trace_cores import core_spans
from spyre.runtime.flex.trace_counters import HBM, counter_events, hbm_counters
from spyre.runtime.flex.trace_time import microseconds
from spyre.runtime.flex.trace_tracks import Track, core_track, engine_track, lanes_of, used_tracks
from spyre.whole_file import whole_file, writable_target

Event = dict[str, Any]
Recordings = Mapping[int, CommandStream]
"""What was recorded, by index of the card."""
_PIECE = 4096
"""Events that are encoded at once."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """How the times of a trace relate to those of another one it is shown with.

    ``origin_ns``: the host clock where the other one's times are 0. ``base_ns``: the same moment in
    nanoseconds since 1970, as the other one names it. ``first_process``: number of card 0's process
    in the trace, different from all of the other one's.
    """

    origin_ns: int
    base_ns: int
    first_process: int


def chrome_trace(recordings: Recordings, axis: TimeAxis | None = None) -> dict[str, Any]:
    """The trace as the JSON object that Perfetto reads."""
    return {**_head(axis), "traceEvents": list(trace_events(recordings, axis))}


def _head(axis: TimeAxis | None) -> dict[str, Any]:
    base = {} if axis is None else {"baseTimeNanoseconds": axis.base_ns}
    return {"displayTimeUnit": "ns", **base}


def trace_events(recordings: Recordings, axis: TimeAxis | None = None) -> Iterator[Event]:
    """Names of all processes and tracks, spans, and arrows to what waited for them."""
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
    """Where a trace goes, symbolic links followed. LaunchError SPY886 when nothing can be there."""
    return writable_target(path, partial(_refusal, path))


def write_trace(
    path: Path | str,
    recordings: Recordings,
    axis: TimeAxis | None = None,
    more: Iterable[Event] = (),
) -> None:
    """Write a trace; the file appears whole or not at all. ``more``: events of other processes.

    LaunchError SPY886 when it cannot be written.
    """
    target = check_trace_file(path)
    try:
        with whole_file(target) as place, place.open("wb") as file:
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


def _encoded(head: Mapping[str, Any], events: Iterable[Event]) -> Iterator[bytes]:
    """The JSON text of the trace, in pieces."""
    source = iter(events)
    separator = msgspec.json.encode(head)[:-1] + b',"traceEvents":['
    while piece := list(islice(source, _PIECE)):
        yield separator + msgspec.json.encode(piece)[1:-1]
        separator = b",\n"
    yield b"]}\n" if separator == b",\n" else separator + b"]}\n"


class _CardTrace:
    """The events of one card. ``arrows``: numbers given to arrows until now."""

    def __init__(self, index: int, commands: CommandStream, axis: TimeAxis, arrows: int) -> None:
        self.arrows = arrows
        self._index = index
        self._commands = commands
        self._origin_ns = axis.origin_ns
        self._lanes = lanes_of(commands)
        self._process = axis.first_process + index
        self._sources: dict[str, tuple[Command, Track]] = {}

    def events(self) -> Iterator[Event]:
        """Everything about the card."""
        yield self._name("process_name", 0, name=f"Spyre device {self._index}")
        yield self._name("process_sort_index", 0, sort_index=self._index)
        for track in used_tracks(self._commands, self._lanes):
            yield self._name("thread_name", track.number, name=track.name)
            yield self._name("thread_sort_index", track.number, sort_index=track.number)
        for command, lane in zip(self._commands, self._lanes, strict=True):
            yield from self._spans(command, lane)
            yield from self._arrows(command, lane)
            self._sources[command.label] = (command, lane)
        if self._commands.memory is not None and len(self._commands):
            yield from self._memory(self._commands.memory)

    def _memory(self, found: RegionHistory) -> Iterator[Event]:
        """What is allocated, from the first command on."""
        first_ns = min(command.begin_ns for command in self._commands)
        clock_ns = np.maximum(np.append(first_ns, found.times_ns), first_ns)
        moments = clock_ns - self._origin_ns
        yield from counter_events(self._process, HBM, moments, hbm_counters(found.allocated_bytes))

    def _name(self, kind: str, track: int, **content: object) -> Event:
        head = {"ph": "M", "name": kind, "pid": self._process, "tid": track, "ts": 0}
        return {**head, "args": content}

    def _spans(self, command: Command, lane: Track) -> Iterator[Event]:
        block = command.block
        details = {
            "block": command.label,
            "stream": command.stream_id,
            "iteration": command.iteration,
            "after": list(command.after),
            "bytes": block.size_bytes,
            "addresses": [str(place) for place in block.places],
        }
        if command.error:
            details["error"] = command.error
        name, span = f"{block.kind} {block.name}", (command.begin_ns, command.end_ns)
        for track in (lane, engine_track(command.engine)):
            yield self._span(name, block.kind, track, span, details)
        for part in core_spans(command):
            for core in part.cores:
                yield self._span(part.name, "execute", core_track(core), part.span_ns, part.details)

    def _span(
        self,
        name: str,
        category: str,
        track: Track,
        span_ns: tuple[int, int],
        details: Mapping[str, object],
    ) -> Event:
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": self._process,
            "tid": track.number,
            "ts": self._microseconds(span_ns[0]),
            "dur": (span_ns[1] - span_ns[0]) / 1000,
            "args": details,
        }

    def _arrows(self, command: Command, lane: Track) -> Iterator[Event]:
        """From each recorded block that ``command`` waited for, on the tracks of the streams."""
        for label in command.after:
            if label not in self._sources:
                continue  # it ran before the recording
            source, source_lane = self._sources[label]
            self.arrows += 1
            head = {"name": "after", "cat": "after", "id": self.arrows, "pid": self._process}
            begin, end = self._microseconds(source.begin_ns), self._microseconds(command.begin_ns)
            yield {"ph": "s", **head, "tid": source_lane.number, "ts": begin}
            yield {"ph": "f", "bp": "e", **head, "tid": lane.number, "ts": end}

    def _microseconds(self, clock_ns: int) -> float:
        return microseconds(clock_ns - self._origin_ns)
