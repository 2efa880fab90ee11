"""The compiled driver: runs the dispatches of one program in order, each on one or more threads.

A dispatch row is a table index, two words for reports, and the base address of every operand.
Kernels are called by address, so a new kernel does not recompile the driver. Fused dispatches
are one job.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.kernels.intrinsics import call_entry
from spyre.hw.kernels.jit import kernel
from spyre.hw.kernels.pool import run_job
from spyre.hw.spec import REGION_BITS, REGION_SKEW_BYTES


@kernel
def place_dispatches(dispatch: Any, anchors: Any, origin: Any, bases: Any, placed: Any) -> None:
    """Fill ``placed`` [launches · rows, DISPATCH_WORDS] with base addresses as host offsets.

    ``dispatch``: [row, DISPATCH_WORDS] as linked with allocations at ``origin`` [allocation];
    ``anchors``: the allocation each base moves with, [row, operand], negative for none; ``bases``:
    where the allocations of each launch begin, [launch, allocation]. Bytes.
    """
    at = 0
    for launch in range(bases.shape[0]):
        for row in range(dispatch.shape[0]):
            for word in range(tb.DISPATCH_BASES):
                placed[at, word] = dispatch[row, word]
            for operand in range(tb.DISPATCH_WORDS - tb.DISPATCH_BASES):
                address = dispatch[row, tb.DISPATCH_BASES + operand]
                anchor = anchors[row, operand]
                if anchor >= 0:
                    address += bases[launch, anchor] - origin[anchor]
                # device address to host offset, as `spyre.hw.spec.host_offset`
                skew = (address >> REGION_BITS) * REGION_SKEW_BYTES
                placed[at, tb.DISPATCH_BASES + operand] = address + skew
            at += 1


WORDS, KIND, UNITS, COST_NS = tb.WORDS, tb.KIND, tb.UNITS, tb.COST_NS
INNER, BLOCK_STICKS = tb.INNER, tb.BLOCK_STICKS

PARALLEL_NS = 100_000
"""Work below this runs on one thread: waking workers costs 5-50 µs."""
MUCH_NS, AWAKE_NS = 500_000, 6_000
"""In a program of MUCH_NS or more, dispatches below AWAKE_NS per thread run on one thread: workers
stay awake between its jobs.
"""


@kernel
def strip_units(table: Any) -> Any:
    """Units of a table that make a strip of at most STRIP_STICKS sticks, at least one."""
    return max(tb.STRIP_STICKS // min(table[INNER], BLOCK_STICKS), 1)


@kernel
def describe_chain(
    dispatch: Any, tables: Any, entries: Any, first: int, members: int, words: Any
) -> Any:
    """Fill the table of a chain of ``members`` dispatches; returns their cost in ns."""
    cost = np.int64(0)
    words[0] = members
    words[1] = strip_units(tables[dispatch[first, 0]])
    for member in range(members):
        row, at = dispatch[first + member, 0], 2 + 3 * member
        words[at] = entries[tables[row, KIND]]
        words[at + 1] = tables.ctypes.data + row * (8 * WORDS)
        place = (first + member) * tb.DISPATCH_WORDS + tb.DISPATCH_BASES
        words[at + 2] = dispatch.ctypes.data + 8 * place
        cost += tables[row, COST_NS]
    return cost


@kernel
def least_parallel(dispatch: Any, tables: Any, threads: int, first: int, last: int) -> Any:
    """The least cost (ns) of a dispatch in ``first`` .. ``last`` that runs on several threads."""
    cost = np.int64(0)
    for e in range(first, last):
        cost += tables[dispatch[e, 0], COST_NS]
        if cost >= MUCH_NS:
            return np.int64(min(AWAKE_NS * threads, PARALLEL_NS))
    return np.int64(PARALLEL_NS)


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
    chain = np.empty(tb.CHAIN_WORDS, np.int64)
    parallel_ns = least_parallel(dispatch, tables, threads, first, last)
    e = first
    while e < last:
        row = dispatch[e, 0]
        table = tables_at + row * (8 * WORDS)
        bases = dispatch_at + e * (8 * tb.DISPATCH_WORDS) + 8 * tb.DISPATCH_BASES
        units, cost = tables[row, UNITS], tables[row, COST_NS]
        function = entries[tables[row, KIND]]
        # a chain may begin or end outside of the dispatches to run: only its part inside is run
        members = min(dispatch[e, tb.CHAIN_LENGTH], last - e)
        if members > 1:
            cost = describe_chain(dispatch, tables, entries, e, members, chain)
            function, table = entries[tb.CHAIN_KIND], chain.ctypes.data
        # the units of all members are the same, so those of the first one divide the work
        if threads == 1 or units < 2 or members == 0 or cost < parallel_ns:  # 0: in order
            status = call_entry(function, table, bases, memory, scratch, np.int64(0), units)
        else:
            chunks = min(units, max(threads * tb.CHUNKS_PER_THREAD, cost // tb.CHUNK_NS))
            status = run_job(pool, scratch, function, table, bases, memory, units, chunks)
        if status != 0:
            fault[0] = status
            return e
        e += max(members, 1)
    return np.int64(-1)
