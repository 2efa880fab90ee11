"""What a timeline is made of: tasks, each on one resource of a card, and their spans in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Resource(StrEnum):
    """What does one thing at a time.

    ``LAUNCH``: giving a control block to the cores. ``COMPUTE``: all cores with their scratchpads,
    the ring and the memory interface: a control block has them for itself.
    """

    HOST = "host"
    DMA = "dma"
    LAUNCH = "launch"
    COMPUTE = "compute"


class Kind(StrEnum):
    """What a task does."""

    HOST = "host operation"
    COPY_IN = "copy to card"
    COPY_OUT = "copy to host"
    LAUNCH = "launch"
    COMPUTE = "compute"


RESOURCE_OF: dict[Kind, Resource] = {
    Kind.HOST: Resource.HOST,
    Kind.COPY_IN: Resource.DMA,
    Kind.COPY_OUT: Resource.DMA,
    Kind.LAUNCH: Resource.LAUNCH,
    Kind.COMPUTE: Resource.COMPUTE,
}


@dataclass(frozen=True, slots=True)
class Task:
    """Something that takes time. ``after``: numbers of the tasks it waits for, all before its own.

    A task's number is its place in the sequence: the order of submission. Waiting tasks of a
    resource begin in that order.
    """

    kind: Kind
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


def critical_path_ns(tasks: Sequence[Task]) -> float:
    """The longest chain of tasks that wait for each other: no timeline is shorter."""
    ends: list[float] = []
    for task in tasks:
        ends.append(max((ends[k] for k in task.after), default=0.0) + task.duration_ns)
    return max(ends, default=0.0)
