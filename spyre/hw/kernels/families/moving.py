"""The moving kernel: single elements of 16 or 32 bits between places at any distances.

One unit is up to MOVE_BLOCK elements along the innermost axis. Index tensors move the source
(GATHER) or the target (SCATTER) of each element; an index out of range stops the kernel. A scatter
is one unit, so that of equal targets the last in order stays.
"""

from __future__ import annotations

from spyre.hw import plan_table as tb
from spyre.hw.kernels.blocks import begin, follow
from spyre.hw.kernels.jit import entry, kernel

BLOCKS, CONSTANT, FLAGS, INNER, LANES = tb.BLOCKS, tb.CONSTANT, tb.FLAGS, tb.INNER, tb.LANES
GATHER, INPUTS, MOVE_BLOCK, SCATTER = tb.GATHER, tb.INPUTS, tb.MOVE_BLOCK, tb.SCATTER
FIRST_PITCH = tb.OPERAND + tb.INNER_PITCH
OPERAND_WORDS = tb.OPERAND_WORDS
COUNT = CONSTANT + 2 * tb.MOST_INDICES


@kernel
def move_run(half, integers, lanes, source, target, count, p, q):
    """Elements from byte ``source`` to byte ``target``, ``p`` and ``q`` bytes apart."""
    if lanes == 64:
        for i in range(count):
            half[(target + i * q) >> 1] = half[(source + i * p) >> 1]
    else:
        for i in range(count):
            integers[(target + i * q) >> 2] = integers[(source + i * p) >> 2]


@kernel
def move_indexed(table, half, integers, counters, at, count):
    """The elements from place ``at`` of a run on; nonzero is 1 + the faulty index address."""
    gathers, lanes = table[FLAGS] == GATHER, table[LANES]
    for i in range(at, at + count):
        moved = 0
        for k in range(table[INPUTS]):
            place = counters[10 + k] + i * table[FIRST_PITCH + (2 + k) * OPERAND_WORDS]
            index = integers[place >> 2]
            if index < 0 or index >= table[CONSTANT + 2 * k + 1]:
                return 1 + place  # 0 is "no fault", and an address
            moved += index * table[CONSTANT + 2 * k]
        source = counters[8] + i * table[FIRST_PITCH] + (moved if gathers else 0)
        target = counters[9] + i * table[FIRST_PITCH + OPERAND_WORDS] + (0 if gathers else moved)
        move_run(half, integers, lanes, source, target, 1, 0, 0)
    return 0


@kernel
def moving(table, bases, half, integers, counters, first, last):
    """Run units ``first`` .. ``last`` of a move table; nonzero is 1 + the faulty index address."""
    inner, blocks, lanes = table[INNER], table[BLOCKS], table[LANES]
    p, q = table[FIRST_PITCH], table[FIRST_PITCH + OPERAND_WORDS]
    if table[FLAGS] & SCATTER:
        last = table[COUNT]
    block = begin(table, bases, counters, first, blocks)
    for _ in range(first, last):
        at = block * MOVE_BLOCK
        count = min(MOVE_BLOCK, inner - at)
        if table[FLAGS] == 0:
            source, target = counters[8] + at * p, counters[9] + at * q
            move_run(half, integers, lanes, source, target, count, p, q)
        else:
            fault = move_indexed(table, half, integers, counters, at, count)
            if fault != 0:
                return fault
        block = follow(table, counters, block, blocks)
    return 0


run = entry(moving, reports_faults=True)
