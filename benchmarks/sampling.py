"""Takes times: all sides in turn, progress on stderr, reference loops in between.

Sides alternate in one process, with pauses so that neither side's spinning threads disturb the
other; the lower quartile of all rounds is quoted, because other load of the machine only adds time.
Four fixed loops of a few milliseconds, independent of the simulator, are timed between the
measurements of a section. Results keep their times, from which :mod:`.comparison` computes how the
machine's speed changed between two runs. From the third second of a section on, the current
quantity and the elapsed time are printed on stderr: to a terminal one line that is rewritten twice
a second, to a file or pipe a line every ten seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

DELAY_SECONDS = 2.0
TERMINAL_SECONDS, PIPE_SECONDS = 0.5, 10.0
WIDTH = 100


class Progress:
    """Progress of one section at a time. The measuring code calls ``at``; a thread prints."""

    def __init__(self) -> None:
        self._item = ""

    def at(self, item: str) -> None:
        """Set the name of the current quantity."""
        self._item = item

    @contextmanager
    def section(self, name: str, title: str) -> Iterator[None]:
        """Print the section's title, its progress, and at the end its time."""
        self._item = ""
        print(f"{name}: {title}", file=sys.stderr, flush=True)
        begin, ended = time.perf_counter(), threading.Event()
        drawer = threading.Thread(target=self._draw, args=(name, begin, ended), daemon=True)
        drawer.start()
        try:
            yield
        finally:
            ended.set()
            drawer.join()
            _show(f"{name}: {time.perf_counter() - begin:.1f} s", "\n")

    def _draw(self, name: str, begin: float, ended: threading.Event) -> None:
        period = TERMINAL_SECONDS if sys.stderr.isatty() else PIPE_SECONDS
        wait = DELAY_SECONDS
        while not ended.wait(wait):
            wait = period
            end = "" if sys.stderr.isatty() else "\n"
            _show(f"{name}: {time.perf_counter() - begin:.0f} s: {self._item}"[:WIDTH], end)


def _show(text: str, end: str) -> None:
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{start}{text}", file=sys.stderr, end=end, flush=True)


progress = Progress()
"""Progress of the suite."""

PERIOD_SECONDS = 0.3
"""Least time between two timings of the loops."""
EVERY_CPU, PROCESS = "every CPU", "process"
_PROCESS = "import argparse, asyncio, dataclasses, decimal, json"
Loop = Callable[[], object]


def loops() -> dict[str, Loop]:
    """Return loops bound by the interpreter, arithmetic, memory, and arithmetic on every CPU."""
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
    """Times the loops and collects the times until `take`. For one thread."""

    def __init__(self, period_seconds: float = PERIOD_SECONDS) -> None:
        self._period = period_seconds
        self._loops: Mapping[str, Loop] = {}
        self._found: dict[str, list[float]] = {}
        self._last = float("-inf")

    def tick(self, anyway: bool = False) -> None:
        """Time every loop once if ``anyway`` or the period has passed since the last time."""
        if not anyway and time.perf_counter() - self._last < self._period:
            return
        if not self._loops:
            self._loops = loops()
            self._time_all()
        for name, seconds in self._time_all().items():
            self._found.setdefault(name, []).append(seconds)
        self._last = time.perf_counter()

    def start_process(self) -> None:
        """Time a process that imports a few modules, for sections that measure processes."""
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", _PROCESS], check=True)
        self._found.setdefault(PROCESS, []).append(time.perf_counter() - begin)

    def take(self) -> dict[str, tuple[float, ...]]:
        """Return the seconds of every loop since the last call."""
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
"""Reference loops of the suite; sections call ``tick`` between measurements."""

PAUSE_SECONDS = 0.15
"""OpenBLAS's threads spin for 0.1 s after a product, on the CPUs of what is measured next."""
QUICK_PAUSE_SECONDS = 0.02
ROUNDS = 15
SAMPLE_SECONDS, MOST_CALLS = 0.02, 9


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one side: lower quartile, median and best of ``rounds``."""

    lower_quartile: float
    median: float
    best: float
    rounds: int


def alternate(
    sides: Mapping[str, Callable[[], object]],
    rounds: int = ROUNDS,
    pause_seconds: float = PAUSE_SECONDS,
) -> dict[str, Timing]:
    """Time every side ``rounds`` times in turn.

    Before each timed call the same side runs once untimed, so that caches and threads are in the
    state of repeated use.
    """
    seconds = samples(sides, rounds, pause_seconds)
    return {name: _summary(values) for name, values in seconds.items()}


def samples(
    sides: Mapping[str, Callable[[], object]],
    rounds: int = ROUNDS,
    pause_seconds: float = PAUSE_SECONDS,
) -> dict[str, list[float]]:
    """Like `alternate`, but return the seconds of every round of every side, one call each."""
    return sweeps({"": sides}, rounds, pause_seconds, 0.0)[""]


def sweeps(
    groups: Mapping[str, Mapping[str, Callable[[], object]]],
    rounds: int | Mapping[str, int] = ROUNDS,
    pause_seconds: float = PAUSE_SECONDS,
    sample_seconds: float = SAMPLE_SECONDS,
) -> dict[str, dict[str, list[float]]]:
    """Return `samples` of several groups of sides, taking a round of every group in turn.

    The samples of a quantity are spread over the whole time, so that they show the machine's
    variation. A sample is the best of the calls within ``sample_seconds``, one to MOST_CALLS.
    ``rounds``: for all groups or by group. Reference loops are timed between the groups.
    """
    seconds: dict[str, dict[str, list[float]]] = {
        group: {name: [] for name in sides} for group, sides in groups.items()
    }
    counts = {group: rounds if isinstance(rounds, int) else rounds[group] for group in groups}
    for number in range(max(counts.values(), default=0)):
        for group, sides in groups.items():
            if number < counts[group]:
                _round(group, sides, seconds[group], pause_seconds, sample_seconds)
    return seconds


def _round(
    group: str,
    sides: Mapping[str, Callable[[], object]],
    seconds: Mapping[str, list[float]],
    pause_seconds: float,
    sample_seconds: float,
) -> None:
    for number, (name, call) in enumerate(sides.items()):
        progress.at(f"{group} {name}".strip())
        time.sleep(pause_seconds)
        if not number:
            reference.tick()
        call()
        seconds[name].append(_sample(call, sample_seconds))


def _sample(call: Callable[[], object], sample_seconds: float) -> float:
    found: list[float] = []
    while not found or (sum(found) + found[-1] < sample_seconds and len(found) < MOST_CALLS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def _summary(values: list[float]) -> Timing:
    ordered = sorted(values)
    count = len(ordered)
    return Timing(ordered[count // 4], ordered[count // 2], ordered[0], count)
