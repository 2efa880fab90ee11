"""The thread pool that runs kernels, and the CPU affinity of its workers.

Workers are Python threads that live in compiled code without the GIL; all devices of a process
share them. After a pause, Linux often wakes a worker on the CPU its caller runs on, where it waits
for a scheduler tick (4 ms at 250 Hz); before a program runs, the workers' affinity masks therefore
exclude the caller's CPU. The caller is never pinned, and workers stay free among all other CPUs.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache

import numpy as np

from spyre.hw import plan_table as tb
from spyre.layout import Int64Array


class ThreadPool:
    """``threads`` host threads, the caller included; workers start when first needed.

    ``block`` is the host address of the control block that kernels take. Several threads may run
    programs: one of them gets the workers, the others run alone.
    """

    def __init__(self, threads: int) -> None:
        self.threads = min(threads, tb.MAX_THREADS)
        self.block = 0
        self._lock = threading.Lock()
        self._words: Int64Array = np.zeros(0, np.int64)
        self._workers: tuple[int, ...] = ()
        self._process = -1
        self._cpu = -1

    def prepare(self) -> None:
        """Start the workers if this process has none, and exclude the caller's CPU from theirs.

        Takes about a microsecond if there is nothing to do. Must precede every use of ``block``.
        """
        if self._process != os.getpid():
            with self._lock:
                self._start()
        if self.threads > 1 and _current_cpu is not None:
            cpu = _current_cpu()
            if cpu != self._cpu:
                self._avoid(cpu)

    def _start(self) -> None:
        """Fresh control words (a fork leaves stale ones) and one thread per worker."""
        if self._process == os.getpid():
            return
        self._words = np.zeros(tb.POOL_WORDS, np.int64)
        self._words[tb.POOL_NEXT] = tb.CLOSED
        self._words[tb.POOL_THREADS] = self.threads
        self.block = self._words.ctypes.data
        self._workers = tuple(self._start_worker(k) for k in range(1, self.threads))
        self._cpu = -1
        self._process = os.getpid()

    def _start_worker(self, worker: int) -> int:
        """Start one worker; returns its kernel thread id."""
        from spyre.hw.kernels.machine_code import entry_of

        serve = entry_of("pool.serve").function
        semaphore = self.block + 8 * (tb.POOL_SEMAPHORES + worker * tb.SEMAPHORE_WORDS)
        _libc.sem_init(ctypes.c_void_p(semaphore), 0, 0)
        words, scratch = self._words, np.zeros(tb.SCRATCH_BYTES, np.uint8)
        identity: list[int] = []
        started = threading.Event()

        def body() -> None:
            identity.append(threading.get_native_id())
            started.set()
            serve(words.ctypes.data, worker, -(-scratch.ctypes.data & -tb.SCRATCH_LINE))

        threading.Thread(target=body, name=f"spyre-worker-{worker}", daemon=True).start()
        started.wait()
        return identity[0]

    def _avoid(self, cpu: int) -> None:
        allowed = os.sched_getaffinity(0) - {cpu}
        for worker in self._workers if allowed else ():
            os.sched_setaffinity(worker, allowed)
        self._cpu = cpu


@cache
def shared_pool(threads: int) -> ThreadPool:
    """The process's pool of ``threads`` threads."""
    return ThreadPool(threads)


def _load_current_cpu() -> ctypes._NamedFuncPointer | None:
    function = getattr(_libc, "sched_getcpu", None)
    if function is None or not hasattr(os, "sched_setaffinity"):
        return None
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


_libc = ctypes.CDLL(None)
_current_cpu = _load_current_cpu()
