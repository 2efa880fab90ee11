"""The tracks of a card in a trace: streams first, then engines, then cores.

Spans on one track must not overlap. The spans of an engine do not, nor those of cores; those of a
stream may, where preparation of later jobs looks ahead: it gets further lines then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from spyre.runtime.flex.command_stream import Command, CommandStream
from spyre.runtime.flex.engine import Engine
from spyre.runtime.flex.trace_cores import used_cores

_STREAMS = 1000
_ENGINES = 2000
_CORES = 3000
_LINES = len(Engine)
"""Lines of a stream at most: it has one span per engine at a time."""


class Track(NamedTuple):
    """A line of the trace; they are shown in order of ``number``."""

    number: int
    name: str


@cache
def stream_track(stream_id: int, line: int) -> Track:
    """A line of a stream; a stream has further ones where its spans overlap."""
    name = f"stream {stream_id}" if line == 0 else f"stream {stream_id} ({line + 1})"
    return Track(_STREAMS + stream_id * _LINES + line, name)


@cache
def engine_track(engine: Engine) -> Track:
    """The track of an engine."""
    return Track(_ENGINES + engine, f"engine {engine.name.lower()}")


@cache
def core_track(core: int) -> Track:
    """The track of a core."""
    return Track(_CORES + core, f"core {core}")


def lanes_of(commands: CommandStream) -> list[Track]:
    """The line of its stream that each command goes to: the first that is free at its begin."""
    lanes: dict[int, Track] = {}
    ends: dict[int, list[int]] = {}
    for place, command in sorted(enumerate(commands), key=_begin):
        lines = ends.setdefault(command.stream_id, [])
        free = (k for k, end in enumerate(lines) if end <= command.begin_ns)
        line = next(free, len(lines))
        lines[line : line + 1] = [command.end_ns]
        lanes[place] = stream_track(command.stream_id, line)
    return [lanes[place] for place in range(len(commands))]


def _begin(numbered: tuple[int, Command]) -> tuple[int, int]:
    return numbered[1].begin_ns, numbered[1].end_ns


def used_tracks(commands: CommandStream, lanes: Sequence[Track]) -> Iterator[Track]:
    """The tracks on which something is shown, in order."""
    yield from sorted(set(lanes))
    yield from sorted({engine_track(c.engine) for c in commands})
    cores = frozenset[int]().union(*(used_cores(c) for c in commands))
    yield from (core_track(core) for core in sorted(cores))
