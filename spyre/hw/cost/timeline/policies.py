"""What may happen at the same time on a card.

Nobody has published what the card overlaps; the policies span what is possible. `SERIAL`: one
thing at a time. `OVERLAPPED`: as streams and events have it, copies of one stream beside the
computing of another. `DOUBLE_BUFFERED`: what `OVERLAPPED` would be if every launch of a stream had
two sets of buffers in turn: copies in and launches run ahead of the cores by one launch, copies
out fall behind by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from spyre.hw.cost.timeline.task import Kind, Task


class Overlap(StrEnum):
    """Names of the policies."""

    SERIAL = "serial"
    OVERLAPPED = "overlapped"
    DOUBLE_BUFFERED = "double-buffered"


def ordered(tasks: Sequence[Task], overlap: Overlap) -> tuple[Task, ...]:
    """The tasks, waiting for what they have to under a policy."""
    return POLICIES[overlap](tasks)


def _serial(tasks: Sequence[Task]) -> tuple[Task, ...]:
    return tuple(replace(task, after=(k - 1,) if k else ()) for k, task in enumerate(tasks))


def _overlapped(tasks: Sequence[Task]) -> tuple[Task, ...]:
    return tuple(tasks)


@dataclass
class _Stream:
    """What a stream was given until now: numbers of tasks.

    ``last``: of each kind. ``before``: the last copy out before each compute.
    """

    computes: list[int] = field(default_factory=list)
    before: list[int | None] = field(default_factory=list)
    last: dict[Kind, int] = field(default_factory=dict)


def _double_buffered(tasks: Sequence[Task]) -> tuple[Task, ...]:
    streams: dict[int, _Stream] = {}
    found: list[Task] = []
    for number, task in enumerate(tasks):
        stream = streams.setdefault(task.stream, _Stream())
        kept = {k for k in task.after if tasks[k].stream != task.stream}
        kept |= {k for k in task.after if tasks[k].kind is Kind.HOST}
        found.append(replace(task, after=tuple(sorted(kept | _waits(task.kind, stream)))))
        _note(stream, task.kind, number)
    return tuple(found)


def _waits(kind: Kind, stream: _Stream) -> set[int]:
    """What a task of ``kind`` waits for in its own stream."""
    waits = {stream.last.get(kind)}
    computes = stream.computes
    if kind is Kind.COMPUTE:
        waits |= {stream.last.get(k) for k in (Kind.COPY_IN, Kind.HOST, Kind.LAUNCH)}
        waits.add(stream.before[-1] if stream.before else None)
    elif kind is Kind.COPY_OUT:
        waits.add(computes[-1] if computes else stream.last.get(Kind.COPY_IN))
    elif kind is not Kind.HOST and len(computes) >= 2:
        waits.add(computes[-2])
    return {number for number in waits if number is not None}


def _note(stream: _Stream, kind: Kind, number: int) -> None:
    if kind is Kind.COMPUTE:
        stream.computes.append(number)
        stream.before.append(stream.last.get(Kind.COPY_OUT))
    stream.last[kind] = number


POLICIES: Mapping[Overlap, Callable[[Sequence[Task]], tuple[Task, ...]]] = {
    Overlap.SERIAL: _serial,
    Overlap.OVERLAPPED: _overlapped,
    Overlap.DOUBLE_BUFFERED: _double_buffered,
}
