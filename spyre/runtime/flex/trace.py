"""A command stream as a Chrome trace: one track per stream, engine and core, for Perfetto."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from spyre.hw.spec import CORES
from spyre.runtime.flex.command_stream import Command, CommandStream
from spyre.runtime.flex.engine import Engine
from spyre.runtime.flex.timed_launch import TimedLaunch

_STREAM_TRACK = 100
_CORE_TRACK = 1000
Event = dict[str, Any]


def chrome_trace(commands: CommandStream, device_index: int = 0) -> dict[str, Any]:
    """The trace as the JSON object Perfetto reads; times in microseconds from the first command."""
    start = min((c.begin_ns for c in commands), default=0)
    events = list(_tracks(commands, device_index))
    for command in commands:
        events += _command_events(command, start, device_index)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def write_trace(path: Path | str, trace: dict[str, Any]) -> None:
    """Write a trace; the file appears whole or not at all."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(msgspec.json.encode(trace))
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _tracks(commands: CommandStream, process: int) -> Iterator[Event]:
    """Names of the process and of every track."""
    yield _name("process_name", process, 0, f"spyre {process}")
    for engine in Engine:
        yield _name("thread_name", process, 1 + engine, f"engine {engine.name.lower()}")
    for stream in sorted({c.stream_id for c in commands}):
        yield _name("thread_name", process, _STREAM_TRACK + stream, f"stream {stream}")
    for core in range(CORES):
        yield _name("thread_name", process, _CORE_TRACK + core, f"core {core}")


def _name(kind: str, process: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _command_events(command: Command, start: int, process: int) -> Iterator[Event]:
    details = {
        "block": command.label,
        "iteration": command.iteration,
        "after": list(command.after),
        "bytes": command.block.size_bytes,
        "places": [str(place) for place in command.block.places],
    }
    name = f"{command.block.kind} {command.block.name}"
    span = (command.begin_ns - start, command.end_ns - start)
    for track in (1 + command.engine, _STREAM_TRACK + command.stream_id):
        yield _span(name, process, track, span, details)
    if isinstance(command.detail, TimedLaunch):
        yield from _core_events(command.detail, start, process)


def _core_events(timed: TimedLaunch, start: int, process: int) -> Iterator[Event]:
    """One span per dispatch on each core that takes part in it."""
    ends = np.cumsum(timed.elapsed_ns) + (timed.begin_ns - start)
    linked = timed.linked
    for k, end in enumerate(ends.tolist()):
        static = int(linked.dispatch[k, 1])
        op = linked.runs[static][0].plan.op
        details = {"execute": static, "instance": int(linked.dispatch[k, 2]), "sdsc": op.file}
        for core in op.cores:
            span = (end - int(timed.elapsed_ns[k]), end)
            yield _span(op.name, process, _CORE_TRACK + core, span, details)


def _span(
    name: str, process: int, track: int, span_ns: tuple[int, int], details: dict[str, Any]
) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": track,
        "ts": span_ns[0] / 1000,
        "dur": (span_ns[1] - span_ns[0]) / 1000,
        "args": details,
    }
