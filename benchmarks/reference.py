"""Reference loops: how fast the machine is while a section is measured.

Four fixed loops that no change of the simulator touches are timed between the measurements of a
section, each a few milliseconds. Results keep their times; :mod:`.comparison` takes from them by
how much the machine itself was slower or faster in one of two runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PERIOD_SECONDS = 0.3
"""Between two timings of the loops at least."""
EVERY_CPU, PROCESS = "every CPU", "process"
_PROCESS = "import argparse, asyncio, dataclasses, decimal, json"
Loop = Callable[[], object]


def loops() -> dict[str, Loop]:
    """Bound by the interpreter, by arithmetic in cache, by memory, and arithmetic on every CPU."""
    arguments = np.linspace(0.0, 3.0, 4096)
    out = np.empty_like(arguments)
    source = np.ones(4 << 20)
    target = np.zeros_like(source)
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    own = threading.local()

    def interpreted() -> int:
        total = 0
        for number in range(40_000):
            total += number & 7
        return total

    def arithmetic() -> None:
        for _ in range(60):
            np.sin(arguments, out=out)

    def memory() -> None:
        np.copyto(target, source)

    def share(_: int) -> None:
        if not hasattr(own, "out"):
            own.out = np.empty((8, arguments.size))
        wide = np.broadcast_to(arguments, own.out.shape)
        for _ in range(8):
            np.sin(wide, out=own.out)

    def every_cpu() -> None:
        list(pool.map(share, range(pool._max_workers)))

    return {"interpreted": interpreted, "arithmetic": arithmetic, "memory": memory,
            EVERY_CPU: every_cpu}  # fmt: skip


class Reference:
    """Times the loops and keeps what it found since it was asked last. For one thread."""

    def __init__(self, period_seconds: float = PERIOD_SECONDS) -> None:
        self._period = period_seconds
        self._loops: Mapping[str, Loop] = {}
        self._found: dict[str, list[float]] = {}
        self._last = float("-inf")

    def tick(self, anyway: bool = False) -> None:
        """Time every loop once, ``anyway`` or unless that was done within the period."""
        if not anyway and time.perf_counter() - self._last < self._period:
            return
        if not self._loops:
            self._loops = loops()
            self._time_all()
        for name, seconds in self._time_all().items():
            self._found.setdefault(name, []).append(seconds)
        self._last = time.perf_counter()

    def start_process(self) -> None:
        """Time a whole process that imports a few modules: for sections that measure processes."""
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", _PROCESS], check=True)
        self._found.setdefault(PROCESS, []).append(time.perf_counter() - begin)

    def take(self) -> dict[str, tuple[float, ...]]:
        """Seconds of every loop since the last call."""
        found, self._found = self._found, {}
        return {name: tuple(seconds) for name, seconds in found.items()}

    def _time_all(self) -> dict[str, float]:
        found = {}
        for name, call in self._loops.items():
            begin = time.perf_counter()
            call()
            found[name] = time.perf_counter() - begin
        return found


reference = Reference()
"""The suite's: whatever measures in it ticks between its measurements."""
