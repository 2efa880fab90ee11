"""What waits in a stream: jobs with their stages, event records, waits.

A stage is one step of a job for all of its iterations (tiles); the scheduler runs iterations of a
stage in ranges. Only the scheduler that owns the streams changes these objects, under its lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any


class Engine(IntEnum):
    """Who does a step: the host's CPU, the DMA engine, or the cores.

    The cores run one compute control block at a time: it has all 32 of them and their scratchpads.
    """

    HOST = 0
    DMA = 1
    COMPUTE = 2


StageFunction = Callable[[Any, int, int], None]
"""Runs iterations first .. last (excluded) of a stage for a payload; an error fails the stream."""
Label = tuple[bool, int]
"""(is a host operation, its number): what a control block is called."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a job, the same for all jobs of a plan.

    ``is_prep``: it touches only what belongs to its own launch, so it may run before the jobs in
    front of it have finished (the look-ahead of the pipeline RFC, question 8).
    """

    engine: Engine
    run: StageFunction
    is_prep: bool = False


class Stages:
    """The stages of a job, in order. Immutable, shared by all its launches.

    ``engines``: of each stage. ``host_count``/``block_count``: how many are host operations and how
    many are control blocks of the card. ``places``: of each stage among its kind.
    """

    __slots__ = ("all", "block_count", "engines", "host_count", "is_host", "places")

    def __init__(self, stages: Iterable[Stage] = ()) -> None:
        self.all = tuple(stages)
        self.engines = tuple(stage.engine for stage in self.all)
        self.is_host = tuple(engine is Engine.HOST for engine in self.engines)
        self.host_count = sum(self.is_host)
        self.block_count = len(self.all) - self.host_count
        self.places = tuple(self.is_host[:k].count(host) for k, host in enumerate(self.is_host))

    def __len__(self) -> int:
        return len(self.all)


NO_STAGES = Stages()


class State(Enum):
    """Where a piece of work stands."""

    QUEUED = "queued"
    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


class EventRecord:
    """One `record` of an event: complete once everything before it in its stream is.

    ``time_ns``: host clock at completion. ``error``: why it will never complete. ``tail``: labels
    of the control blocks it stands behind.
    """

    __slots__ = ("done", "error", "tail", "time_ns", "waiters")

    def __init__(self) -> None:
        self.done = False
        self.time_ns = 0
        self.error: BaseException | None = None
        self.tail: tuple[Label, ...] = ()
        self.waiters: list[StreamQueue] = []


class Work:
    """One entry of a stream.

    ``stages`` are in order, each for ``iterations`` iterations; work without stages is a record or
    a wait of ``event``. ``chunk``: iterations that run in one unit at most, which is how long work
    of higher priority may wait. ``is_large``: worth a second thread. ``payload``: what made it, for
    reports; given up, with the memory it holds, when the work ends. ``number``: in order of
    submission.
    ``error``: what its preparation raised, at iteration ``limit``; those before it still run.
    ``has_ended``: nothing of it runs
    any more, and what it held has been given up. ``first_block``/``first_host``:
    numbers of its first control block and host operation; ``after``: labels of the blocks in
    front of it.
    """

    __slots__ = (
        "after",
        "chunk",
        "done",
        "error",
        "event",
        "first_block",
        "first_host",
        "has_ended",
        "in_flight",
        "is_large",
        "is_wait",
        "iterations",
        "limit",
        "number",
        "payload",
        "running",
        "stages",
        "state",
        "stream",
    )

    def __init__(
        self,
        stages: Stages = NO_STAGES,
        iterations: int = 1,
        payload: Any = None,
        *,
        is_large: bool = False,
        chunk: int = 64,
        event: EventRecord | None = None,
        is_wait: bool = False,
    ) -> None:
        self.stages = stages
        self.iterations = iterations
        self.limit = iterations
        self.payload = payload
        self.chunk = chunk
        self.is_large = is_large
        self.event = event
        self.is_wait = is_wait
        self.state = State.QUEUED
        self.done = [0] * len(stages.all)
        self.running = [False] * len(stages.all)
        self.in_flight = 0
        self.has_ended = False
        self.error: BaseException | None = None
        self.number = -1
        self.first_block = self.first_host = 0
        self.after: tuple[Label, ...] = ()
        self.stream: StreamQueue | None = None

    def label(self, place: int, iteration: int) -> Label:
        """What one iteration of a stage is called."""
        stages = self.stages
        if stages.is_host[place]:
            return (True, self.first_host + iteration * stages.host_count + stages.places[place])
        return (False, self.first_block + iteration * stages.block_count + stages.places[place])


@dataclass(slots=True, eq=False)
class StreamQueue:
    """The work of one stream, oldest first.

    ``rank``: 0 for streams of high priority, 1 for the others. ``tail``: labels of the control
    blocks that whatever comes next stands behind. ``error``: the stream has failed.
    ``reported``: somebody has been told of the error itself. ``last``: the work that came in last;
    whoever submits changes it, under ``lock``, so that it agrees with the order of submission.
    """

    stream_id: int
    rank: int = 1
    work: deque[Work] = field(default_factory=deque)
    error: BaseException | None = None
    reported: bool = False
    tail: tuple[Label, ...] = ()
    last: Work | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


def label_text(label: Label) -> str:
    """``host N``, or ``cb N`` of a control block of the card."""
    return f"{'host' if label[0] else 'cb'} {label[1]}"
