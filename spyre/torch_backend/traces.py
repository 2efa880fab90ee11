"""``torch.spyre.trace``: what the cards did, as a Chrome trace beside that of ``torch.profiler``.

Both count microseconds from the same moment: Kineto's times are the system clock's, the cards' are
of the host's monotonic clock, and the difference of the two is measured when the trace is written.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from spyre.runtime.flex.trace import TimeAxis, check_trace_file, write_trace
from spyre.torch_backend.card_recordings import CardRecordings
from spyre.torch_backend.compat import TRACE_BASE_STEP_S

FIRST_PROCESS = 1 << 22
"""Process of card 0 in the trace: above all numbers Linux gives to processes."""
_SAMPLES = 16


class trace:
    """``with torch.spyre.trace("out.json"):`` writes what all cards do in the block, for Perfetto.

    A process per card with tracks for streams and engines; times and process numbers are such that
    the file can be shown with, or its ``traceEvents`` appended to, those of
    ``torch.profiler``'s ``export_chrome_trace``. What was submitted before the block runs first,
    what was submitted in it has ended when the block is left. The file is written whole or not at
    all, also when the block raises. LaunchError SPY886 for a file that cannot be written, SPY950
    within another trace or profile of the process.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = check_trace_file(path)
        self._recordings = CardRecordings()

    def __enter__(self) -> trace:
        self._recordings.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._recordings.end(kind, error, traceback)
        finally:
            write_trace(self._path, dict(sorted(self._recordings.found.items())), time_axis())


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
