"""Scheduling of queued work: a state machine without threads that selects the next unit to run.

A stage is one step of a job for all of its iterations (tiles); iterations of a stage run in ranges.
Work of one stream ends in order of submission; streams are ordered only by events.
Policies (runtime reference §7-8): `SERIALISED`, as today's hardware: one job at a time over all
streams, by priority, then age; `CONCURRENT`: the first job of every stream may run, one per engine.
In both, host operations and correction copies of later jobs may run while cores are busy.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, IntEnum, StrEnum
from itertools import islice
from typing import Any, NoReturn

import msgspec

from spyre.errors import LaunchError, StreamError


class Engine(IntEnum):
    """The unit that runs a step: the host's CPU, the DMA engine, or the cores.

    The cores run one compute control block at a time: it has all 32 of them and their scratchpads.
    """

    HOST = 0
    DMA = 1
    COMPUTE = 2


StageFunction = Callable[[Any, int, int], None]
"""Runs iterations first .. last (excluded) of a stage of a `Work`; an error fails the stream."""
Label = tuple[bool, int]
"""Name of a control block or host operation: (is a host operation, its number)."""


class Stage(msgspec.Struct, frozen=True):
    """One step of a job, the same for all jobs of a plan.

    ``is_prep``: it accesses only buffers of one launch, so it may run before the preceding jobs
    have finished (the look-ahead of the pipeline RFC, question 8).
    """

    engine: Engine
    run: StageFunction
    is_prep: bool = False


class Stages:
    """The stages of a job, in order. Immutable, shared by all its launches.

    ``engines``: engine of each stage. ``host_count``/``block_count``: number of host operations and
    of control blocks. ``positions``: number of each stage among those of its kind.
    """

    __slots__ = ("all", "block_count", "engines", "host_count", "is_host", "positions")

    def __init__(self, stages: Iterable[Stage] = ()) -> None:
        self.all = tuple(stages)
        self.engines = tuple(stage.engine for stage in self.all)
        self.is_host = tuple(engine is Engine.HOST for engine in self.engines)
        self.host_count = sum(self.is_host)
        self.block_count = len(self.all) - self.host_count
        self.positions = tuple(self.is_host[:k].count(host) for k, host in enumerate(self.is_host))

    def __len__(self) -> int:
        return len(self.all)


NO_STAGES = Stages()


class State(Enum):
    """Progress of a piece of work."""

    #   QUEUED ──its turn, an engine is free──▶ ACTIVE ──all stages ran──▶ DONE
    #     │                                       │
    #     │  the stream failed, or a reset        ├──a stage raised──▶ FAILED, and its stream
    #     └────────────────────▶ DROPPED ◀────────┘
    #
    # Preparation stages may run while the work is still QUEUED. Records and waits of events go from
    # QUEUED to DONE at once, when they reach the head of their stream.

    QUEUED = "queued"
    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


class Failure(msgspec.Struct, eq=False):
    """The error of failed work. ``reported``: it was raised to a caller.

    Streams that recover share it with the streams that wait for their events.
    """

    error: BaseException
    reported: bool = False


class EventRecord(msgspec.Struct, eq=False):
    """One `record` of an event: complete once all work before it in its stream is.

    ``time_ns``: host clock at completion. ``failure``: the reason it will never complete, or an
    earlier failure of a stream that recovers. ``tail``: labels of the preceding control blocks.
    """

    done: bool = False
    time_ns: int = 0
    failure: Failure | None = None
    tail: tuple[Label, ...] = ()
    waiters: list[StreamQueue] = msgspec.field(default_factory=list)


@dataclass(eq=False, repr=False)
class Work:
    """One entry of a stream.

    ``stages`` are in order, each with ``iterations`` iterations; work without stages records or
    waits for ``event``. ``chunk``: iterations that run in one unit at most; work of higher priority
    waits no longer than that. ``is_large``: a second thread pays. ``payload``: the callback or
    block it was created for, or the memory of a launch, dropped when the work ends. ``number``:
    order of submission.
    ``error``: exception of its preparation at iteration ``limit``; earlier iterations still run.
    ``stream``: set when it is submitted.
    ``failure``: the reason it failed or was dropped. ``has_ended``: all its units have run, and its
    payload is dropped. ``first_block``/``first_host``: numbers of its first control block and
    host operation; ``after``: labels of the preceding blocks.
    """

    stages: Stages = NO_STAGES
    iterations: int = 1
    payload: Any = None
    _: KW_ONLY
    is_large: bool = False
    chunk: int = 64
    event: EventRecord | None = None
    is_wait: bool = False
    state: State = State.QUEUED
    limit: int = field(init=False)
    done: list[int] = field(init=False)
    running: list[bool] = field(init=False)
    in_flight: int = 0
    has_ended: bool = False
    error: BaseException | None = None
    failure: Failure | None = None
    number: int = -1
    first_block: int = 0
    first_host: int = 0
    after: tuple[Label, ...] = ()
    stream: StreamQueue = field(init=False)

    def __post_init__(self) -> None:
        self.limit = self.iterations
        self.done = [0] * len(self.stages.all)
        self.running = [False] * len(self.stages.all)

    def release(self) -> None:
        """Drop all that it keeps alive, since it has ended."""
        self.payload = None

    def label(self, stage: int, iteration: int) -> Label:
        """The label of one iteration of a stage."""
        stages = self.stages
        if stages.is_host[stage]:
            return (True, self.first_host + iteration * stages.host_count + stages.positions[stage])
        return (False, self.first_block + iteration * stages.block_count + stages.positions[stage])


class StreamQueue(msgspec.Struct, eq=False):
    """The work of one stream, oldest first.

    ``rank``: 0 for streams of high priority, 1 for the others. ``tail``: labels of the control
    blocks that the next work follows. ``failure``: of the stream, or, if it recovers, of its work.
    ``last``: the work submitted last; changed under ``lock``, so that it agrees with the order of
    submission.
    """

    stream_id: int
    rank: int = 1
    work: deque[Work] = msgspec.field(default_factory=deque)
    failure: Failure | None = None
    tail: tuple[Label, ...] = ()
    last: Work | None = None
    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    @property
    def error(self) -> BaseException | None:
        """The error that failed it, or work in it."""
        return None if self.failure is None else self.failure.error

    def refusal(self) -> StreamError:
        """The error for work that is submitted after a failure."""
        message = f"stream {self.stream_id} has failed and takes no more work"
        expected = "a stream without an error, or a reset of the device"
        return StreamError("SPY870", message, expected=expected, found=_first_line(self.error))

    def dependent_error(self, error: BaseException) -> StreamError:
        """The error of a stream that waits for an event of one that failed with ``error``."""
        message = f"stream {self.stream_id} waits for an event of a stream that failed"
        expected = "the event to complete"
        return StreamError("SPY871", message, expected=expected, found=_first_line(error))


def _first_line(error: BaseException | None) -> str:
    """First line of an error's text, or its type if it has no text."""
    lines = str(error).splitlines() if error is not None else []
    return next(filter(None, lines), type(error).__name__)


def label_text(label: Label) -> str:
    """``host N``, or ``cb N`` of a control block of the card."""
    return f"{'host' if label[0] else 'cb'} {label[1]}"


# Both policies use one heap of ready jobs; they differ in how many of them are active.

WHOLE = -1
"""Stage number of a unit that is a whole job."""
LOOK_AHEAD = 4
"""Jobs per stream, behind the running one, whose preparation may begin."""
MOST_FOLLOWERS = 15
"""Small jobs that run in one unit with the one before; work of higher priority waits so long."""


class Policy(StrEnum):
    """Policies by which jobs of different streams share the card."""

    SERIALISED = "serialised"
    CONCURRENT = "concurrent"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        message = "there is no such policy of a card's scheduler"
        raise LaunchError("SPY739", message, expected=" or ".join(cls), found=str(value))


class WorkUnit(msgspec.Struct, eq=False):
    """Iterations ``first`` to ``last`` (excluded) of a stage, or a whole job: run in one piece.

    ``followers``: the jobs behind a whole job in its stream that run in the same piece. ``ran``:
    the number of whole jobs that have run.
    """

    work: Work
    stage: int
    first: int
    last: int
    followers: Sequence[Work] = ()
    ran: int = 0

    def run(self) -> None:
        """Run it; raises the exceptions of the stage.

        A range of preparation that fails is repeated one iteration at a time, so that ``last`` is
        the failing iteration.
        """
        work = self.work
        if self.stage != WHOLE:
            stage = work.stages.all[self.stage]
            try:
                stage.run(work, self.first, self.last)
            except Exception:
                if not stage.is_prep:
                    raise
                self._run_singly(stage)
            return
        for job in (work, *self.followers):  # whole jobs: they hold all engines they need
            if job.state is State.DROPPED:  # by a reset meanwhile, with all jobs behind it
                return
            for stage in job.stages.all:
                stage.run(job, 0, job.iterations)
            self.ran += 1

    def _run_singly(self, stage: Stage) -> None:
        end, self.last = self.last, self.first
        while self.last < end:
            stage.run(self.work, self.last, self.last + 1)
            self.last += 1


class Scheduling:
    """The state: streams, active jobs, busy engines. Not thread-safe; its owner locks.

    ``holds``: nothing is dispatched while it is above 0. ``one_by_one``: units are single
    iterations of single stages, so that each can be observed. ``recovers``: failing work does not
    fail its stream, so later work runs; the stream keeps the first failure until it is reported.
    ``finished``: work without running units; its owner empties it, without the lock.
    """

    def __init__(self, policy: Policy = Policy.SERIALISED) -> None:
        self.policy = policy
        self.finished: deque[Work] = deque()
        self.one_by_one = False
        self.recovers = False
        self.holds = 0
        self.clock: Callable[[], int] = time.perf_counter_ns
        self._busy = [False] * len(Engine)
        self._ready: list[tuple[int, int, StreamQueue]] = []
        self._active: list[Work] = []
        self._number = self._blocks = self._hosts = 0
        self.pending = 0

    # --- submission ------------------------------------------------------------------------------

    def submit(self, stream: StreamQueue, work: Work) -> None:
        """Append ``work`` to ``stream``; a stream that has failed drops it."""
        work.number = self._number
        self._number += 1
        work.stream = stream
        if stream.failure is not None and not self.recovers:
            # the stream failed after the work was submitted
            self.pending += 1
            self._fail_waiting(self._fail_event(work, stream.failure), stream.failure)
            self._end(work, State.DROPPED, stream.failure)
            return
        self._number_blocks(stream, work)
        stream.work.append(work)
        self.pending += 1
        if len(stream.work) == 1:
            self._advance(stream)

    def _number_blocks(self, stream: StreamQueue, work: Work) -> None:
        """Number the control blocks of ``work`` and set its dependencies."""
        event = work.event
        if event is not None:
            if work.is_wait:
                stream.tail = tuple(dict.fromkeys((*stream.tail, *event.tail)))
            else:
                event.tail = stream.tail
            return
        stages = work.stages
        work.first_block, work.first_host = self._blocks, self._hosts
        self._blocks += work.iterations * stages.block_count
        self._hosts += work.iterations * stages.host_count
        work.after = stream.tail
        stream.tail = (work.label(len(stages.all) - 1, work.iterations - 1),)

    def _advance(self, stream: StreamQueue) -> None:
        """Complete records and waits at the head of a stream; make a job there ready."""
        while stream.work:
            head = stream.work[0]
            if head.stages.all:
                heapq.heappush(self._ready, (stream.rank, head.number, stream))
                return
            event = head.event
            assert event is not None
            if not head.is_wait:
                self._complete_event(stream, event)
            elif event.failure is not None and not self.recovers:
                self.fail(stream, event.failure)
                return
            elif event.failure is not None:
                self._keep_failure(stream, event.failure)
            elif not event.done:
                event.waiters.append(stream)
                return
            self._end(stream.work.popleft(), State.DONE)

    def _complete_event(self, stream: StreamQueue, event: EventRecord) -> None:
        event.done = True
        event.failure = stream.failure
        event.time_ns = self.clock()
        waiters, event.waiters = event.waiters, []
        for stream in waiters:
            self._advance(stream)

    def _end(self, work: Work, state: State, failure: Failure | None = None) -> None:
        work.state = state
        work.failure = failure
        self.pending -= 1
        if work.in_flight == 0:
            self.finished.append(work)

    # --- dispatch --------------------------------------------------------------------------------

    def next_unit(self) -> WorkUnit | None:
        """A unit that may run now, with its engines reserved; None if there is none."""
        if self.holds:
            return None
        while self._ready and (self.policy is Policy.CONCURRENT or not self._active):
            self._activate()
        return self._next_of_active() or self._look_ahead()

    def _activate(self) -> None:
        """Make the first ready job active."""
        _, number, stream = heapq.heappop(self._ready)
        # Dropped work stays on the heap, so the stream's head may be another job now.
        if not stream.work or stream.work[0].number != number:
            return
        work = stream.work[0]
        # Its preparation failed at the first iteration. This is reported only now, because the
        # preceding work of the stream had to end first.
        if work.error is not None and work.limit == 0:
            self._fail_at(work, work.error)
            return
        work.state = State.ACTIVE
        self._active.append(work)

    def _next_of_active(self) -> WorkUnit | None:
        """A unit of the active jobs: by priority, then by time since they last had the cores."""
        for rank in (0, 1):
            for turn, work in enumerate(self._active):
                if work.stream.rank != rank:
                    continue
                unit = self._first_unit(work)
                if unit is not None:
                    # A job that gets the cores goes to the end of the list.
                    if unit.stage in (WHOLE, len(work.done) - 1):
                        self._active.append(self._active.pop(turn))
                    return unit
        return None

    def _first_unit(self, work: Work) -> WorkUnit | None:
        """The whole job if it is small, has not begun and all engines are idle; else a stage."""
        untouched = not self.one_by_one and not work.is_large and work.done[0] == 0
        if untouched and not work.in_flight and not any(self._busy):
            for engine in work.stages.engines:
                self._busy[engine] = True
            work.in_flight = 1
            return WorkUnit(work, WHOLE, 0, work.iterations, self._followers(work))
        return self._unit_of(work, prep_only=False)

    def _followers(self, work: Work) -> Sequence[Work]:
        """The small jobs behind ``work`` in its stream, now in flight; none if others are ready."""
        queue = work.stream.work
        if len(queue) == 1 or self._ready or len(self._active) > 1:
            return ()
        engines, found = work.stages.engines, []
        for job in islice(queue, 1, 1 + MOST_FOLLOWERS):
            if job.is_large or job.in_flight or job.stages.engines != engines:
                break
            if job.error is not None or any(job.done):  # its preparation has begun
                break
            job.in_flight = 1
            job.running = [True] * len(engines)
            found.append(job)
        return found

    def _unit_of(self, work: Work, prep_only: bool) -> WorkUnit | None:
        """A unit of the last stage of ``work`` that can continue."""
        # Last stage first: tiles are finished before others begin, which keeps the queues between
        # stages short.
        for number in range(len(work.stages.all) - 1, -1, -1):
            stage = work.stages.all[number]
            done = work.done[number]
            available = work.limit if number == 0 else min(work.done[number - 1], work.limit)
            if work.running[number] or done >= available or self._busy[stage.engine]:
                continue
            if prep_only and not stage.is_prep:
                continue
            # Preparation is cheap per iteration, so it is not split.
            chunk = available if stage.is_prep else work.chunk
            last = min(available, done + (1 if self.one_by_one else chunk))
            work.running[number] = True
            work.in_flight += 1
            self._busy[stage.engine] = True
            return WorkUnit(work, number, done, last)
        return None

    def _look_ahead(self) -> WorkUnit | None:
        """A preparation unit of jobs behind the active ones, or of ready jobs."""
        if self._busy[Engine.HOST] and self._busy[Engine.DMA]:
            return None
        for work in self._active:
            unit = self._prepare(work.stream.work, 1)
            if unit is not None:
                return unit
        for _, _, stream in heapq.nsmallest(LOOK_AHEAD, self._ready):
            unit = self._prepare(stream.work, 0)
            if unit is not None:
                return unit
        return None

    def _prepare(self, queue: deque[Work], first: int) -> WorkUnit | None:
        for turn in range(first, min(len(queue), first + LOOK_AHEAD)):
            unit = self._unit_of(queue[turn], prep_only=True)
            if unit is not None:
                return unit
        return None

    # --- completion ------------------------------------------------------------------------------

    def complete(self, unit: WorkUnit, error: BaseException | None = None) -> None:
        """Record that ``unit`` has run; ``error``: the exception it raised."""
        if unit.followers:
            self._complete_jobs(unit, error)
            return
        work = unit.work
        work.in_flight -= 1
        # A failed preparation has progressed to `WorkUnit.last`: the iterations before it still
        # run, and the error is raised after them.
        in_preparation = unit.stage != WHOLE and work.stages.all[unit.stage].is_prep
        for number in range(len(work.done)) if unit.stage == WHOLE else (unit.stage,):
            self._busy[work.stages.engines[number]] = False
            work.running[number] = False
            if error is None or in_preparation:
                work.done[number] = unit.last
        if work.state is State.DROPPED or work.state is State.FAILED:
            if work.in_flight == 0:  # its last unit has run, so its memory may be freed
                self.finished.append(work)
            return
        if error is not None and in_preparation:
            work.error, work.limit = error, unit.last
        elif error is not None:
            self._fail_at(work, error)
            return
        if work.state is State.ACTIVE and min(work.done) >= work.limit:
            self._finish(work)

    def _complete_jobs(self, unit: WorkUnit, error: BaseException | None) -> None:
        """`complete` for a unit of several jobs. Those behind one that failed are queued again."""
        stream, jobs = unit.work.stream, (unit.work, *unit.followers)
        for engine in unit.work.stages.engines:
            self._busy[engine] = False
        dropped = unit.work.state is not State.ACTIVE  # and with it all the others
        if not dropped:
            self._active.remove(unit.work)
        for turn, job in enumerate(jobs):
            job.in_flight = 0
            if dropped:
                self.finished.append(job)
            elif turn < unit.ran:
                self._end(stream.work.popleft(), State.DONE)
            else:
                job.running = [False] * len(job.running)
        if error is not None and not dropped:
            self._fail_at(jobs[unit.ran], error)
        elif not dropped:
            self._advance(stream)

    def _finish(self, work: Work) -> None:
        if work.error is not None:
            self._fail_at(work, work.error)
            return
        self._active.remove(work)
        self._end(work.stream.work.popleft(), State.DONE)
        self._advance(work.stream)

    # --- failure ---------------------------------------------------------------------------------

    def _fail_at(self, work: Work, error: BaseException) -> None:
        """Fail ``work``, at the head of its stream, and its stream unless it recovers."""
        stream, failure = work.stream, Failure(error)
        if work in self._active:
            self._active.remove(work)
        self._end(stream.work.popleft(), State.FAILED, failure)
        if self.recovers:
            self._keep_failure(stream, failure)
            self._advance(stream)
        else:
            self.fail(stream, failure)

    def _keep_failure(self, stream: StreamQueue, failure: Failure) -> None:
        """Keep the failure of a stream that recovers, unless an unreported one is kept already."""
        if not failure.reported and (stream.failure is None or stream.failure.reported):
            stream.failure = failure

    def fail(self, stream: StreamQueue, failure: Failure) -> None:
        """Fail ``stream``: drop its work, and fail the streams that wait for its events."""
        stream.failure = failure
        self._fail_waiting(self._drop(stream, failure), failure)

    def _fail_waiting(self, failing: list[StreamQueue], failure: Failure) -> None:
        while failing:
            waiting = failing.pop()
            if waiting.failure is None:
                waiting.failure = Failure(waiting.dependent_error(failure.error))
                failing += self._drop(waiting, waiting.failure)

    def _fail_event(self, work: Work, failure: Failure) -> list[StreamQueue]:
        """Fail the event that dropped work records, if any; return the streams that wait for it."""
        if work.event is None or work.is_wait:
            return []
        work.event.failure = failure
        waiting, work.event.waiters = work.event.waiters, []
        return waiting

    def _drop(self, stream: StreamQueue, failure: Failure) -> list[StreamQueue]:
        """Drop all work of a stream; returns the streams that wait for its records."""
        waiting: list[StreamQueue] = []
        while stream.work:
            work = stream.work.popleft()
            if work in self._active:
                self._active.remove(work)
            waiting += self._fail_event(work, failure)
            self._end(work, State.DROPPED, failure)
        return waiting

    def drop_all(self, streams: list[StreamQueue], error: BaseException) -> None:
        """Drop the work of ``streams`` without failing them, for a device reset."""
        failure = Failure(error)
        for stream in streams:
            self._drop(stream, failure)
            stream.failure = None
        self._ready.clear()
