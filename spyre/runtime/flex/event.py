"""Events: a point in a stream that other streams and the host can wait for.

The runtime specifications leave them open; these follow what PyTorch users know: the last `record`
counts, waiting for an event that was never recorded does nothing, times come from the host clock.
"""

from __future__ import annotations

from typing import Protocol

from spyre.errors import LaunchError
from spyre.runtime.flex.card import Card
from spyre.runtime.flex.work import EventRecord, Work


class Stream(Protocol):
    """What an event needs of a stream: `FlexStream` is one."""

    device: Card

    def submit(self, work: Work) -> None:
        """Append work."""


class Event:
    """A point in a stream. Usable from any thread.

    ``enable_timing``: `elapsed_time` may be asked for.
    """

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self._record: EventRecord | None = None
        self._stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        """Complete once everything submitted to ``stream`` until now has completed."""
        record = EventRecord()
        stream.submit(Work(event=record))
        self._record, self._stream = record, stream

    def wait(self, stream: Stream) -> None:
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
        if record.error is not None:
            raise record.error
        return record.done

    def synchronize(self) -> None:
        """Return once complete. Raises the error of a stream that failed before."""
        record, stream = self._record, self._stream
        if record is None or stream is None:
            return
        stream.device.scheduler.wait_until(lambda: record.done or record.error is not None)
        if record.error is not None:
            raise record.error

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
        if record is not None and record.error is not None:
            state = "failed"
        return f"Event(enable_timing={self.enable_timing}, {state})"
