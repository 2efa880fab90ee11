"""Streams of a card, events in them, and captured work.

A `FlexStream` is the pipeline RFC's: a queue of jobs that run in order while the host goes on. It
submits the stages of a job's plan to the scheduler. Errors are sticky: the first `synchronize` or
`query` after a failure raises it, queued work behind it is dropped, and the stream accepts no more
work (runtime reference §7). If the card's streams recover, only the failing work is lost: work
behind it runs, and the first `synchronize` or `query` of its stream, or of a stream that waited for
it, raises the error. Events follow PyTorch: the last `record` counts, waiting for an event that was
never recorded does nothing, times come from the host clock.

`FlexStream.captured` records the launches and copies of a block with the memory they use, at fixed
addresses. A replay runs them as one job, which costs the host a few microseconds each. While the
card is recorded or has a runner, they are submitted one by one, as in the block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, groupby
from typing import TYPE_CHECKING

from spyre.errors import LaunchError, UnsupportedError
from spyre.rules import LARGEST, require_type, whole_number
from spyre.runtime.flex.blocks import RecordedBlock
from spyre.runtime.flex.scheduling import (
    Engine,
    EventRecord,
    Failure,
    Stage,
    Stages,
    StreamQueue,
    Work,
)
from spyre.runtime.flex.steps import (
    NO_VALUES,
    Card,
    Job,
    JobPlan,
    JobWork,
    require_card,
    require_tensors,
)
from spyre.runtime.memory import SpyreTensor

if TYPE_CHECKING:
    from spyre.runtime.tiling.tile_plan import TilingOptions

Call = Callable[[], None]


class Event:
    """A point in a stream. Usable from any thread. ``enable_timing``: allow `elapsed_time`."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self._record: EventRecord | None = None
        self._stream: FlexStream | None = None

    def record(self, stream: FlexStream) -> None:
        """Make the event complete when all work submitted to ``stream`` so far has completed."""
        require_type("the stream", stream, FlexStream)
        record = EventRecord()
        stream.submit(Work(event=record))
        self._record, self._stream = record, stream

    def wait(self, stream: FlexStream) -> None:
        """Make later work of ``stream`` wait for the event; returns at once.

        A failure of the recorded stream fails ``stream`` too. For a stream of another card the host
        waits.
        """
        require_type("the stream", stream, FlexStream)
        if self._stream is not None and stream.device is not self._stream.device:
            self.synchronize()
        elif self._record is not None:
            stream.submit(Work(event=self._record, is_wait=True))

    def query(self) -> bool:
        """True if complete, or never recorded. Raises the error of a stream that failed before."""
        record = self._record
        if record is None:
            return True
        self._report(record)
        return record.done

    def synchronize(self) -> None:
        """Return once complete. Raises the error of a stream that failed before."""
        record, stream = self._record, self._stream
        if record is None or stream is None:
            return
        stream.device.wait_until(lambda: record.done or record.failure is not None)
        self._report(record)

    def _report(self, record: EventRecord) -> None:
        """Raise a failure before the event; if streams recover, only if not yet reported."""
        failure, stream = record.failure, self._stream
        if failure is not None and stream is not None:
            if not record.done:  # it never will be
                raise failure.error
            stream.report_failure(failure)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of host time from this event to ``end``.

        LaunchError SPY875 if one has no timing, was not recorded or is not complete.
        """
        require_type("the event", end, Event)
        for event in (self, end):
            if not event.enable_timing or event._record is None or not event._record.done:
                message = "the time between these events is unknown"
                expected = "two complete events made with enable_timing"
                raise LaunchError("SPY875", message, expected=expected, found=repr(event))
        assert self._record is not None
        assert end._record is not None
        return (end._record.time_ns - self._record.time_ns) / 1e6

    def __repr__(self) -> str:
        record = self._record
        state = "never recorded" if record is None else "complete" if record.done else "pending"
        if record is not None and record.failure is not None:
            state = "failed"
        return f"Event(enable_timing={self.enable_timing}, {state})"


class FlexStream:
    """A stream of one card. Usable from any thread; jobs run in the order they were submitted.

    ``stream_id``: 0 the default, 1-32 low priority, 33-64 high priority (runtime reference §7).
    """

    def __init__(self, device: Card, stream_id: int, is_high_priority: bool = False) -> None:
        self.device = device
        self.stream_id = stream_id
        self.queue = StreamQueue(stream_id, 0 if is_high_priority else 1)
        self._captured: CapturedWork | None = None
        self._captured_reads: set[Work] = set()

    @property
    def priority(self) -> int:
        """0 for the default stream and the low pool, -1 for the high pool."""
        return self.queue.rank - 1

    def launch(
        self,
        job: Job | JobPlan,
        tensors: Sequence[SpyreTensor] = (),
        options: TilingOptions | None = None,
        values: Mapping[str, int] = NO_VALUES,
    ) -> None:
        """Enqueue a job over ``tensors`` (in argument order) and return.

        Raises LaunchError for tensors that do not fit, and enqueues nothing then; later errors are
        raised by `synchronize`. ``options``: whether and how the kernel iterates over tiles of
        larger tensors (default: SPYRE_ALLOW_TILED_LAUNCH). ``values``: runtime sizes and index
        parameters by name.
        """
        plan = job.job_plan if isinstance(job, Job) else job
        try:
            work = plan.bind(self.device, tensors, options, values)
        except (AttributeError, TypeError):
            require_type("the job", plan, JobPlan)
            require_type("the tensors", tensors, list, tuple)
            require_type("the values", values, Mapping)
            require_tensors(self.device, tensors)
            raise
        self.submit(work)

    def copy(self, plan: JobPlan, keep_alive: Sequence[object]) -> Work:
        """Enqueue a plan without a program; ``keep_alive`` is held until it has run."""
        work = JobWork(plan, self.device, keep_alive, is_large=plan.moves_much)
        self.submit(work)
        return work

    def copy_waiting(self, plan: JobPlan, keep_alive: Sequence[object]) -> None:
        """`copy` and `synchronize`. If the stream has an error, raises it and copies nothing."""
        if self._captured is not None:
            raise capture_error(_READING)
        if self.device.scheduler.is_observed or self.device.is_blocking:
            self.copy(plan, keep_alive)
            self.synchronize()
            return
        # The waiting thread would run the copy anyway, so it needs no job.
        self.synchronize()
        self._run_here(plan, keep_alive)

    def copied_at_once(self, plan: JobPlan, keep_alive: Sequence[object]) -> bool:
        """Run `copy` on this thread if the stream is idle and its jobs are not observed.

        Returns False, and copies nothing, otherwise.
        """
        queue, device = self.queue, self.device
        is_idle = queue.last is None or queue.last.has_ended
        if not is_idle or queue.failure is not None:
            return False
        if device.scheduler.is_observed or device.is_blocking:
            return False
        if device.scheduler.is_held or self._captured is not None:
            return False
        self._run_here(plan, keep_alive)
        return True

    def _run_here(self, plan: JobPlan, keep_alive: Sequence[object]) -> None:
        work = JobWork(plan, self.device, keep_alive)
        for stage in plan.stages.all:
            stage.run(work, 0, 1)

    def add_callback(self, function: Callable[[], None]) -> None:
        """Call ``function`` on the host in stream order; the stream waits until it returns.

        LaunchError SPY874 in ``function`` where it waits for work that can only run after it.
        """
        self.submit(Work(_CALLBACK, 1, partial(self.device.scheduler.run_callback, function)))

    def record_block(self, block: RecordedBlock) -> None:
        """Show an operation that ran outside the scheduler in recordings, in stream order."""
        self.submit(Work(_RECORDED, 1, block))

    def submit(self, work: Work) -> None:
        """Append work. StreamError SPY870 if the stream has failed and does not recover."""
        if self._captured is not None:
            plan = self._captured.add(work)
            if plan.reads_back:
                self._captured_reads.add(work)
        self.device.scheduler.submit(self.queue, work)
        if self.device.is_blocking:
            self.wait_for(work)

    def wait_for(self, work: Work) -> None:
        """Return when ``work`` of this stream has run. Raises only the error of ``work``."""
        if work in self._captured_reads:
            raise capture_error(_READING)
        if not work.has_ended:
            self.device.wait_until(lambda: work.has_ended)
        if work.failure is not None:
            self._mark_reported(work.failure)
            raise work.failure.error

    def record_event(self, event: Event | None = None) -> Event:
        """Record ``event``, or a new one, behind all work submitted so far."""
        event = event if event is not None else Event()
        require_type("the event", event, Event)
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Work submitted from now on waits for ``event``."""
        require_type("the event", event, Event)
        event.wait(self)

    def wait_stream(self, other: FlexStream) -> None:
        """Work submitted from now on waits for the current work of ``other``."""
        require_type("the stream", other, FlexStream)
        self.wait_event(other.record_event())

    def query(self) -> bool:
        """True if all submitted work has ended. Raises the stream's error, once."""
        # Work ends in order of submission, so only the last one matters.
        last = self.queue.last
        idle = last is None or last.has_ended
        if idle:
            self.report()
        return idle

    def synchronize(self) -> None:
        """Return when all work submitted so far has ended. Raises the stream's error, once."""
        if self._captured is not None:
            raise capture_error(_READING)
        last = self.queue.last
        if last is not None and not last.has_ended:
            self.device.wait_until(lambda: last.has_ended)
        self.report()

    @contextmanager
    def captured(self) -> Iterator[CapturedWork]:
        """Run a block of work on this stream and record it for `replay`.

        UnsupportedError SPY888 for events, callbacks, tiled launches, and for waiting on the stream
        or on values that it copies to the host.
        """
        if self._captured is not None:
            raise capture_error("a block within a captured block")
        self._captured = captured = CapturedWork()
        try:
            yield captured
        finally:
            self._captured = None
            self._captured_reads.clear()

    def replay(self, captured: CapturedWork) -> None:
        """Enqueue the work of a `captured` block of this card, at the same addresses."""
        require_type("the captured work", captured, CapturedWork)
        for launch in captured.launches[:1]:
            require_card(self.device, launch.card, "captured work", launch.card)
        singly = self.device.scheduler.is_observed or self.device.runner is not None
        for work in captured.work(singly):
            self.submit(work)

    def report(self) -> None:
        """Raise the stream's error if it was not reported before."""
        failure = self.queue.failure
        if failure is not None:
            self.report_failure(failure)

    def report_failure(self, failure: Failure) -> None:
        """Raise a failure of the stream if it was not reported before."""
        if self._mark_reported(failure):
            error, recovers = failure.error, self.device.scheduler.recovers
            if recovers and isinstance(error, Exception):
                error.add_note(_RAISED_LATE)
            raise error

    def clear_reported(self, interrupt: BaseException) -> None:
        """Mark the stream's failure as reported if it is ``interrupt``."""
        failure = self.queue.failure
        if failure is not None and failure.error is interrupt:
            self._mark_reported(failure)

    def _mark_reported(self, failure: Failure) -> bool:
        """Mark a failure as reported; streams that recover clear it. True for the first caller."""
        queue, scheduler = self.queue, self.device.scheduler
        with scheduler.guarded():
            is_first, failure.reported = not failure.reported, True
            if scheduler.recovers and queue.failure is failure:
                queue.failure = None
        return is_first

    @property
    def error(self) -> BaseException | None:
        """The error that failed the stream; None if there is none, or it has recovered."""
        failure = self.queue.failure
        if failure is None or (failure.reported and self.device.scheduler.recovers):
            return None
        return failure.error

    def __repr__(self) -> str:
        state = "failed" if self.error is not None else f"priority {self.priority}"
        return f"FlexStream(device={self.device.index}, id={self.stream_id}, {state})"


_READING = "reading values on the host, or waiting for the stream,"
_RAISED_LATE = (
    "An operation that was enqueued earlier failed while it ran, so its results are not there; "
    "later operations have run. With SPYRE_LAUNCH_BLOCKING=1 the error is raised where that "
    "operation was called."
)


def _call(work: Work, first: int, last: int) -> None:
    work.payload()


_CALLBACK = Stages((Stage(Engine.HOST, _call),))


def _nothing(work: Work, first: int, last: int) -> None:
    """Do nothing: the operation has run outside the scheduler."""


_RECORDED = Stages((Stage(Engine.DMA, _nothing),))


# --- captured work ----------------------------------------------------------------------------


class CapturedWork:
    """A stream's launches and copies, in order. Once complete, any thread may call `work`."""

    def __init__(self) -> None:
        self.launches: list[JobWork] = []
        self._stages: Stages | None = None

    def add(self, work: Work) -> JobPlan:
        """Record work that is about to be submitted; returns its plan.

        UnsupportedError SPY888 for work that cannot be captured.
        """
        if not isinstance(work, JobWork):
            raise capture_error("events, callbacks and collectives in a captured block")
        if not work.is_single:
            raise capture_error(
                f"{work.plan.name}: a launch over tiles, or with a correction tensor"
            )
        self.launches.append(work.again())  # `work` drops its memory when it ends
        return work.plan

    def memory(self) -> Iterator[object]:
        """Owners of the memory that the launches and copies use, possibly repeated."""
        for launch in self.launches:
            yield from launch.payload

    def work(self, singly: bool) -> Iterator[Work]:
        """The work to submit for one replay: one job, or one per launch if ``singly``."""
        if singly:
            yield from (launch.again() for launch in self.launches)
        elif self.launches:
            if self._stages is None:
                self._stages = Stages(_joined_stages(self.launches))
            yield Work(self._stages, 1, self, is_large=True)


def capture_error(feature: str) -> UnsupportedError:
    """The error for a feature that cannot be captured."""
    message = f"{feature} cannot be captured for replay"
    expected = "launches on one stream, and copies whose values the host does not wait for"
    return UnsupportedError("SPY888", message, expected=expected, hint="move it out of the block")


def _joined_stages(launches: Iterable[JobWork]) -> Iterator[Stage]:
    """One stage for each run of consecutive steps on the same engine."""
    steps = (
        (stage.engine, partial(stage.run, launch, 0, 1))
        for launch in launches
        for stage in launch.stages.all
    )
    for engine, run in groupby(steps, key=lambda step: step[0]):
        yield Stage(Engine(engine), partial(_run_all, tuple(call for _, call in run)))


def _run_all(calls: tuple[Call, ...], work: Work, first: int, last: int) -> None:
    for call in calls:
        call()


# --- pools ------------------------------------------------------------------------------------

POOL_STREAMS = 32
"""Streams of each pool."""


class StreamPool:
    """Streams of a card. Usable from any thread, without locks that interrupts leave locked."""

    def __init__(self, device: Card) -> None:
        self._device = device
        self._turns = {False: count(), True: count()}
        self._local = threading.local()
        self.default = FlexStream(device, 0)
        self._streams: dict[int, FlexStream] = {0: self.default}

    def take(self, priority: int = 0) -> FlexStream:
        """The next stream of the low pool (``priority`` 0) or of the high pool (any other)."""
        high = whole_number("the priority", priority, -LARGEST) != 0
        turn = next(self._turns[high]) % POOL_STREAMS
        stream_id = 1 + turn + (POOL_STREAMS if high else 0)
        if (stream := self._streams.get(stream_id)) is not None:
            return stream
        return self._streams.setdefault(stream_id, FlexStream(self._device, stream_id, high))

    def of_id(self, stream_id: int) -> FlexStream:
        """A stream that `take` has returned. LaunchError SPY872 for any other id."""
        stream = self._streams.get(whole_number("the stream id", stream_id, -LARGEST))
        if stream is None:
            message = f"no flex handle for stream id {stream_id}: was the stream pool initialized?"
            expected = f"0, or an id that was handed out: {sorted(self._streams)}"
            raise LaunchError("SPY872", message, expected=expected, found=str(stream_id))
        return stream

    # Streams are never deleted, because torch refers to them by id.
    def handed_out(self) -> list[FlexStream]:
        """Every stream returned so far, by id."""
        return [self._streams[k] for k in sorted([*self._streams])]

    @property
    def current(self) -> FlexStream:
        """The calling thread's stream; the default one unless it chose another."""
        return getattr(self._local, "stream", self.default)

    def set_current(self, stream: FlexStream) -> FlexStream:
        """Make ``stream`` the calling thread's; returns the one before."""
        require_type("the stream", stream, FlexStream)
        require_card(self._device, stream.device, "the stream", stream)
        before = self.current
        self._local.stream = stream
        return before

    @contextmanager
    def using(self, stream: FlexStream) -> Iterator[FlexStream]:
        """``stream`` as the current one within the block."""
        before = self.set_current(stream)
        try:
            yield stream
        finally:
            self.set_current(before)
