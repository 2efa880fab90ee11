"""Keeping woken worker threads off the calling thread's CPU.

After a pause, Linux often wakes an OpenMP worker on the CPU its caller runs on; the worker then
waits for a scheduler tick (4 ms at 250 Hz), far longer than most kernels. Before a program runs,
the workers' affinity masks therefore exclude the CPU the caller is on. The caller itself is never
pinned, and workers remain free among all other CPUs.
"""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np


class WorkerPlacement:
    """Affinity of the calling thread's worker threads; one per thread that launches kernels."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._local = threading.local()

    def prepare(self) -> None:
        """Exclude the caller's CPU from the workers' masks, if it is not already excluded.

        Costs well under a microsecond when the caller has not moved.
        """
        if self.threads < 2 or _current_cpu is None:
            return
        cpu = _current_cpu()
        if getattr(self._local, "cpu", None) != cpu:
            self._move_workers(cpu)

    def _move_workers(self, cpu: int) -> None:
        workers = getattr(self._local, "workers", None)
        if workers is None:
            workers = self._local.workers = _find_workers(self.threads)
        allowed = os.sched_getaffinity(0) - {cpu}
        if not allowed:
            return
        for worker in workers:
            try:
                os.sched_setaffinity(worker, allowed)
            except ProcessLookupError:
                self._local.workers = None
                return
        self._local.cpu = cpu


def _find_workers(threads: int) -> list[int]:
    """Kernel thread ids of the pool that serves this thread."""
    from spyre.hw.kernels.gang import record_thread_ids

    ids = np.zeros(threads, np.int64)
    record_thread_ids(ids)
    return sorted(set(ids.tolist()) - {threading.get_native_id()})


def _load_current_cpu() -> ctypes._NamedFuncPointer | None:
    libc = ctypes.CDLL(None)
    function = getattr(libc, "sched_getcpu", None)
    if function is None or not hasattr(os, "sched_setaffinity"):
        return None
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


_current_cpu = _load_current_cpu()
