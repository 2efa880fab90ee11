"""``torch.spyre.trace``: what the cards did, as a Chrome trace beside that of ``torch.profiler``.

Both count microseconds from the same moment: Kineto's times are the system clock's, the cards' are
of the host's monotonic clock, and the difference of the two is measured when the trace is written.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from spyre.errors import LaunchError
from spyre.runtime.flex.devices import devices
from spyre.runtime.flex.trace import TimeAxis, check_trace_file, write_trace
from spyre.torch_backend.cards import card_at
from spyre.torch_backend.compat import TRACE_BASE_STEP_S

if TYPE_CHECKING:
    from spyre.runtime.flex.command_stream import CommandStream
    from spyre.runtime.flex.flex_device import FlexDevice

FIRST_PROCESS = 1 << 22
"""Process of card 0 in the trace: above all numbers Linux gives to processes."""
_SAMPLES = 16
_recording = threading.Lock()


class trace:
    """``with torch.spyre.trace("out.json"):`` writes what all cards do in the block, for Perfetto.

    A process per card with tracks for streams and engines; times and process numbers are such that
    the file can be shown with, or its ``traceEvents`` appended to, those of
    ``torch.profiler``'s ``export_chrome_trace``. What was submitted before the block runs first,
    what was submitted in it has ended when the block is left. The file is written whole or not at
    all, also when the block raises. LaunchError SPY886 for a file that cannot be written, SPY950
    within another trace of the process.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = check_trace_file(path)
        self._found: dict[int, CommandStream] = {}
        self._stack = ExitStack()

    def __enter__(self) -> trace:
        if not _recording.acquire(blocking=False):
            raise _nested()
        try:
            self._found.clear()
            card_at(-1)
            devices().watch(self._record)
        except BaseException:
            self._end(None, None, None)
            raise
        return self

    def _record(self, card: FlexDevice) -> None:
        self._found[card.index] = self._stack.enter_context(card.recording())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._end(kind, error, traceback)
        finally:
            recordings = dict(sorted(self._found.items()))
            write_trace(self._path, recordings, time_axis())

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            devices().watch(None)
            self._stack.__exit__(kind, error, traceback)
        finally:
            _recording.release()


def time_axis() -> TimeAxis:
    """The host clock where the times of ``export_chrome_trace`` begin."""
    base_ns = int(time.time()) // TRACE_BASE_STEP_S * TRACE_BASE_STEP_S * 1_000_000_000
    return TimeAxis(base_ns - _epoch_offset_ns(), base_ns, FIRST_PROCESS)


def _epoch_offset_ns() -> int:
    """Nanoseconds since 1970 at host clock 0: the tightest of some readings of both clocks."""
    readings = []
    for _ in range(_SAMPLES):
        before, now, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        readings.append((after - before, now - (before + after) // 2))
    return min(readings)[1]


def _nested() -> LaunchError:
    return LaunchError(
        "SPY950",
        "a trace of the cards is being recorded already",
        expected="one torch.spyre.trace at a time in a process",
        hint="leave the other block first",
    )
