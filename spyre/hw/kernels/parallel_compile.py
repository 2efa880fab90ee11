"""Parallel compilation of missing kernels, by one process per CPU.

numba compiles one function at a time in a process. The worker processes write to the disk cache,
from which this process loads the kernels; it compiles those that failed when they are needed.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spyre import cache, config
from spyre.cache import PACKAGE
from spyre.hw import plan_table as tb
from spyre.hw.kernels.machine_code import (
    ADD_ALL,
    COMBINE,
    DRIVER as DRIVERS,
    cache_directory,
    entry_of,
)
from spyre.hw.kernels.progress import compile_progress
from spyre.interrupts import interrupts

DRIVER = "driver"
_SECONDS = {"elementwise": 11.0, "transfer": 6.5, "reduction": 5.2, "matmul": 3.8}
_SECONDS |= {DRIVER: 3.0, "checked_driver.drive_checked": 3.0, COMBINE: 2.6, ADD_ALL: 0.5}
_OTHER_SECONDS = 1.4
"""Processor time of a compilation, as measured once: of those that take long, and of any other."""
JOBS = tuple(sorted({*tb.KERNELS, *_SECONDS}, key=lambda name: (-_SECONDS.get(name, 0), name)))
"""Names of all kernels, copies, reductions and drivers; the longest compilations first."""
_WORKER = "from spyre.hw.kernels.parallel_compile import worker_main; worker_main()"
_POLL_SECONDS = 0.2
"""Longest delay of Ctrl-C."""

_compiling = threading.Lock()


def compile_driver() -> None:
    """Compile or load the functions that link, relocate and run programs and copies."""
    for name in DRIVERS:
        _ = entry_of(name).address


def can_be_compiled_elsewhere() -> bool:
    """True with a disk cache, if `sys.executable` is Python, not a program that embeds it."""
    return is_kept() and Path(sys.executable or "").name.startswith("python")


def is_kept() -> bool:
    """Whether compiled kernels can be kept."""
    return cache_directory("spyre.hw.kernels.driver") is not None


def processes() -> int:
    """Number of processes that may compile at once."""
    return config.thread_count() if can_be_compiled_elsewhere() else 1


def compile_together(names: Iterable[str]) -> None:
    """Compile those of ``names`` that are missing; several and the driver in worker processes."""
    with _compiling:
        missing = missing_of(names)
        if len(missing) > 1 and processes() > 1:
            with _turn():  # others may have compiled some of them meanwhile
                compile_missing([*missing, DRIVER])
    _compile_here(missing_of(missing))


MAX_WAIT_SECONDS = 60.0
"""Longest wait for the compilers of other processes, which may have a low priority."""


@contextmanager
def _turn() -> Iterator[None]:
    """Wait until no other process compiles for this cache, `MAX_WAIT_SECONDS` at most."""
    handle, begin = os.open(cache.directory(), os.O_RDONLY), time.monotonic()
    try:
        while time.monotonic() - begin < MAX_WAIT_SECONDS:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends
                break
            except BlockingIOError:
                time.sleep(_POLL_SECONDS)
                interrupts.poll()
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(handle)


def missing_of(names: Iterable[str]) -> list[str]:
    """Return the ``names`` of `JOBS` that are neither loaded nor on the disk."""
    return [
        name
        for name in names
        if not all(entry_of(each).is_ready for each in (DRIVERS if name == DRIVER else (name,)))
    ]


def compile_missing(names: Iterable[str]) -> None:
    """Compile those of ``names`` that are missing, several at a time where possible."""
    missing = missing_of(names)
    if len(missing) > 1 and processes() > 1:
        for _ in compiled_elsewhere(missing):
            pass
    else:
        _compile_here(missing)


def _compile_here(names: Sequence[str]) -> None:
    """Compile ``names`` one after the other in this process."""
    if names:
        for name in compile_progress().kernels(names, _begins(names, 1)):
            compile_job(name)


def _begins(names: Sequence[str], workers: int) -> list[float]:
    """Return when each of ``names`` begins and the last ends on idle CPUs, in seconds."""
    begins, free = [], [0.0] * workers
    for name in names:
        begins.append(heapq.heappop(free))
        heapq.heappush(free, begins[-1] + _SECONDS.get(name, _OTHER_SECONDS))
    return [*begins, max(free)]


def compiled_elsewhere(names: Sequence[str]) -> Iterator[str]:
    """Yield ``names`` of `JOBS` as worker processes begin them, until all have ended.

    Each process takes the number of its next job from a shared pipe. All have ended at the return.
    """
    numbers, numbers_end = os.pipe()
    names = sorted(names, key=JOBS.index)
    os.write(numbers_end, bytes(map(JOBS.index, names)))
    os.close(numbers_end)
    begun, begun_end = os.pipe()
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(min(processes(), len(names))):
            workers += [_worker(numbers, begun_end)]
        os.close(begun_end)
        begun_end = -1
        begins = _begins(names, len(workers))
        yield from compile_progress().kernels(_lines(begun), begins)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for pipe in (numbers, begun, begun_end):
            if pipe >= 0:
                os.close(pipe)


def _worker(numbers: int, begun_end: int) -> subprocess.Popen[bytes]:
    """Start a process that compiles; its failures are reported when this process compiles."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _WORKER],  # nothing of the working folder is imported
        stdin=numbers,
        stdout=begun_end,
        stderr=subprocess.DEVNULL,
        env=compiler_environment(),
    )


def compiler_environment() -> dict[str, str]:
    """The environment of processes that compile: this package, and no progress lines."""
    path = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, config.PROGRESS.name: "0"}


def _lines(pipe: int) -> Iterator[str]:
    """Yield the lines written into a pipe until all writers have closed it."""
    with open(pipe, "rb", buffering=0, closefd=False) as lines:
        while True:
            if select.select([lines], [], [], _POLL_SECONDS)[0]:
                text = lines.read(select.PIPE_BUF)
                if not text:
                    return
                yield from text.decode().split()
            interrupts.poll()


def worker_main() -> None:
    """Main function of a worker: compile the jobs whose numbers arrive on standard input, a byte
    each, and print the name of each when it begins.
    """
    while number := os.read(0, 1):
        name = JOBS[number[0]]
        # a single write is not interleaved with those of other workers
        os.write(1, f"{name}\n".encode())
        compile_job(name)


def compile_job(name: str) -> None:
    """Compile or load one of `JOBS`."""
    if name == DRIVER:
        compile_driver()
    else:
        assert entry_of(name).address
