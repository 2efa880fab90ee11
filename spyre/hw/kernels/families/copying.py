"""The copy kernel: identity, as bits, with broadcast, and through an index tensor.

One unit is a block of up to BLOCK_STICKS sticks along the innermost axis. With an index tensor
(FLAGS), an index adds ``index * VALUE`` bytes to the input (gather) or the output (scatter)
address, one index per block or one per lane; an index outside 0 .. MASK_END stops the kernel.
"""

from __future__ import annotations

from numba import carray

from spyre.hw.kernels.blocks import begin, follow
from spyre.hw.kernels.intrinsics import pointer_i32, pointer_i64, pointer_u16
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.spec import HOST_BYTES
from spyre.hw.table import plan as tb
from spyre.hw.table.plan import GATHER, INDEX_PER_LANE

INNER, BLOCKS, FLAGS, VALUE = tb.INNER, tb.BLOCKS, tb.FLAGS, tb.VALUE
INDEX_END, LANE, INNER_PITCH = tb.MASK_END, tb.LANE, tb.INNER_PITCH
IN, OUT, INDEX = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS, tb.OPERAND + 2 * tb.OPERAND_WORDS
BLOCK_STICKS, WORDS, LANES = tb.BLOCK_STICKS, tb.WORDS, tb.LANES
COUNTERS, CONSTANT = tb.SCRATCH_COUNTERS, tb.CONSTANT
HALVES, WORDS32 = HOST_BYTES // 2, HOST_BYTES // 4


@kernel
def copy_run(half, source, target, sticks, source_pitch, target_pitch):
    """Copy whole sticks; all arguments in bytes but ``sticks``."""
    # bits move as 16-bit elements, whatever their format
    a, b = source >> 1, target >> 1
    if source_pitch == 128 and target_pitch == 128:
        x, y = half[a : a + sticks * 64], half[b : b + sticks * 64]
        for i in range(x.size):
            y[i] = x[i]
        return
    p, q = source_pitch >> 1, target_pitch >> 1
    for s in range(sticks):
        x, y = half[a + s * p : a + s * p + 64], half[b + s * q : b + s * q + 64]
        for i in range(64):
            y[i] = x[i]


@kernel
def spread_run(half, source, target, sticks, source_pitch, target_pitch, lanes):
    """Copy one element of each source stick to all lanes of the target stick."""
    for s in range(sticks):
        a = (source + s * source_pitch) >> 1
        b = (target + s * target_pitch) >> 1
        y = half[b : b + 64]
        if lanes == 64:
            value = half[a]
            for i in range(64):
                y[i] = value
        else:
            low, high = half[a], half[a + 1]
            for i in range(32):
                y[2 * i] = low
                y[2 * i + 1] = high


@kernel
def move_lanes(table, half, word, source, target, index_at, sticks):
    """Gather or scatter element by element; nonzero is 1 + the faulty index address."""
    lanes, flags, step = table[LANES], table[FLAGS], table[VALUE]
    shift = 1 if lanes == 64 else 2
    for s in range(sticks):
        index_stick = index_at + s * table[INDEX + INNER_PITCH]
        x = source + s * table[IN + INNER_PITCH]
        y = target + s * table[OUT + INNER_PITCH]
        for i in range(lanes):
            at = index_stick + (i // 32) * table[CONSTANT] + (i % 32) * 4
            index = word[at >> 2]
            if index < 0 or index >= table[INDEX_END]:
                return 1 + at  # 0 is "no fault", and an address
            moved = index * step
            a = x + (moved if flags & GATHER else 0)
            b = y + (0 if flags & GATHER else moved)
            if shift == 1:
                half[(b >> 1) + i] = half[(a >> 1) + i]
            else:
                word[(b >> 2) + i] = word[(a >> 2) + i]
    return 0


@kernel
def copying(table, bases, half, word, counters, first, last):
    """Run units ``first`` .. ``last`` of a copy table; nonzero is 1 + the faulty index address."""
    inner, blocks, flags, lanes = table[INNER], table[BLOCKS], table[FLAGS], table[LANES]
    source_pitch, target_pitch = table[IN + INNER_PITCH], table[OUT + INNER_PITCH]
    lane = table[IN + LANE]
    block = begin(table, bases, counters, first, blocks)
    for _ in range(first, last):
        at = block * BLOCK_STICKS
        sticks = min(BLOCK_STICKS, inner - at)
        source = counters[8] + at * source_pitch
        target = counters[9] + at * target_pitch
        index_at = counters[10] + at * table[INDEX + INNER_PITCH]
        if flags & INDEX_PER_LANE:
            fault = move_lanes(table, half, word, source, target, index_at, sticks)
            if fault != 0:
                return fault
        else:
            if flags != 0:
                index = word[index_at >> 2]
                if index < 0 or index >= table[INDEX_END]:
                    return 1 + index_at
                source += index * table[VALUE] if flags & GATHER else 0
                target += 0 if flags & GATHER else index * table[VALUE]
            if lane >= 0:
                source += lane * (2 if lanes == 64 else 4)
                spread_run(half, source, target, sticks, source_pitch, target_pitch, lanes)
            else:
                copy_run(half, source, target, sticks, source_pitch, target_pitch)
        block = follow(table, counters, block, blocks)
    return 0


@entry
def run(table, bases, memory, scratch, first, last):
    """C entry of :func:`copying`."""
    return copying(
        carray(pointer_i64(table), WORDS),
        carray(pointer_i64(bases), 8),
        carray(pointer_u16(memory), HALVES),
        carray(pointer_i32(memory), WORDS32),
        carray(pointer_i64(scratch), COUNTERS),
        first,
        last,
    )
