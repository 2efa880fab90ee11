"""Whether to run a program by interpreted kernels, while the compiled ones are made.

At a first run no kernel is in the disk cache, and compiling what a small program needs takes two
CPUs five to ten seconds. Interpreted, it takes a fraction of a second, and gives the same bits.
Once the background has done its work, whoever runs next loads the kernels.

The process in the background belongs to nobody: it has a low priority, ends by itself, and
goes on where the one that started it ends. Files of the cache are written complete or not at all,
so it may be killed at any time. The first that a process starts waits for those of others: at a
first run they likely compile the same.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from spyre import config
from spyre.cache import PACKAGE
from spyre.hw.interpreter.source import kernels_of
from spyre.hw.table import KERNEL_NAMES, plan as tb
from spyre.interrupts import interrupts
from spyre.layout import Int64Array

MAX_SECONDS = 2.0
"""What may be interpreted, by its estimate: less than the kernels of any program take."""
MAX_SECONDS_IN_ALL = 4.0
"""What a process may spend so: then the background, which gets the CPUs, is waited for."""
MAX_WAIT_SECONDS = 20.0
"""But no longer, in all: beside other work one of low priority may take any time."""
_COST_NS = {
    "elementwise": (20_000, 400),
    "reduction": (150_000, 300),
    "copying": (10_000, 300),
    "converting": (20_000, 300),
    "restickify": (150_000, 300),
    "matmul": (1_300_000, 300),
    "topk": (100_000, 400),
    "chunk_reduction": (50_000_000, 1000),
    "chunk_matmul": (1_000_000, 500),
    "packed_matmul": (5_000_000, 600),
    "requantize": (100_000, 1200),
    "windowing": (150_000, 900),
    "fusion": (0, 0),  # of several tables, each with a kind of its own
}
"""What a unit of work takes interpreted, and how many times what a table says that it takes
compiled: fitted to real programs, on an Intel Xeon."""
_STICK_NS = 20_000
"""For a stick of a copy between host and card."""
_NICENESS = 5
_COMPILE = f"""
import fcntl, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # not without those it has started
os.nice({_NICENESS})
if sys.argv[1]:
    directory = os.open(sys.argv[1], os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
from spyre.hw.kernels.together import compile_missing
compile_missing(sys.argv[2:])
"""
"""Holds the cache directory until it ends, if it is given. Who waits for that has little more than
Python."""
_POLL_SECONDS = 0.05


def interpreted_seconds(tables: Int64Array, dispatched: Int64Array) -> float:
    """Estimate for the dispatches of tables ``dispatched``."""
    # rows that continue a table are not dispatched: whatever kind they are taken for counts 0 times
    costs = np.array([_COST_NS[name] for name in KERNEL_NAMES])[tables[:, tb.KIND]]
    taken_ns = (costs * tables[:, (tb.UNITS, tb.COST_NS)]).sum(axis=1)
    return float(np.bincount(dispatched, minlength=len(tables)) @ taken_ns) / 1e9


def copy_seconds(sticks: int) -> float:
    """Estimate for a copy of so many sticks."""
    return sticks * _STICK_NS / 1e9


MAX_STEPS = 2000
"""Steps of a loop that is Python's, of what links or moves a program."""


def compiled_or_interpreted(function: Any, steps: int) -> Any:
    """``function``, which is under `spyre.hw.kernels.jit.kernel`; in its place its interpreted form
    for a call of so many ``steps``, until it is compiled with what drives programs.
    """
    if function.overloads or steps > MAX_STEPS or not config.interprets_meanwhile():
        return function
    from spyre.hw.kernels.jit import is_kept

    if is_kept(function):
        return function
    return kernels_of(function.__module__)[function.__name__]


@dataclass(frozen=True)
class _Process:
    """One that compiles, and the names of what it was asked for."""

    process: subprocess.Popen[bytes]
    names: frozenset[str]


class Meanwhile:
    """What is compiled in the background for this process. Any thread may ask.

    ``spent_seconds``: what was interpreted so far. ``patience_seconds``: what may still be waited.
    """

    def __init__(self) -> None:
        self._started: list[_Process] = []
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._leave)

    def _forget(self) -> None:
        self._leave()
        self._lock = threading.Lock()
        self._started = []
        self._ready: set[str] = set()
        self.spent_seconds = 0.0
        self.patience_seconds = MAX_WAIT_SECONDS

    def stands_in(self, names: Collection[str], seconds: float) -> bool:
        """Whether to interpret what takes ``seconds``, since kernels ``names`` are being compiled.

        They are from now on, if some are missing. False: they are there, which may have been waited
        for, or are to be compiled now.
        """
        from spyre.hw.kernels.together import DRIVER, can_be_compiled_elsewhere

        if not config.interprets_meanwhile() or not can_be_compiled_elsewhere():
            return False
        wanted = frozenset((*names, DRIVER))
        if seconds <= MAX_SECONDS and self.spent_seconds <= MAX_SECONDS_IN_ALL:
            with self._lock:
                return self._are_compiling(wanted)
        self._wait(wanted)
        return False

    def _are_compiling(self, wanted: frozenset[str]) -> bool:
        """Whether some of the kernels are being compiled; all that are missing, from now on."""
        from spyre.hw.kernels.notice import compile_notice
        from spyre.hw.kernels.together import missing_of

        compiling = self._names(running=True)
        missing = frozenset(missing_of(wanted - compiling - self._ready))
        self._ready |= wanted - compiling - missing
        # what a process that has ended was asked for and did not make is compiled here
        if missing & self._names(running=False):
            return False
        if missing:
            # who begins after another one likely needs the same; further kernels are others
            self._started.append(_start(missing, takes_turn=not self._started))
            compile_notice().say_background()
        return bool(missing or wanted & compiling)

    def _wait(self, wanted: frozenset[str]) -> None:
        """Until the processes that compile some of ``wanted`` have ended, or patience has: then it
        is done here, and they are ended.
        """
        from spyre.hw.kernels.notice import compile_notice

        for each in self._started:
            if each.process.poll() is None and wanted & each.names:
                begin = time.monotonic()
                end = _until_ended(each, begin + self.patience_seconds)
                for _ in compile_notice().elsewhere(end, len(each.names)):
                    pass
                self.patience_seconds -= time.monotonic() - begin
                if self.patience_seconds <= 0:
                    each.process.terminate()

    def _names(self, running: bool) -> frozenset[str]:
        """What processes were asked for that run, or that have ended."""
        chosen = [each.names for each in self._started if (each.process.poll() is None) == running]
        return frozenset().union(*chosen)

    def _leave(self) -> None:
        """This process ends, and what it has started goes on."""
        for each in self._started:
            each.process.returncode = 0  # subprocess would warn of it


meanwhile = Meanwhile()
"""Of this process."""


def _start(names: Iterable[str], takes_turn: bool) -> _Process:
    """One that compiles ``names``, when no other has its turn or at once."""
    directory = str(config.cache_directory()) if takes_turn else ""
    path = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _COMPILE, directory, *sorted(names)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, config.PROGRESS.name: "0"},
    )
    return _Process(process, frozenset(names))


def _until_ended(each: _Process, latest: float) -> Iterator[str]:
    """Nothing, once the process has ended or it is ``latest`` on the monotonic clock."""
    while each.process.poll() is None and time.monotonic() < latest:
        time.sleep(_POLL_SECONDS)
        interrupts.poll()
    yield from ()
