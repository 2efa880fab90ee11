"""The compiled driver: runs the dispatches of one program in order, each on one or more threads.

A dispatch row is a table index, two words for reports, and the base address of every operand.
Kernels are called by address, so a new kernel does not recompile the driver.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spyre.hw import table as tb
from spyre.hw.jit import kernel
from spyre.hw.kernels.intrinsics import call_entry
from spyre.hw.kernels.opcodes import DISPATCH_BASES, DISPATCH_WORDS
from spyre.hw.kernels.pool import run_job
from spyre.hw.pool_block import CHUNKS_PER_THREAD

WORDS, KIND, UNITS, COST_NS = tb.WORDS, tb.KIND, tb.UNITS, tb.COST_NS

PARALLEL_NS = 100_000
"""Work below this runs on one thread: waking workers costs 5-50 µs."""


@kernel
def drive(
    dispatch: Any,
    tables: Any,
    entries: Any,
    memory: int,
    pool: int,
    scratch: int,
    threads: int,
    first: int,
    last: int,
    fault: Any,
) -> Any:
    """Run dispatches ``first`` .. ``last``; returns the index of a faulty one, or -1.

    ``pool``: control block of the thread pool. ``fault[0]``: fault word of the faulty dispatch.
    """
    tables_at = tables.ctypes.data
    dispatch_at = dispatch.ctypes.data
    for e in range(first, last):
        row = dispatch[e, 0]
        table = tables_at + row * (8 * WORDS)
        bases = dispatch_at + e * (8 * DISPATCH_WORDS) + 8 * DISPATCH_BASES
        units = tables[row, UNITS]
        function = entries[tables[row, KIND]]
        if threads == 1 or units < 2 or tables[row, COST_NS] < PARALLEL_NS:
            status = call_entry(function, table, bases, memory, scratch, np.int64(0), units)
        else:
            chunks = min(units, threads * CHUNKS_PER_THREAD)
            status = run_job(pool, scratch, function, table, bases, memory, units, chunks)
        if status != 0:
            fault[0] = status
            return e
    return np.int64(-1)
