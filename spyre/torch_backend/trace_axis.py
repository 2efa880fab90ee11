"""Where times of the cards' traces begin, so that they fit those of ``torch.profiler``.

Both count microseconds from the same moment: Kineto's times are the system clock's, the cards' are
of the host's monotonic clock, and the difference of the two is measured when a trace is written.
"""

from __future__ import annotations

import time

from spyre.runtime.flex.trace import TimeAxis
from spyre.torch_backend.compat import TRACE_BASE_STEP_S

FIRST_PROCESS = 1 << 22
"""Process of card 0 in the trace: above all numbers Linux gives to processes."""
_SAMPLES = 16


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
