"""Streams of a card and events in them.

`FlexStream` is the pipeline RFC's: a queue of jobs that run in order, while the host goes on; it
walks a job's plan into stages for the scheduler. Errors of work are sticky: the first `synchronize`
or `query` after it raises it, what was queued behind it is dropped, and the stream takes nothing
more (runtime reference §7). Where streams of the card recover, work that fails is alone in that:
what is behind it runs, and the first `synchronize` or `query` after it, of its stream or of one
that waited for it, raises the error. Events follow what PyTorch users know: the last `record`
counts, waiting for an event that was never recorded does nothing, times come from the host clock.
The calls of a `BlockingStream` wait: errors are raised where the work was submitted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from spyre.errors import LaunchError, SpyreError, StreamError
from spyre.hw.memory import DeviceTensor
from spyre.interrupts import interrupts
from spyre.runtime.arguments import HostTensor, read_arguments
from spyre.runtime.dma import host_like
from spyre.runtime.flex.captured import CapturedWork, brings_values, refusal
from spyre.runtime.flex.job import (
    NO_VALUES,
    Job,
    JobPlan,
    LaunchContext,
    LaunchOutcome,
    LaunchPlan,
    NotedBlock,
    bytes_to_device,
    to_device_plan,
    to_host_plan,
)
from spyre.runtime.flex.loaded_kernel import LoadedKernel, load_kernel
from spyre.runtime.flex.scheduler import StreamHasFailed
from spyre.runtime.flex.scheduling import (
    Engine,
    EventRecord,
    Failure,
    Stage,
    Stages,
    StreamQueue,
    Work,
)
from spyre.runtime.kernel import ExecutedLaunch, Kernel, Launch, Runner, TilingOptions, run_recorded
from spyre.runtime.memory import SpyreTensor
from spyre.runtime.program import CompiledBundle, LoweredBundle, files_of_bundle
from spyre.runtime.spyrecode import format_header

if TYPE_CHECKING:
    from spyre.mlir.bundle import Bundle
    from spyre.runtime.flex.device import FlexDevice


class Event:
    """A point in a stream. Usable from any thread.

    ``enable_timing``: `elapsed_time` may be asked for.
    """

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self._record: EventRecord | None = None
        self._stream: FlexStream | None = None

    def record(self, stream: FlexStream) -> None:
        """Complete once everything submitted to ``stream`` until now has completed."""
        record = EventRecord()
        stream.submit(Work(event=record))
        self._record, self._stream = record, stream

    def wait(self, stream: FlexStream) -> None:
        """What ``stream`` gets from now on waits for the event; the host does not.

        A failure of the recorded stream fails ``stream`` too.
        """
        if self._record is not None:
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
        """Raise what failed before it; where streams recover, unless somebody was told."""
        failure, stream = record.failure, self._stream
        if failure is not None and stream is not None:
            if not record.done:  # nor will it be
                raise failure.error
            stream.tell(failure)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of host time from this event to ``end``, both complete.

        LaunchError SPY875 when one has no timing, is not recorded or not complete.
        """
        for event in (self, end):
            if not event.enable_timing or event._record is None or not event._record.done:
                raise LaunchError(
                    "SPY875",
                    "no time can be told between these events",
                    expected="two complete events made with enable_timing",
                    found=repr(event),
                )
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

    def __init__(self, device: FlexDevice, stream_id: int, is_high_priority: bool = False) -> None:
        self.device = device
        self.stream_id = stream_id
        self._queue = StreamQueue(stream_id, 0 if is_high_priority else 1)
        self._captured: CapturedWork | None = None
        self._brings_values: set[Work] = set()

    @property
    def priority(self) -> int:
        """0 for the default stream and the low pool, -1 for the high pool."""
        return self._queue.rank - 1

    def launch(
        self,
        job: Job | JobPlan,
        tensors: Sequence[SpyreTensor] = (),
        options: TilingOptions | None = None,
        values: Mapping[str, int] = NO_VALUES,
    ) -> LaunchOutcome:
        """Enqueue a job over ``tensors`` (in argument order) and return.

        Wrong tensors raise LaunchError here, and nothing is enqueued; what goes wrong later is
        raised by `synchronize`. ``options``: whether larger tensors than the kernel was compiled
        for may be walked tile by tile, and how (default: as SPYRE_ALLOW_TILED_LAUNCH says).
        ``values``: runtime sizes and index parameters by name.
        """
        plan = job.job_plan if isinstance(job, Job) else job
        return self.submit_launch(plan.bind(self.device, tensors, options, values))

    def copy(self, plan: JobPlan, keep_alive: Sequence[object]) -> Work:
        """Enqueue a plan that runs no program; ``keep_alive`` lives until it has run."""
        work = _work(LaunchContext(plan, self.device, keep_alive, is_large=plan.moves_much))
        self.submit(work)
        return work

    def copy_waiting(self, plan: JobPlan, keep_alive: Sequence[object]) -> None:
        """`copy` and `synchronize`; raises the stream's error, once, and then copies nothing."""
        self._refuse_values(self._captured is not None)
        if self.device.is_recorded or self.device.is_blocking:
            self.copy(plan, keep_alive)
            self.synchronize()
            return
        # The thread that waits is the one that would run the copy: it needs no job to do so.
        self.synchronize()
        self._run_here(plan, keep_alive)

    def copied_at_once(self, plan: JobPlan, keep_alive: Sequence[object]) -> bool:
        """`copy` on this thread, where the stream has nothing left to do; False, and nothing is
        done, where it has, or somebody is told of jobs.
        """
        queue, device = self._queue, self.device
        is_idle = queue.last is None or queue.last.has_ended
        if not is_idle or queue.failure is not None or device.is_recorded or device.is_blocking:
            return False
        if device.scheduler.is_held or self._captured is not None:
            return False
        self._run_here(plan, keep_alive)
        return True

    def _run_here(self, plan: JobPlan, keep_alive: Sequence[object]) -> None:
        context = LaunchContext(plan, self.device, keep_alive)
        for step in plan.steps:
            step.stage.run(context, 0, context.iterations)

    def submit_launch(self, context: LaunchContext) -> LaunchOutcome:
        """Enqueue a launch that was bound."""
        self.submit(_work(context))
        return context.outcome

    def add_callback(self, function: Callable[[], None]) -> None:
        """Call ``function`` on the host in stream order; the stream waits until it returns."""
        self.submit(Work(_CALLBACK, 1, function))

    def note(self, block: NotedBlock) -> None:
        """Show in recordings, in the order of the stream, what was done without the scheduler."""
        self.submit(Work(_NOTED, 1, block))

    def submit(self, work: Work) -> None:
        """Append work. StreamError SPY870 when the stream has failed and does not recover."""
        if self._captured is not None:
            self._captured.note(work)
            if brings_values(work):
                self._brings_values.add(work)
        try:
            self.device.scheduler.submit(self._queue, work)
        except StreamHasFailed:
            raise self._refusal() from self._queue.error
        if self.device.is_blocking:
            self.wait_for(work)

    def _refusal(self) -> StreamError:
        return StreamError(
            "SPY870",
            f"stream {self.stream_id} has failed and takes no more work",
            expected="a stream without an error, or a reset of the device",
            found=_first_line(self._queue.error),
        )

    def wait_for(self, work: Work) -> None:
        """Return when ``work``, of this stream, has run. Raises its own error, nothing of what ran
        before it.
        """
        self._refuse_values(work in self._brings_values)
        if not work.has_ended:
            self.device.wait_until(lambda: work.has_ended)
        if work.failure is not None:
            self._is_news(work.failure)
            raise work.failure.error

    def record_event(self, event: Event | None = None) -> Event:
        """Record ``event``, or a new one, behind everything submitted until now."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Work submitted from now on waits for ``event``."""
        event.wait(self)

    def wait_stream(self, other: FlexStream) -> None:
        """Work submitted from now on waits for what ``other`` has now."""
        self.wait_event(other.record_event())

    def query(self) -> bool:
        """True if everything submitted has ended. Raises the stream's error, once."""
        # The work that came in last ends last, so it stands for all of them.
        last = self._queue.last
        idle = last is None or last.has_ended
        if idle:
            self.report()
        return idle

    def synchronize(self) -> None:
        """Return when everything submitted until now has ended. Raises the stream's error, once."""
        self._refuse_values(self._captured is not None)
        last = self._queue.last
        if last is not None and not last.has_ended:
            self.device.wait_until(lambda: last.has_ended)
        self.report()

    @contextmanager
    def captured(self) -> Iterator[CapturedWork]:
        """A block whose work on this stream runs, and is kept for `replay`.

        UnsupportedError SPY888 for what cannot be kept: events and callbacks, launches over tiles,
        waiting for the stream or for values that it copies to the host.
        """
        if self._captured is not None:
            raise refusal("a block within a captured block")
        self._captured = kept = CapturedWork(self.device)
        try:
            yield kept
        finally:
            self._captured = None
            self._brings_values.clear()

    def replay(self, captured: CapturedWork) -> None:
        """Enqueue what a block of `captured` did, at the same addresses."""
        for work in captured.work():
            self.submit(work)

    def _refuse_values(self, are_wanted: bool) -> None:
        if are_wanted:
            raise refusal("reading values on the host, or waiting for the stream,")

    def report(self) -> None:
        """Raise the stream's error, the first time it is asked for."""
        failure = self._queue.failure
        if failure is not None and self._is_news(failure):
            raise self._late(failure)

    def tell(self, failure: Failure) -> None:
        """Raise a failure of the stream that an event met, if nobody was told of it."""
        if self._is_news(failure):
            raise self._late(failure)

    def forget(self, interrupt: BaseException) -> None:
        """Somebody has been told of ``interrupt``."""
        failure = self._queue.failure
        if failure is not None and failure.error is interrupt:
            self._is_news(failure)

    def _is_news(self, failure: Failure) -> bool:
        """True for the first who asks, who is to tell of it; streams that recover forget it."""
        queue = self._queue
        with self.device.scheduler.guarded():
            is_news, failure.told = not failure.told, True
            if self.device.streams_recover and queue.failure is failure:
                queue.failure = None
        return is_news

    def _late(self, failure: Failure) -> BaseException:
        if self.device.streams_recover and isinstance(failure.error, Exception):
            failure.error.add_note(_RAISED_LATE)
        return failure.error

    @property
    def error(self) -> BaseException | None:
        """Why the stream has failed; None while it has not, or has recovered."""
        failure = self._queue.failure
        if failure is None or (failure.told and self.device.streams_recover):
            return None
        return failure.error

    @property
    def queue(self) -> StreamQueue:
        return self._queue

    def __repr__(self) -> str:
        state = "failed" if self.error is not None else f"priority {self.priority}"
        return f"FlexStream(device={self.device.index}, id={self.stream_id}, {state})"


_RAISED_LATE = (
    "An operation that was enqueued earlier failed while it ran, so what it should have written is "
    "not there; those behind it have run. With SPYRE_LAUNCH_BLOCKING=1 it is raised where that "
    "operation was called."
)


def _work(context: LaunchContext) -> Work:
    stages, size = context.plan.stages, context.is_large
    return Work(stages, context.iterations, context, is_large=size, chunk=context.chunk)


def _first_line(error: BaseException | None) -> str:
    """What fits into another error; interrupts and some others have no text."""
    lines = str(error).splitlines() if error is not None else []
    return next(filter(None, lines), type(error).__name__)


def _call(function: Callable[[], None], first: int, last: int) -> None:
    with interrupts.allowed():
        function()


_CALLBACK = Stages((Stage(Engine.HOST, _call),))


def _nothing(block: NotedBlock, first: int, last: int) -> None:
    """It has been done."""


_NOTED = Stages((Stage(Engine.DMA, _nothing),))


def dependent_error(error: BaseException, stream: StreamQueue) -> SpyreError:
    """The error of a stream that waits for an event of a failed one."""
    return StreamError(
        "SPY871",
        f"stream {stream.stream_id} waits for an event of a stream that failed",
        expected="the event to complete",
        found=_first_line(error),
    )


POOL_STREAMS = 32
"""Streams of each pool."""


class StreamPool:
    """Streams of one card. Usable from any thread."""

    def __init__(self, device: FlexDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._next = {False: 0, True: 0}
        self._local = threading.local()
        self.default = FlexStream(device, 0)
        self._streams: dict[int, FlexStream] = {0: self.default}

    def take(self, priority: int = 0) -> FlexStream:
        """The next stream of a pool: ``priority`` 0 the low one, anything else the high one."""
        high = priority != 0
        with self._lock:
            turn = self._next[high]
            self._next[high] = (turn + 1) % POOL_STREAMS
            stream_id = 1 + turn + (POOL_STREAMS if high else 0)
            if stream_id not in self._streams:
                self._streams[stream_id] = FlexStream(self._device, stream_id, high)
            return self._streams[stream_id]

    def of_id(self, stream_id: int) -> FlexStream:
        """A stream that was handed out. LaunchError SPY872 for any other id."""
        stream = self._streams.get(stream_id)
        if stream is None:
            raise LaunchError(
                "SPY872",
                f"no flex handle for stream id {stream_id}: was the stream pool initialized?",
                expected=f"0, or an id that was handed out: {sorted(self._streams)}",
                found=str(stream_id),
            )
        return stream

    # Streams are kept for good: whoever was handed a stream knows it by its id (torch does).
    def handed_out(self) -> list[FlexStream]:
        """Every stream so far, by id."""
        with self._lock:
            return [self._streams[k] for k in sorted(self._streams)]

    @property
    def current(self) -> FlexStream:
        """The calling thread's stream; the default one unless it chose another."""
        stream: FlexStream = getattr(self._local, "stream", self.default)
        return stream

    def set_current(self, stream: FlexStream) -> FlexStream:
        """Make ``stream`` the calling thread's; returns the one before."""
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


class BlockingStream:
    """Copies and launches on one card, one after another. For one thread at a time."""

    def __init__(self, device: FlexDevice) -> None:
        self.device = device
        self._stream = FlexStream(device, 0)

    def to_device(self, host: HostTensor, tensor: DeviceTensor) -> None:
        """Host tensor → device tensor; errors as of `DmaEngine.to_device`."""
        self._run(to_device_plan(host, tensor))

    def to_host(self, tensor: DeviceTensor, out: HostTensor | None = None) -> HostTensor:
        """Device tensor → ``out``, or a new host tensor; errors as of `DmaEngine.to_host`."""
        target = host_like(tensor) if out is None else out
        self._run(to_host_plan(tensor, target))
        return target

    def write_bytes(self, address_bytes: int, content: npt.NDArray[np.uint8], name: str) -> None:
        """Raw bytes → device memory."""
        self._run(bytes_to_device(content, address_bytes, name))

    def load(self, kernel: Kernel) -> LoadedKernel:
        """A kernel whose program is loaded on the card; its launches come bound.

        Of the binary only the header is copied: it is what the card is asked for, and the kernel is
        here already.
        """
        header = format_header(_digest(kernel.bundle))
        name = kernel.bundle.directory.resolve().name or "bundle"
        arguments_of = partial(read_arguments, kernel.bundle)
        loaded, copy = load_kernel(self.device, kernel, arguments_of, header, name)
        self._run(copy)
        return loaded

    def launch(
        self, kernel: LoadedKernel, launch: Launch, runner: Runner | None = None
    ) -> ExecutedLaunch:
        """Run a kernel over tensors that were placed; ``runner``: not plainly."""
        runner = runner or self.device.runner or run_recorded
        launch_plan = LaunchPlan.one_pass(kernel.kernel, launch)
        shown = self.device.is_recorded
        context = kernel.bind_at(
            self.device, launch_plan, launch.addresses, (), runner, is_corrected=shown
        )
        executed = self._wait(context)
        assert isinstance(executed, ExecutedLaunch)
        return replace(executed, name=kernel.name)

    def _run(self, plan: JobPlan) -> None:
        self._wait(LaunchContext(plan, self.device))

    def _wait(self, context: LaunchContext) -> object:
        outcome = self._stream.submit_launch(context)
        try:
            self._stream.synchronize()
        except BaseException:  # errors are sticky, and the next call is to start afresh
            self._stream = FlexStream(self.device, 0)
            raise
        return outcome.detail


def _digest(bundle: LoweredBundle) -> str:
    if isinstance(bundle, CompiledBundle):
        return bundle.digest
    return files_of_bundle(cast("Bundle", bundle)).digest
