"""The timeline of a card: tasks with durations, which wait for each other and for resources.

A task begins when all tasks it waits for have ended and its resource is free; if several tasks
could begin, the one submitted first does. It is not published which tasks overlap on the card; the
policies are the possible cases. `SERIAL`: one task at a time. `OVERLAPPED`: as ordered by streams
and events, so that copies of one stream overlap with computing in another. `DOUBLE_BUFFERED`: as
`OVERLAPPED` with two sets of buffers that the launches of a stream use in turn: copies in and
launches are one launch ahead of the cores, copies out one behind.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace


class Resource(StrEnum):
    """Resources, each of which runs one task at a time.

    ``LAUNCH``: sends a control block to the cores. ``COMPUTE``: all cores with their scratchpads,
    the ring and the memory interface, which one control block uses at a time.
    """

    HOST = "host"
    DMA = "dma"
    LAUNCH = "launch"
    COMPUTE = "compute"


class TaskKind(StrEnum):
    """Kinds of tasks."""

    HOST = "host operation"
    COPY_IN = "copy to card"
    COPY_OUT = "copy to host"
    LAUNCH = "launch"
    COMPUTE = "compute"
    EXCHANGE = "exchange between cards"
    ADD = "adds of a collective"


RESOURCE_OF: dict[TaskKind, Resource] = {
    TaskKind.HOST: Resource.HOST,
    TaskKind.COPY_IN: Resource.DMA,
    TaskKind.COPY_OUT: Resource.DMA,
    TaskKind.LAUNCH: Resource.LAUNCH,
    TaskKind.COMPUTE: Resource.COMPUTE,
    TaskKind.EXCHANGE: Resource.DMA,
    TaskKind.ADD: Resource.COMPUTE,
}
COLLECTIVES = (TaskKind.EXCHANGE, TaskKind.ADD)


class Task(msgspec.Struct, frozen=True):
    """Something that takes time. ``after``: numbers of the tasks it waits for, all before its own.

    A task's number is its place in the sequence: the order of submission. Waiting tasks of a
    resource begin in that order.
    """

    kind: TaskKind
    duration_ns: float
    stream: int = 0
    after: tuple[int, ...] = ()

    @property
    def resource(self) -> Resource:
        """The resource that the task occupies."""
        return RESOURCE_OF[self.kind]


class Span(msgspec.Struct, frozen=True):
    """Begin and end of a task, nanoseconds from the first task's begin."""

    begin_ns: float
    end_ns: float


class Timeline(msgspec.Struct, frozen=True):
    """Tasks in order of submission, and when each is done."""

    tasks: tuple[Task, ...]
    spans: tuple[Span, ...]

    @property
    def makespan_ns(self) -> float:
        """From the first begin to the last end."""
        return max((span.end_ns for span in self.spans), default=0.0)

    def busy_ns(self, resource: Resource) -> float:
        """Return the busy time of a resource in nanoseconds."""
        return sum(task.duration_ns for task in self.tasks if task.resource is resource)


class Overlap(StrEnum):
    """Names of the policies."""

    SERIAL = "serial"
    OVERLAPPED = "overlapped"
    DOUBLE_BUFFERED = "double-buffered"


def ordered(tasks: Sequence[Task], overlap: Overlap) -> tuple[Task, ...]:
    """Return the tasks with the dependences of a policy."""
    if overlap is Overlap.SERIAL:
        return tuple(replace(task, after=(k - 1,) if k else ()) for k, task in enumerate(tasks))
    return tuple(tasks) if overlap is Overlap.OVERLAPPED else _double_buffered(tasks)


class _StreamOrder:
    """Numbers of the tasks of a stream so far, from which the waits of the next one follow.

    ``collective``: the last task of one.
    """

    def __init__(self) -> None:
        self.collective: int | None = None
        self._computes: list[int] = []
        self._last_copy_out: int | None = None  # before the last compute
        self._last: dict[TaskKind, int] = {}

    def waits_of(self, kind: TaskKind) -> set[int]:
        """Tasks of the stream that one of ``kind`` waits for."""
        waits = {self._last.get(kind), self.collective}
        if kind is TaskKind.COMPUTE:
            inputs = (TaskKind.COPY_IN, TaskKind.HOST, TaskKind.LAUNCH)
            waits |= {self._last_copy_out, *map(self._last.get, inputs)}
        elif kind is TaskKind.COPY_OUT:
            waits.add(self._computes[-1] if self._computes else self._last.get(TaskKind.COPY_IN))
        elif kind is not TaskKind.HOST and len(self._computes) >= 2:
            waits.add(self._computes[-2])
        return {number for number in waits if number is not None}

    def add(self, kind: TaskKind, number: int) -> None:
        """Add a task."""
        if kind is TaskKind.COMPUTE:
            self._computes.append(number)
            self._last_copy_out = self._last.get(TaskKind.COPY_OUT)
        self._last[kind] = number


def _double_buffered(tasks: Sequence[Task]) -> tuple[Task, ...]:
    streams: dict[int, _StreamOrder] = {}
    delayed: list[Task] = []
    for number, task in enumerate(tasks):
        stream = streams.setdefault(task.stream, _StreamOrder())
        if task.kind in COLLECTIVES:
            # The cards have one set of buffers for exchanged data: all later tasks wait.
            stream.collective = number
            delayed.append(task)
            continue
        # A second set of buffers relaxes the waits within a stream; other waits stay.
        waits = {k for k in task.after if tasks[k].stream != task.stream}
        waits |= {k for k in task.after if tasks[k].kind in (TaskKind.HOST, *COLLECTIVES)}
        delayed.append(replace(task, after=tuple(sorted(waits | stream.waits_of(task.kind)))))
        stream.add(task.kind, number)
    return tuple(delayed)


Item = TypeVar("Item")
Time = TypeVar("Time", int, float)


class VirtualClock(Generic[Item, Time]):
    """Running items in virtual time. ``now``: the time of the last end.

    The owner begins the items; of items with the same end the one begun first comes first.
    """

    now: Time

    def __init__(self, now: Time) -> None:
        self.now = now
        self._begun = 0
        self._running: list[tuple[Time, int, Time, Item]] = []

    def begin(self, item: Item, duration: Time) -> Time:
        """``item`` runs from now on; returns its end."""
        end: Time = self.now + duration
        heapq.heappush(self._running, (end, self._begun, self.now, item))
        self._begun += 1
        return end

    def end(self) -> tuple[Item, Time]:
        """Advance to the next end; return the item that ends, and its begin."""
        self.now, _, begin, item = heapq.heappop(self._running)
        return item, begin

    def drain(self) -> Iterator[tuple[Item, Time]]:
        """Yield the running items with their begins, by their ends; the time does not advance."""
        while self._running:
            _, _, begin, item = heapq.heappop(self._running)
            yield item, begin

    @property
    def next_end(self) -> Time | None:
        """The time of the next end; None if nothing is running."""
        return self._running[0][0] if self._running else None


def simulate(tasks: Sequence[Task], overlap: Overlap = Overlap.OVERLAPPED) -> Timeline:
    """Simulate tasks under a policy. ValueError for a task that waits for a later one."""
    chosen = ordered(tasks, overlap)
    for number, task in enumerate(chosen):
        if any(not 0 <= k < number for k in task.after):
            raise ValueError(f"task {number} waits for {task.after}")
    return Timeline(chosen, _spans(chosen))


def _spans(tasks: Sequence[Task]) -> tuple[Span, ...]:
    """Return the span of each task; a free resource takes the first of its ready tasks."""
    missing = [len(task.after) for task in tasks]
    waiting: list[list[int]] = [[] for _ in tasks]
    ready: dict[Resource, list[int]] = {resource: [] for resource in Resource}
    for number, task in enumerate(tasks):
        for k in task.after:
            waiting[k].append(number)
        if not task.after:
            ready[task.resource].append(number)
    free, clock, spans = set(Resource), VirtualClock[int, float](0.0), [Span(0.0, 0.0)] * len(tasks)
    while True:
        for resource in [r for r in Resource if r in free and ready[r]]:
            number = heapq.heappop(ready[resource])
            spans[number] = Span(clock.now, clock.begin(number, tasks[number].duration_ns))
            free.discard(resource)
        if clock.next_end is None:
            return tuple(spans)
        # all tasks that end now end before one begins: the first submitted task may be one that
        # they make ready
        end_ns = clock.next_end
        while clock.next_end == end_ns:
            ended, _ = clock.end()
            free.add(tasks[ended].resource)
            for number in waiting[ended]:
                missing[number] -= 1
                if not missing[number]:
                    heapq.heappush(ready[tasks[number].resource], number)
