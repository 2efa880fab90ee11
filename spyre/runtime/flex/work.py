"""What waits in a stream: jobs with their stages, event records, waits.

A stage is one step of a job for all of its iterations (tiles); the scheduler runs iterations of a
stage in ranges. Only the scheduler that owns the streams changes these objects, under its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from spyre.runtime.flex.engine import Engine

StageFunction = Callable[[int, int], None]
"""Runs iterations first .. last (excluded) of a stage; what it raises fails the stream."""


class Stage:
    """One step of a job.

    ``is_prep``: it touches only what belongs to its own launch, so it may run before the jobs in
    front of it have finished (the look-ahead of the pipeline RFC, question 8).
    """

    __slots__ = ("engine", "is_prep", "run")

    def __init__(self, engine: Engine, run: StageFunction, is_prep: bool = False) -> None:
        self.engine = engine
        self.run = run
        self.is_prep = is_prep


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
        self.tail: tuple[str, ...] = ()
        self.waiters: list[StreamQueue] = []


class Work:
    """One entry of a stream.

    ``stages`` are in order, each for ``iterations`` iterations; work without stages is a record or
    a wait of ``event``. ``is_large``: worth a second thread. ``payload``: what made it, for
    reports; given up, with the memory it holds, when the work ends. ``number``: in order of
    submission.
    ``error``: what its preparation raised before its turn came. ``first_block``/``first_host``:
    numbers of its first control block and host operation; ``after``: labels of the blocks in
    front of it.
    """

    __slots__ = (
        "after",
        "done",
        "error",
        "event",
        "first_block",
        "first_host",
        "in_flight",
        "is_large",
        "is_wait",
        "iterations",
        "number",
        "payload",
        "running",
        "stages",
        "state",
        "stream",
    )

    def __init__(
        self,
        stages: tuple[Stage, ...] = (),
        iterations: int = 1,
        payload: Any = None,
        *,
        is_large: bool = False,
        event: EventRecord | None = None,
        is_wait: bool = False,
    ) -> None:
        self.stages = stages
        self.iterations = iterations
        self.payload = payload
        self.is_large = is_large
        self.event = event
        self.is_wait = is_wait
        self.state = State.QUEUED
        self.done = [0] * len(stages)
        self.running = [False] * len(stages)
        self.in_flight = 0
        self.error: BaseException | None = None
        self.number = -1
        self.first_block = self.first_host = 0
        self.after: tuple[str, ...] = ()
        self.stream: StreamQueue | None = None

    @property
    def host_stages(self) -> int:
        """How many of its stages the host does; the others are control blocks."""
        return sum(stage.engine is Engine.HOST for stage in self.stages)

    def label(self, place: int, iteration: int) -> str:
        """Name of one iteration of a stage: ``host N``, or ``cb N`` of a control block."""
        host = self.stages[place].engine is Engine.HOST
        same = [k for k, s in enumerate(self.stages) if (s.engine is Engine.HOST) is host]
        first = self.first_host if host else self.first_block
        return f"{'host' if host else 'cb'} {first + iteration * len(same) + same.index(place)}"

    @property
    def is_finished(self) -> bool:
        """True once nothing of it will run any more."""
        return self.in_flight == 0 and self.state in (State.DONE, State.FAILED, State.DROPPED)


@dataclass(slots=True, eq=False)
class StreamQueue:
    """The work of one stream, oldest first.

    ``rank``: 0 for streams of high priority, 1 for the others. ``tail``: labels of the control
    blocks that whatever comes next stands behind. ``error``: the stream has failed.
    ``reported``: somebody has been told of the error itself. ``submitted``/``ended``: how many
    pieces of work came in, and how many have ended.
    """

    stream_id: int
    rank: int = 1
    work: deque[Work] = field(default_factory=deque)
    error: BaseException | None = None
    reported: bool = False
    tail: tuple[str, ...] = ()
    submitted: int = 0
    ended: int = 0
