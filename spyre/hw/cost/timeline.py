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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, TypeVar


class Resource(StrEnum):
    """What does one thing at a time.

    ``LAUNCH``: giving a control block to the cores. ``COMPUTE``: all cores with their scratchpads,
    the ring and the memory interface: a control block has them for itself.
    """

    HOST = "host"
    DMA = "dma"
    LAUNCH = "launch"
    COMPUTE = "compute"


class TaskKind(StrEnum):
    """What a task does."""

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


@dataclass(frozen=True, slots=True)
class Task:
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
        """What it occupies."""
        return RESOURCE_OF[self.kind]


@dataclass(frozen=True, slots=True)
class Span:
    """When a task is done, nanoseconds from the first one's begin."""

    begin_ns: float
    end_ns: float


@dataclass(frozen=True)
class Timeline:
    """Tasks in order of submission, and when each is done."""

    tasks: tuple[Task, ...]
    spans: tuple[Span, ...]

    @property
    def makespan_ns(self) -> float:
        """From the first begin to the last end."""
        return max((span.end_ns for span in self.spans), default=0.0)

    def busy_ns(self, resource: Resource) -> float:
        """How long a resource works."""
        return sum(task.duration_ns for task in self.tasks if task.resource is resource)


class Overlap(StrEnum):
    """Names of the policies."""

    SERIAL = "serial"
    OVERLAPPED = "overlapped"
    DOUBLE_BUFFERED = "double-buffered"


def ordered(tasks: Sequence[Task], overlap: Overlap) -> tuple[Task, ...]:
    """Return the tasks with the dependences of a policy."""
    return POLICIES[overlap](tasks)


def _serial(tasks: Sequence[Task]) -> tuple[Task, ...]:
    return tuple(replace(task, after=(k - 1,) if k else ()) for k, task in enumerate(tasks))


def _overlapped(tasks: Sequence[Task]) -> tuple[Task, ...]:
    return tuple(tasks)


@dataclass
class _Stream:
    """What a stream was given until now: numbers of tasks.

    ``last``: of each kind. ``before``: the last copy out before each compute. ``collective``: the
    last task of one.
    """

    collective: int | None = None
    computes: list[int] = field(default_factory=list)
    before: list[int | None] = field(default_factory=list)
    last: dict[TaskKind, int] = field(default_factory=dict)


def _double_buffered(tasks: Sequence[Task]) -> tuple[Task, ...]:
    streams: dict[int, _Stream] = {}
    delayed: list[Task] = []
    for number, task in enumerate(tasks):
        stream = streams.setdefault(task.stream, _Stream())
        if task.kind in COLLECTIVES:
            # The cards have one set of buffers for what they exchange: all that follows waits.
            stream.collective = number
            delayed.append(task)
            continue
        # Waits within the stream are what the second set of buffers relaxes; the others stay.
        waits = {k for k in task.after if tasks[k].stream != task.stream}
        waits |= {k for k in task.after if tasks[k].kind in (TaskKind.HOST, *COLLECTIVES)}
        delayed.append(
            replace(task, after=tuple(sorted(waits | _tasks_to_wait_for(task.kind, stream))))
        )
        _note_task(stream, task.kind, number)
    return tuple(delayed)


def _tasks_to_wait_for(kind: TaskKind, stream: _Stream) -> set[int]:
    """What a task of ``kind`` waits for in its own stream."""
    waits = {stream.last.get(kind), stream.collective}
    computes = stream.computes
    if kind is TaskKind.COMPUTE:
        waits |= {stream.last.get(k) for k in (TaskKind.COPY_IN, TaskKind.HOST, TaskKind.LAUNCH)}
        waits.add(stream.before[-1] if stream.before else None)
    elif kind is TaskKind.COPY_OUT:
        waits.add(computes[-1] if computes else stream.last.get(TaskKind.COPY_IN))
    elif kind is not TaskKind.HOST and len(computes) >= 2:
        waits.add(computes[-2])
    return {number for number in waits if number is not None}


def _note_task(stream: _Stream, kind: TaskKind, number: int) -> None:
    if kind is TaskKind.COMPUTE:
        stream.computes.append(number)
        stream.before.append(stream.last.get(TaskKind.COPY_OUT))
    stream.last[kind] = number


POLICIES: Mapping[Overlap, Callable[[Sequence[Task]], tuple[Task, ...]]] = {
    Overlap.SERIAL: _serial,
    Overlap.OVERLAPPED: _overlapped,
    Overlap.DOUBLE_BUFFERED: _double_buffered,
}


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
    """When each task is done under a policy. ValueError for a task that waits for a later one."""
    chosen = ordered(tasks, overlap)
    for number, task in enumerate(chosen):
        if any(not 0 <= k < number for k in task.after):
            raise ValueError(f"task {number} waits for {task.after}")
    return Timeline(chosen, _Simulation(chosen).spans())


class _Simulation:
    """The state of a simulation: waiting, ready and running tasks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._missing = [len(task.after) for task in tasks]
        self._waiting: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for k in task.after:
                self._waiting[k].append(number)
        self._ready: dict[Resource, list[int]] = {resource: [] for resource in Resource}
        self._free = set(Resource)
        self._clock: VirtualClock[int, float] = VirtualClock(0.0)
        self._spans: list[Span | None] = [None] * len(tasks)

    def spans(self) -> tuple[Span, ...]:
        for number, missing in enumerate(self._missing):
            if not missing:
                self._make_ready(number)
        self._begin()
        while self._clock.next_end is not None:
            self._end(self._clock.end()[0])
            # all that ends now ends before anything begins: the first submitted may be among what
            # it makes ready
            while self._clock.next_end == self._clock.now:
                self._end(self._clock.end()[0])
            self._begin()
        return tuple(span for span in self._spans if span is not None)

    def _make_ready(self, number: int) -> None:
        heapq.heappush(self._ready[self._tasks[number].resource], number)

    def _begin(self) -> None:
        """Every free resource takes the first of its ready tasks."""
        for resource, ready in self._ready.items():
            if resource in self._free and ready:
                number = heapq.heappop(ready)
                end_ns = self._clock.begin(number, self._tasks[number].duration_ns)
                self._spans[number] = Span(self._clock.now, end_ns)
                self._free.discard(resource)

    def _end(self, number: int) -> None:
        self._free.add(self._tasks[number].resource)
        for waiting in self._waiting[number]:
            self._missing[waiting] -= 1
            if not self._missing[waiting]:
                self._make_ready(waiting)
