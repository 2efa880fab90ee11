"""The compiled driver: runs the dispatches of one program in order, each on one or more threads.

A dispatch row is a table index, two words for reports, and the base address of every operand.
Kernels are called by address, so a new kernel does not recompile the driver. Dispatches of a chain
(see :mod:`.chaining`) are one job.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spyre.hw import table as tb
from spyre.hw.jit import kernel
from spyre.hw.kernels.intrinsics import call_entry
from spyre.hw.kernels.opcodes import (
    CHAIN_KIND,
    CHAIN_LENGTH,
    CHAIN_WORDS,
    DISPATCH_BASES,
    DISPATCH_WORDS,
    STRIP_STICKS,
)
from spyre.hw.kernels.pool import run_job
from spyre.hw.pool_block import CHUNKS_PER_THREAD

WORDS, KIND, UNITS, COST_NS = tb.WORDS, tb.KIND, tb.UNITS, tb.COST_NS
INNER, BLOCK_STICKS = tb.INNER, tb.BLOCK_STICKS

PARALLEL_NS = 100_000
"""Work below this runs on one thread: waking workers costs 5-50 µs."""


@kernel
def strip_units(table: Any) -> Any:
    """Units of a table that make a strip of at most STRIP_STICKS sticks, at least one."""
    return max(STRIP_STICKS // min(table[INNER], BLOCK_STICKS), 1)


@kernel
def describe_chain(
    dispatch: Any, tables: Any, entries: Any, first: int, members: int, words: Any
) -> Any:
    """Fill what :mod:`.chain` reads for ``members`` dispatches; their cost in ns."""
    cost = np.int64(0)
    words[0] = members
    words[1] = strip_units(tables[dispatch[first, 0]])
    for member in range(members):
        row, at = dispatch[first + member, 0], 2 + 3 * member
        words[at] = entries[tables[row, KIND]]
        words[at + 1] = tables.ctypes.data + row * (8 * WORDS)
        place = (first + member) * DISPATCH_WORDS + DISPATCH_BASES
        words[at + 2] = dispatch.ctypes.data + 8 * place
        cost += tables[row, COST_NS]
    return cost


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
    chain = np.empty(CHAIN_WORDS, np.int64)
    e = first
    while e < last:
        row = dispatch[e, 0]
        table = tables_at + row * (8 * WORDS)
        bases = dispatch_at + e * (8 * DISPATCH_WORDS) + 8 * DISPATCH_BASES
        units, cost = tables[row, UNITS], tables[row, COST_NS]
        function = entries[tables[row, KIND]]
        members = min(dispatch[e, CHAIN_LENGTH], last - e)
        if members > 1:
            cost = describe_chain(dispatch, tables, entries, e, members, chain)
            function, table = entries[CHAIN_KIND], chain.ctypes.data
        if threads == 1 or units < 2 or cost < PARALLEL_NS:
            status = call_entry(function, table, bases, memory, scratch, np.int64(0), units)
        else:
            chunks = min(units, threads * CHUNKS_PER_THREAD)
            status = run_job(pool, scratch, function, table, bases, memory, units, chunks)
        if status != 0:
            fault[0] = status
            return e
        e += max(members, 1)
    return np.int64(-1)
