"""Running a linked program: the compiled driver, or one dispatch at a time for timings.

Execution is sequential: every execute completes before the next starts (bundle reference §1).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from spyre.hw import table as tb
from spyre.hw.index_fault import index_fault
from spyre.hw.linked_program import LinkedProgram
from spyre.hw.memory import DeviceMemory
from spyre.hw.sanitizer.sanitizer import Sanitizer
from spyre.hw.spec import device_address
from spyre.hw.threads import ThreadPool

Progress = Callable[[int, int], None]
"""Called with (dispatches done, dispatches in all)."""


class Executor:
    """Runs linked programs on one memory; used from one thread at a time.

    ``threads``: host threads a dispatch may use, at most those of ``pool``. ``sanitizer``: checks
    every launch, where there is one.
    """

    def __init__(self, memory: DeviceMemory, pool: ThreadPool) -> None:
        self.memory = memory
        self.pool = pool
        self.sanitizer: Sanitizer | None = None
        self.threads = pool.threads
        self._scratch = np.zeros(tb.SCRATCH_BYTES, np.uint8)
        self._fault = np.zeros(1, np.int64)

    def warm(self, linked: LinkedProgram) -> None:
        """Compile or load every kernel the program needs, without running any of them."""
        if self.sanitizer is not None:
            self.sanitizer.prepare(linked)
        self._drive(linked, 0, 0)

    def run(self, linked: LinkedProgram) -> None:
        """Run everything in the compiled driver; raises DeviceFault for a bad index."""
        self._begin(linked)
        self._drive(linked, 0, len(linked.dispatch))

    def run_part(self, linked: LinkedProgram, first: int, last: int) -> None:
        """Run the dispatches ``first`` to ``last`` (excluded); raises DeviceFault as `run`."""
        self._drive(linked, first, last)

    def run_timed(
        self, linked: LinkedProgram, progress: Progress | None = None
    ) -> npt.NDArray[np.int64]:
        """Run dispatch by dispatch; returns host nanoseconds per dispatch."""
        count = len(linked.dispatch)
        elapsed = np.zeros(count, np.int64)
        self._begin(linked)
        for e in range(count):
            start = time.perf_counter_ns()
            self._drive(linked, e, e + 1)
            elapsed[e] = time.perf_counter_ns() - start
            if progress is not None:
                progress(e + 1, count)
        return elapsed

    def _begin(self, linked: LinkedProgram) -> None:
        if self.sanitizer is not None:
            self.sanitizer.begin(linked)

    def _drive(self, linked: LinkedProgram, first: int, last: int) -> None:
        drive, further = _driver(self.sanitizer)
        self.pool.prepare()
        faulty = drive(
            linked.host_dispatch,
            linked.tables,
            linked.entries,
            self.memory.pointer,
            self.pool.block,
            self._scratch.ctypes.data,
            self.threads,
            first,
            last,
            self._fault,
            *further,
        )
        if faulty >= 0:
            address = device_address(int(self._fault[0]) - 1)
            raise index_fault(linked, int(faulty), address, self.memory)


def _driver(sanitizer: Sanitizer | None) -> tuple[Callable[..., int], tuple[object, ...]]:
    """The compiled driver to call, and what it takes at the end."""
    if sanitizer is None:
        from spyre.hw.kernels.driver import drive

        return drive, ()
    from spyre.hw.kernels.sanitizing import drive_checked

    return drive_checked, sanitizer.arguments()
