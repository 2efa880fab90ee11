"""The compiled driver: runs the dispatches of one program in order, each on one or more threads.

A dispatch row is a table index, two words for reports, and the base address of every operand.
Kernels are called by address, so a new kernel does not recompile the driver.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from spyre.hw import table as tb
from spyre.hw.jit import kernel, parallel
from spyre.hw.kernels.intrinsics import call_entry
from spyre.hw.kernels.opcodes import DISPATCH_BASES, DISPATCH_WORDS

WORDS, KIND, UNITS, COST_NS, SCRATCH_BYTES = (
    tb.WORDS, tb.KIND, tb.UNITS, tb.COST_NS, tb.SCRATCH_BYTES,
)  # fmt: skip

PARALLEL_NS = 250_000
"""Work below this runs on one thread: a parallel region costs 10-50 µs."""


@parallel
def spread(function, table, bases, memory, scratch, units, threads, status):
    """One dispatch on ``threads`` threads, equal shares of its units."""
    for t in prange(threads):
        first, last = units * t // threads, units * (t + 1) // threads
        status[t] = call_entry(
            function, table, bases, memory, scratch + t * SCRATCH_BYTES, first, last
        )


@kernel
def drive(
    dispatch: Any,
    tables: Any,
    entries: Any,
    memory: int,
    scratch: int,
    threads: int,
    first: int,
    last: int,
    status: Any,
) -> Any:
    """Run dispatches ``first`` .. ``last``; returns the index of a faulty one, or -1.

    ``status``: int64 per thread; the faulty one is nonzero afterwards.
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
            fault = call_entry(function, table, bases, memory, scratch, np.int64(0), units)
            if fault != 0:
                status[0] = fault
                return e
        else:
            used = min(threads, units)
            spread(function, table, bases, memory, scratch, units, used, status)
            for t in range(used):
                if status[t] != 0:
                    return e
    return np.int64(-1)
