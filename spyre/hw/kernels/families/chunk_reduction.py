"""The reduction kernel of the number mode dl16-chunk: sums that are rounded at every addition.

Per lane (or per row, where the stick is reduced) the elements of one core are added up in order of
their place in the input, in chunks of CHUNK: a chunk's total starts at zero and is rounded to DL16
after every addition, then joins the core's total, and that the total of all work slices, each time
rounded. The table is that of :mod:`.reduction`; CONSTANT word 3 is the reduced steps of one core.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from spyre.hw.kernels.blocks import store_sticks
from spyre.hw.kernels.families.reduction import stage, store_pair
from spyre.hw.kernels.intrinsics import (
    ROUND_ADD,
    ROUND_ODD,
    add_rounded,
    bits_float,
    pointer_f32,
    pointer_i64,
    pointer_u16,
)
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.spec import HOST_BYTES
from spyre.hw.table import plan as tb
from spyre.hw.table.plan import CHUNK, MAX_CHUNK_STICKS, REDUCE_LANES, REDUCTIONS

F = np.float32

EXX2 = REDUCTIONS.index("exx2")
OPCODE, INNER, BLOCKS, FLAGS, VALUE = tb.OPCODE, tb.INNER, tb.BLOCKS, tb.FLAGS, tb.VALUE
EXTENT, PITCH, INNER_PITCH = tb.EXTENT, tb.PITCH, tb.INNER_PITCH
BASE, TENSOR, FORMAT = tb.BASE, tb.TENSOR, tb.FORMAT
IN, OUT, AT = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS, tb.OPERAND + 2 * tb.OPERAND_WORDS
COUNTERS, FLOATS, WORDS = tb.SCRATCH_COUNTERS, tb.SCRATCH_FLOATS, tb.WORDS
HALVES, WORDS32 = HOST_BYTES // 2, HOST_BYTES // 4
KEPT_STICKS, CORE_STEPS = tb.CONSTANT, tb.CONSTANT + 3
BUFFER = MAX_CHUNK_STICKS * 64
STICK = 64


@kernel
def add_lanes(source, sticks, chunk, add, odd):
    """chunk[s] = rounded sum of the 64 lanes of stick s, in order of the lanes."""
    for s in range(sticks):
        chunk[s] = F(0.0)
    for i in range(STICK):
        for s in range(sticks):
            chunk[s] = add_rounded(chunk[s], source[s * STICK + i], add, odd)


@kernel
def join(source, target, add, odd):
    """target[i] += source[i], rounded; the source becomes zero."""
    for i in range(target.size):
        target[i] = add_rounded(target[i], source[i], add, odd)
        source[i] = F(0.0)


@kernel
def sum_block(table, half, word, address, coordinate, sticks, squares, buffer, chunk, core, total):
    """Sums (of squares) of all reduced indices of ``sticks`` kept sticks into ``total``."""
    code, lanes_too = table[IN + FORMAT], table[FLAGS] & REDUCE_LANES
    add, odd = ROUND_ADD[code], ROUND_ODD[code]
    kept_pitch, kept_step = table[IN + INNER_PITCH], table[AT + INNER_PITCH]
    n = sticks if lanes_too else sticks * STICK
    for i in range(n):
        chunk[i], core[i], total[i] = F(0.0), F(0.0), F(0.0)
    staged = buffer[: sticks * STICK]
    step, within = 0, 0
    for r0 in range(table[EXTENT + 4]):
        for r1 in range(table[EXTENT + 5]):
            for r2 in range(table[EXTENT + 6]):
                moved, at = address, coordinate
                moved += r0 * table[IN + PITCH + 4] + r1 * table[IN + PITCH + 5]
                moved += r2 * table[IN + PITCH + 6]
                at += r0 * table[AT + PITCH + 4] + r1 * table[AT + PITCH + 5]
                at += r2 * table[AT + PITCH + 6]
                stage(table, half, word, moved, at, sticks, kept_pitch, kept_step, STICK, buffer)
                if squares:
                    for i in range(staged.size):
                        staged[i] *= staged[i]
                if lanes_too:
                    add_lanes(staged, sticks, chunk, add, odd)
                    within = CHUNK
                else:
                    for i in range(n):
                        chunk[i] = add_rounded(chunk[i], staged[i], add, odd)
                    within += 1
                step += 1
                if within == CHUNK or step == table[CORE_STEPS]:
                    join(chunk[:n], core[:n], add, odd)
                    within = 0
                if step == table[CORE_STEPS]:
                    join(core[:n], total[:n], add, odd)
                    step = 0


@kernel
def spread(table, sticks, sums, squares, out):
    """Scaled sums as sticks; a reduced stick holds its sum in all lanes, or exx2's pairs."""
    scale = bits_float(np.int32(table[VALUE]))
    if table[FLAGS] & REDUCE_LANES == 0:
        for i in range(sticks * STICK):
            out[i] = sums[i] * scale
        return
    for s in range(sticks):
        row = out[s * STICK : (s + 1) * STICK]
        value = sums[s] * scale
        for i in range(STICK):
            row[i] = value
        if table[OPCODE] == EXX2:
            store_pair(table[FLAGS], squares[s] * scale, row)


@kernel
def chunk_reduction(table, bases, half, word, scratch, first, last):
    """Run units ``first`` .. ``last`` of a chunked reduction table."""
    inner, blocks, kept_sticks = table[INNER], table[BLOCKS], table[KEPT_STICKS]
    buffer, chunk = scratch[:BUFFER], scratch[BUFFER : 2 * BUFFER]
    core, total = scratch[2 * BUFFER : 3 * BUFFER], scratch[3 * BUFFER : 4 * BUFFER]
    second = scratch[4 * BUFFER : 5 * BUFFER]
    source = table[IN + BASE] + bases[table[IN + TENSOR]]
    target = table[OUT + BASE] + bases[table[OUT + TENSOR]]
    for unit in range(first, last):
        outer = unit // blocks
        at = (unit - outer * blocks) * kept_sticks
        sticks = min(kept_sticks, inner - at)
        address = source + at * table[IN + INNER_PITCH]
        result = target + at * table[OUT + INNER_PITCH]
        coordinate = table[AT + BASE] + at * table[AT + INNER_PITCH]
        for axis in range(3, -1, -1):
            index = outer % table[EXTENT + axis]
            outer //= table[EXTENT + axis]
            address += index * table[IN + PITCH + axis]
            result += index * table[OUT + PITCH + axis]
            coordinate += index * table[AT + PITCH + axis]
        if table[OPCODE] == EXX2:
            sum_block(
                table, half, word, address, coordinate, sticks, True, buffer, chunk, core, second
            )
        sum_block(table, half, word, address, coordinate, sticks, False, buffer, chunk, core, total)
        spread(table, sticks, total, second, buffer)
        store_sticks(
            half, word, result, sticks, table[OUT + INNER_PITCH], table[OUT + FORMAT], buffer
        )


@entry
def run(table, bases, memory, scratch, first, last):
    """C entry of :func:`chunk_reduction`."""
    chunk_reduction(
        carray(pointer_i64(table), WORDS),
        carray(pointer_i64(bases), 8),
        carray(pointer_u16(memory), HALVES),
        carray(pointer_f32(memory), WORDS32),
        carray(pointer_f32(scratch + 8 * COUNTERS), FLOATS),
        first,
        last,
    )
    return 0
