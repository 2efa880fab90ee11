"""Kernels that are not there yet are compiled side by side, by a process for each CPU.

numba compiles one function at a time in a process. What the processes have compiled is in the disk
cache, from which this one loads it; what they could not compile, it compiles when it is needed.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numba import types

from spyre import config
from spyre.cache import PACKAGE
from spyre.hw.kernels.jit import Entry, cache_directory, is_kept
from spyre.hw.kernels.notice import compile_notice
from spyre.hw.spec import MAX_OPERANDS
from spyre.hw.table import DISPATCH_WORDS, KERNELS
from spyre.interrupts import interrupts

TRANSFER, DRIVER = "transfer", "driver"
_ENTRIES = {TRANSFER: "spyre.hw.kernels.transfer.run", **KERNELS}
JOBS = (*KERNELS, TRANSFER, DRIVER)
"""Names of all kernels, of the copies and of what runs both; what takes longest comes first."""
_WORKER = "from spyre.hw.kernels.together import compile_what_is_asked; compile_what_is_asked()"
_POLL_SECONDS = 0.2
"""How long Ctrl-C may wait."""

_compiling = threading.Lock()


@cache
def entry_of(name: str) -> Entry:
    """Of a kernel or the copies."""
    module, _, function = _ENTRIES[name].rpartition(".")
    entry: Entry = getattr(import_module(module), function)
    return entry


def compile_driver() -> None:
    """Compile or load what links and runs programs and copies, here and on workers."""
    from spyre.hw.kernels.driver import drive, place_dispatches
    from spyre.hw.kernels.fusion import find_chains
    from spyre.hw.kernels.pool import serve
    from spyre.hw.kernels.transfer import run_transfer

    # these two would begin to wait, or to copy
    not_called: tuple[tuple[Any, int], ...] = ((serve, 3), (run_transfer, 6))
    for function, arguments in not_called:
        function.compile((types.int64,) * arguments)
    nothing = np.zeros((0, DISPATCH_WORDS), np.int64)
    anchors = np.zeros((0, MAX_OPERANDS), np.int32)
    row = np.zeros(0, np.int64)
    place_dispatches(nothing, anchors, row, row.reshape(0, 0), nothing)
    find_chains(nothing, nothing)
    drive(nothing, nothing, row, 0, 0, 0, 1, 0, 0, np.zeros(1, np.int64))


def can_be_compiled_elsewhere() -> bool:
    """False where what others compile cannot be loaded, or no Python can be started: the
    executable of a program that embeds it would start that once more.
    """
    is_kept = cache_directory("spyre.hw.kernels.driver") is not None
    return is_kept and Path(sys.executable or "").name.startswith("python")


def processes() -> int:
    """How many may compile."""
    return config.thread_count() if can_be_compiled_elsewhere() else 1


def compile_together(names: Iterable[str]) -> None:
    """Have those of ``names`` that are not ready compiled, and the driver, if they are several."""
    with _compiling:
        missing = [name for name in names if not entry_of(name).is_ready]
        if len(missing) > 1 and processes() > 1:
            for _ in compiled_elsewhere([*missing, DRIVER]):
                pass


def missing_of(names: Iterable[str]) -> list[str]:
    """Those of ``names`` of `JOBS` that are neither loaded nor on the disk."""
    return [name for name in names if not _is_ready(name)]


def _is_ready(name: str) -> bool:
    if name != DRIVER:
        return entry_of(name).is_ready
    from spyre.hw.kernels.driver import drive

    return is_kept(drive)


def compile_missing(names: Iterable[str]) -> None:
    """Compile those of ``names`` that nobody has compiled, several at a time where that helps."""
    missing = missing_of(names)
    if len(missing) > 1 and processes() > 1:
        for _ in compiled_elsewhere(missing):
            pass
    else:
        for name in missing:
            compile_job(name)


def compiled_elsewhere(names: Sequence[str]) -> Iterator[str]:
    """``names`` of `JOBS` as the processes begin them; at the end they are done.

    Each process takes the number of the next from a pipe they share. None outlives this call.
    """
    numbers, give = os.pipe()
    os.write(give, bytes(sorted(map(JOBS.index, names))))
    os.close(give)
    begun, tell = os.pipe()
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(min(processes(), len(names))):
            workers += [_worker(numbers, tell)]
        os.close(tell)
        tell = -1
        yield from compile_notice().elsewhere(_lines(begun), len(names))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for pipe in (numbers, begun, tell):
            if pipe >= 0:
                os.close(pipe)


def _worker(numbers: int, tell: int) -> subprocess.Popen[bytes]:
    """A process that compiles; what fails there fails here too, where it is told."""
    path = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _WORKER],  # nothing of the working folder is imported
        stdin=numbers,
        stdout=tell,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, config.PROGRESS.name: "0"},
    )


def _lines(pipe: int) -> Iterator[str]:
    """What is written into a pipe until nobody has it open any more."""
    with open(pipe, "rb", buffering=0, closefd=False) as lines:
        while True:
            if select.select([lines], [], [], _POLL_SECONDS)[0]:
                text = lines.read(select.PIPE_BUF)
                if not text:
                    return
                yield from text.decode().split()
            interrupts.poll()


def compile_what_is_asked() -> None:
    """Compile what has the numbers that come from standard input, a byte each; prints the names."""
    while number := os.read(0, 1):
        name = JOBS[number[0]]
        # One write, which no other process of the pipe comes between.
        os.write(1, f"{name}\n".encode())
        compile_job(name)


def compile_job(name: str) -> None:
    """Compile or load one of `JOBS`."""
    if name == DRIVER:
        compile_driver()
    else:
        assert entry_of(name).address
