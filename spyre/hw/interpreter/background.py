"""Compilation of missing kernels in the background, while small programs are interpreted.

At a first run no kernel is in the disk cache, and compiling the kernels of a small program takes
two CPUs five to ten seconds. Interpreted, it takes a fraction of a second, and gives the same bits.
Runs after the compilation load the kernels from the cache.

The background process has a low priority, ends by itself, and continues when the process that
started it ends. Files of the cache are written complete or not at all, so it may be killed at any
time. One process at a time compiles for a cache; the others wait, and then compile the rest.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from spyre import cache, config
from spyre.hw import plan_table as tb
from spyre.hw.interpreter.source import interpreted, kernels_of
from spyre.interrupts import interrupts
from spyre.layout import Int64Array

MAX_SECONDS = 2.0
"""Longest estimate of a program that is interpreted: compiling any program takes longer."""
MAX_SECONDS_IN_ALL = 4.0
"""Interpretation time of a process, after which it waits for the background process instead."""
MAX_WAIT_SECONDS = 20.0
"""Total time a process waits: at low priority compilation may take any time."""
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
    "fusion": (0, 0),  # of several tables, each with a separate kind
    "moving": (20_000, 300),
}
"""Time of an interpreted unit of work, and factor over the compiled time in the table (COST_NS):
fitted to real programs, on an Intel Xeon."""
_STICK_NS = 20_000
"""Time of a stick in a copy between host and card."""
_NICENESS = 5
_COMPILE = f"""
import fcntl, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # not without those it has started
os.nice({_NICENESS})
directory = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(directory, fcntl.LOCK_EX)
from spyre.hw.kernels.parallel_compile import compile_missing
compile_missing(sys.argv[2:])
"""
"""Program of a background process: cache directory to lock until it ends, then kernel names.
It imports the package after the lock, so that waiting takes little memory."""
_POLL_SECONDS = 0.05


def interpreted_seconds(tables: Int64Array, dispatched: Int64Array) -> float:
    """Estimated time of interpreting the dispatches of tables ``dispatched``."""
    # rows that continue a table are not dispatched: their kind is irrelevant, since they count 0
    # times
    costs = np.array([_COST_NS[name] for name in tb.KERNEL_NAMES])[tables[:, tb.KIND]]
    taken_ns = (costs * tables[:, (tb.UNITS, tb.COST_NS)]).sum(axis=1)
    return float(np.bincount(dispatched, minlength=len(tables)) @ taken_ns) / 1e9


def copy_seconds(sticks: int) -> float:
    """Estimated time of interpreting a copy of so many sticks."""
    return sticks * _STICK_NS / 1e9


MAX_STEPS = 2000
"""Most steps of a linking or relocating loop that is run by Python."""


def compiled_or_interpreted(name: str, steps: int) -> Callable[..., Any]:
    """The function ``name`` of `spyre.hw.kernels.machine_code.DRIVER`, or its interpreted form if
    it is not compiled yet and the call takes at most `MAX_STEPS` steps.
    """
    from spyre.hw.kernels.machine_code import entry_of

    entry = entry_of(name)
    if steps > MAX_STEPS or not config.MEANWHILE.is_on or entry.is_ready:
        return entry.function
    module, _, function = entry.place.rpartition(".")
    interpreted: Callable[..., Any] = kernels_of(module)[function]
    return interpreted


class BackgroundCompiler:
    """Background processes of this process, and the decision to interpret. Thread-safe.

    ``spent_seconds``: time spent interpreting. ``wait_budget_seconds``: time it may still wait.
    """

    def __init__(self) -> None:
        self._started: dict[subprocess.Popen[bytes], frozenset[str]] = {}
        """Kernel names by the process that compiles them."""
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self._detach)

    def _reset(self) -> None:
        self._detach()
        self._lock = threading.Lock()
        self._started = {}
        self._ready: set[str] = set()
        self.spent_seconds = 0.0
        self.wait_budget_seconds = MAX_WAIT_SECONDS

    def should_interpret(self, names: Collection[str], seconds: float) -> bool:
        """Start compiling missing kernels ``names`` in the background and return True if a program
        that takes ``seconds`` should be interpreted until then, or as nothing can be kept.

        Returns False when all are loaded or on the disk, possibly after waiting for a background
        process, or when the caller should compile them itself.
        """
        from spyre.hw.kernels import parallel_compile

        if not config.MEANWHILE.is_on:
            return False
        wanted = frozenset((*names, parallel_compile.DRIVER))
        is_small = seconds <= MAX_SECONDS and self.spent_seconds <= MAX_SECONDS_IN_ALL
        if not parallel_compile.can_be_compiled_elsewhere():
            is_kept = not is_small or parallel_compile.is_kept()
            return not is_kept and bool(parallel_compile.missing_of(wanted))
        if is_small:
            with self._lock:
                return self._are_compiling(wanted)
        self._wait(wanted)
        return False

    def _are_compiling(self, wanted: frozenset[str]) -> bool:
        """True if kernels are being compiled; starts a process for those that are missing."""
        from spyre.hw.kernels.parallel_compile import missing_of
        from spyre.hw.kernels.progress import compile_progress

        compiling = self._names(running=True)
        missing = frozenset(missing_of(wanted - compiling - self._ready))
        self._ready |= wanted - compiling - missing
        # kernels that a process was given and ended without compiling are compiled here
        if missing & self._names(running=False):
            return False
        if missing:
            self._started[_start(missing)] = missing
            compile_progress().report_background()
        return bool(missing or wanted & compiling)

    def _wait(self, wanted: frozenset[str]) -> None:
        """Wait until the processes that compile some of ``wanted`` have ended, or the wait budget
        is used up; the processes are then terminated and the caller compiles.
        """
        from spyre.hw.kernels.progress import compile_progress

        for process, names in self._started.items():
            if process.poll() is None and wanted & names:
                begin = time.monotonic()
                with compile_progress().compiling():
                    _wait_for(process, begin + self.wait_budget_seconds)
                self.wait_budget_seconds -= time.monotonic() - begin
                if self.wait_budget_seconds <= 0:
                    process.terminate()

    def _names(self, running: bool) -> frozenset[str]:
        """Kernel names given to the processes that are running, or to those that have ended."""
        started = self._started.items()
        return frozenset().union(*(n for each, n in started if (each.poll() is None) == running))

    def _detach(self) -> None:
        """Let started processes continue when this one ends."""
        for process in self._started:
            process.returncode = 0  # subprocess would warn of it


background_compiler = BackgroundCompiler()
"""The one of this process."""


def _start(names: Iterable[str]) -> subprocess.Popen[bytes]:
    """Start a process that compiles ``names`` when it is its turn."""
    from spyre.hw.kernels.parallel_compile import compiler_environment

    directory = str(cache.directory())
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _COMPILE, directory, *sorted(names)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=compiler_environment(),
    )


def _wait_for(process: subprocess.Popen[bytes], latest: float) -> None:
    """Wait until the process has ended or it is ``latest`` on the monotonic clock."""
    while process.poll() is None and time.monotonic() < latest:
        time.sleep(_POLL_SECONDS)
        interrupts.poll()


# --- interpreting -----------------------------------------------------------------------------

_ENTRIES = tuple(tb.KERNELS.values())
_TRANSFER = "spyre.hw.kernels.transfer"


@contextmanager
def _interpreting() -> Iterator[None]:
    """Run without floating point warnings, as compiled kernels do, and add up the time."""
    begin = time.perf_counter()
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        background_compiler.spent_seconds += time.perf_counter() - begin


def drive(
    dispatch: Int64Array,
    tables: Int64Array,
    memory: int,
    scratch: int,
    first: int,
    last: int,
    fault: Int64Array,
) -> int:
    """Like `spyre.hw.kernels.driver.drive` on one thread; chains run member by member."""
    with _interpreting():
        for e in range(first, last):
            table = tables[dispatch[e, 0]]
            bases = dispatch[e, tb.DISPATCH_BASES :]
            run = interpreted(_ENTRIES[table[tb.KIND]])
            status = run(
                table.ctypes.data, bases.ctypes.data, memory, scratch, 0, int(table[tb.UNITS])
            )
            if status != 0:
                fault[0] = status
                return e
    return -1


def transfer(table: Int64Array, host: int, device: int, units: int) -> None:
    """Run the copy of a transfer table between host addresses."""
    with _interpreting():
        kernels_of(_TRANSFER)["transfer_units"](table, host, device, 0, units)
