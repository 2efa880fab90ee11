"""`FlexStream`: a queue of jobs that run in order, while the host goes on.

The pipeline RFC's FlexStream: it walks a job's plan into stages for the scheduler. Everything but
`synchronize` returns at once. Errors of work are sticky: the first `synchronize` or `query`
after it raises it, what was queued behind it is dropped, and the stream takes nothing more
(runtime reference §7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spyre.errors import SpyreError, StreamError
from spyre.runtime.flex.card import Card
from spyre.runtime.flex.engine import Engine
from spyre.runtime.flex.event import Event
from spyre.runtime.flex.job import NO_VALUES, Job, JobPlan, LaunchContext, LaunchOutcome
from spyre.runtime.flex.scheduler import StreamHasFailed
from spyre.runtime.flex.spyre_tensor import SpyreTensor
from spyre.runtime.flex.work import Stage, Stages, StreamQueue, Work
from spyre.runtime.tiling.options import TilingOptions


class FlexStream:
    """A stream of one card. Usable from any thread; jobs run in the order they were submitted.

    ``stream_id``: 0 the default, 1-32 low priority, 33-64 high priority (runtime reference §7).
    """

    def __init__(self, device: Card, stream_id: int, is_high_priority: bool = False) -> None:
        self.device = device
        self.stream_id = stream_id
        self._queue = StreamQueue(stream_id, 0 if is_high_priority else 1)

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

    def submit_launch(self, context: LaunchContext) -> LaunchOutcome:
        """Enqueue a launch that was bound."""
        stages, size = context.plan.stages, context.is_large
        work = Work(stages, context.iterations, context, is_large=size, chunk=context.chunk)
        self.submit(work)
        return context.outcome

    def add_callback(self, function: Callable[[], None]) -> None:
        """Call ``function`` on the host in stream order; the stream waits until it returns."""
        self.submit(Work(_CALLBACK, 1, function))

    def submit(self, work: Work) -> None:
        """Append work. StreamError SPY870 when the stream has failed."""
        try:
            self.device.scheduler.submit(self._queue, work)
        except StreamHasFailed:
            raise self._refusal() from self._queue.error
        if self.device.is_blocking:
            self.synchronize()

    def _refusal(self) -> StreamError:
        error = self._queue.error
        text = str(error).splitlines()[0] if error is not None else ""
        return StreamError(
            "SPY870",
            f"stream {self.stream_id} has failed and takes no more work",
            expected="a stream without an error, or a reset of the device",
            found=text or type(error).__name__,
        )

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
        last = self._queue.last
        idle = last is None or last.has_ended
        if idle:
            self.report()
        return idle

    def synchronize(self) -> None:
        """Return when everything submitted until now has ended. Raises the stream's error, once."""
        last = self._queue.last
        if last is not None:
            self.device.scheduler.wait_until(lambda: last.has_ended)
        self.report()

    def report(self) -> None:
        """Raise the stream's error, the first time it is asked for."""
        queue = self._queue
        if queue.error is None or queue.reported:
            return
        queue.reported = True
        raise queue.error

    @property
    def error(self) -> BaseException | None:
        """Why the stream has failed; None while it has not."""
        return self._queue.error

    @property
    def queue(self) -> StreamQueue:
        """Its queue, for the scheduler."""
        return self._queue

    def __repr__(self) -> str:
        state = "failed" if self._queue.error is not None else f"priority {self.priority}"
        return f"FlexStream(device={self.device.index}, id={self.stream_id}, {state})"


def _call(function: Callable[[], None], first: int, last: int) -> None:
    function()


_CALLBACK = Stages((Stage(Engine.HOST, _call),))


def dependent_error(error: BaseException, stream: StreamQueue) -> SpyreError:
    """The error of a stream that waits for an event of a failed one."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return StreamError(
        "SPY871",
        f"stream {stream.stream_id} waits for an event of a stream that failed",
        expected="the event to complete",
        found=text,
    )
