"""The reduction kernel: sum, max, min, absmax, prod and exx2 over any axes, split or not.

One unit is a block of up to BLOCK_STICKS kept sticks. Accumulators are float32, one per lane; the
order is increasing coordinate, then work slices in order, and the result is rounded once. Work
slices of a reduced dim are ordinary reduced axes here, so partial sums never leave float32.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from spyre.hw import table as tb
from spyre.hw.jit import entry, kernel
from spyre.hw.kernels.blocks import load_sticks, mask_lanes, mask_sticks, store_sticks
from spyre.hw.kernels.intrinsics import (
    bits_float,
    maximum_f32,
    minimum_f32,
    pointer_f32,
    pointer_i64,
    pointer_u16,
)
from spyre.hw.kernels.opcodes import REDUCE_LANES, REDUCTIONS, RUN_REDUCED
from spyre.hw.kernels.vector_math import absolute
from spyre.hw.spec import ADDRESS_SPACE_BYTES

F = np.float32

SUM, MAX, MIN, ABSMAX, PROD, EXX2 = range(len(REDUCTIONS))
OPCODE, INNER, BLOCKS, LANES, FLAGS = tb.OPCODE, tb.INNER, tb.BLOCKS, tb.LANES, tb.FLAGS
MASK, MASK_LANES, VALUE = tb.MASK, tb.MASK_LANES, tb.VALUE
EXTENT, PITCH, INNER_PITCH = tb.EXTENT, tb.PITCH, tb.INNER_PITCH
BASE, TENSOR, FORMAT = tb.BASE, tb.TENSOR, tb.FORMAT
IN, OUT, AT = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS, tb.OPERAND + 2 * tb.OPERAND_WORDS
BLOCK_STICKS, WORDS, WHOLE_STICK = tb.BLOCK_STICKS, tb.WORDS, tb.WHOLE_STICK
COUNTERS, FLOATS = tb.SCRATCH_COUNTERS, tb.SCRATCH_FLOATS
HALVES, WORDS32 = ADDRESS_SPACE_BYTES // 2, ADDRESS_SPACE_BYTES // 4
BUFFER = BLOCK_STICKS * 64


@kernel
def identity_of(opcode):  # type: ignore[no-untyped-def]
    """The value an empty reduction starts from."""
    if opcode == MAX:
        return F(-np.inf)
    if opcode == MIN:
        return F(np.inf)
    return F(1.0) if opcode == PROD else F(0.0)


@kernel
def accumulate(opcode, source, target, squares):  # type: ignore[no-untyped-def]
    """target[i] = combine(target[i], source[i]); exx2 also adds squares."""
    n = target.size
    if opcode == SUM:
        for i in range(n):
            target[i] += source[i]
    elif opcode == MAX:
        for i in range(n):
            target[i] = maximum_f32(source[i], target[i])
    elif opcode == MIN:
        for i in range(n):
            target[i] = minimum_f32(source[i], target[i])
    elif opcode == ABSMAX:
        for i in range(n):
            target[i] = maximum_f32(absolute(source[i]), target[i])
    elif opcode == PROD:
        for i in range(n):
            target[i] *= source[i]
    else:
        for i in range(n):
            target[i] += source[i]
            squares[i] += source[i] * source[i]


@kernel
def fold_sum(source, sticks, lanes, target):  # type: ignore[no-untyped-def]
    """Add ``sticks`` staged sticks to one stick of accumulators, four at a time."""
    s = 0
    while s + 4 <= sticks:
        a = source[s * lanes : (s + 1) * lanes]
        b = source[(s + 1) * lanes : (s + 2) * lanes]
        c = source[(s + 2) * lanes : (s + 3) * lanes]
        d = source[(s + 3) * lanes : (s + 4) * lanes]
        for i in range(target.size):
            target[i] += (a[i] + b[i]) + (c[i] + d[i])
        s += 4
    while s < sticks:
        a = source[s * lanes : (s + 1) * lanes]
        for i in range(target.size):
            target[i] += a[i]
        s += 1


@kernel
def fold_max(source, sticks, lanes, target):  # type: ignore[no-untyped-def]
    """Maximum of ``sticks`` staged sticks and the accumulators, four at a time."""
    s = 0
    while s + 4 <= sticks:
        a = source[s * lanes : (s + 1) * lanes]
        b = source[(s + 1) * lanes : (s + 2) * lanes]
        c = source[(s + 2) * lanes : (s + 3) * lanes]
        d = source[(s + 3) * lanes : (s + 4) * lanes]
        for i in range(target.size):
            left, right = maximum_f32(a[i], b[i]), maximum_f32(c[i], d[i])
            target[i] = maximum_f32(target[i], maximum_f32(left, right))
        s += 4
    while s < sticks:
        a = source[s * lanes : (s + 1) * lanes]
        for i in range(target.size):
            target[i] = maximum_f32(target[i], a[i])
        s += 1


@kernel
def fold_sticks(opcode, source, sticks, lanes, target, squares):  # type: ignore[no-untyped-def]
    """Combine ``sticks`` staged sticks into one stick of accumulators."""
    if opcode == SUM:
        fold_sum(source, sticks, lanes, target)
    elif opcode == MAX:
        fold_max(source, sticks, lanes, target)
    else:
        for s in range(sticks):
            accumulate(opcode, source[s * lanes : (s + 1) * lanes], target, squares)


@kernel
def combine_lanes(opcode, values):  # type: ignore[no-untyped-def]
    """Tree reduction over the lanes of one stick; the result is in lane 0."""
    half = values.size // 2
    while half > 0:
        left, right = values[:half], values[half : 2 * half]
        if opcode == MAX or opcode == ABSMAX:
            for i in range(half):
                left[i] = maximum_f32(right[i], left[i])
        elif opcode == MIN:
            for i in range(half):
                left[i] = minimum_f32(right[i], left[i])
        elif opcode == PROD:
            for i in range(half):
                left[i] *= right[i]
        else:
            for i in range(half):
                left[i] += right[i]
        half //= 2


@kernel
def finish(opcode, flags, scale, sticks, lanes, sums, squares):  # type: ignore[no-untyped-def]
    """Lane reduction, scaling and replication of ``sticks`` sticks of accumulators."""
    for s in range(sticks):
        row = sums[s * lanes : (s + 1) * lanes]
        second = squares[s * lanes : (s + 1) * lanes]
        if flags & REDUCE_LANES:
            combine_lanes(opcode, row)
            value = row[0]
            for i in range(lanes):
                row[i] = value
        for i in range(lanes):
            row[i] *= scale
        if opcode == EXX2:
            combine_lanes(SUM, second)
            pair = second[0] * scale
            for i in range(1, lanes, 2):
                row[i] = pair


@kernel
def stage(table, half, word, address, coordinate, sticks, pitch, step, lanes, buffer):  # type: ignore[no-untyped-def]
    """Load ``sticks`` input sticks and replace masked elements."""
    load_sticks(
        half, word, address, sticks, pitch, WHOLE_STICK, table[IN + FORMAT], lanes, buffer
    )
    masked = table[MASK]
    if masked == 0:
        return
    if masked == MASK_LANES:
        mask_lanes(table, coordinate, step, sticks, lanes, buffer)
    else:
        mask_sticks(table, coordinate, step, sticks, lanes, buffer)


@kernel
def reduce_block(table, half, word, address, coordinate, sticks, buffer, sums, squares):  # type: ignore[no-untyped-def]
    """Accumulate all reduced indices of ``sticks`` kept sticks."""
    opcode, lanes, flags = table[OPCODE], table[LANES], table[FLAGS]
    kept_pitch, kept_step = table[IN + INNER_PITCH], table[AT + INNER_PITCH]
    run_pitch, run_step = table[IN + PITCH + 6], table[AT + PITCH + 6]
    runs = table[EXTENT + 6]
    for r0 in range(table[EXTENT + 4]):
        for r1 in range(table[EXTENT + 5]):
            a = address + r0 * table[IN + PITCH + 4] + r1 * table[IN + PITCH + 5]
            c = coordinate + r0 * table[AT + PITCH + 4] + r1 * table[AT + PITCH + 5]
            if flags & RUN_REDUCED:
                for s in range(sticks):
                    target = sums[s * lanes : (s + 1) * lanes]
                    second = squares[s * lanes : (s + 1) * lanes]
                    for r2 in range(0, runs, BLOCK_STICKS):
                        count = min(BLOCK_STICKS, runs - r2)
                        stage(
                            table, half, word, a + s * kept_pitch + r2 * run_pitch,
                            c + s * kept_step + r2 * run_step, count, run_pitch, run_step,
                            lanes, buffer,
                        )  # fmt: skip
                        fold_sticks(opcode, buffer, count, lanes, target, second)
            else:
                n = sticks * lanes
                for r2 in range(runs):
                    stage(
                        table, half, word, a + r2 * run_pitch, c + r2 * run_step, sticks,
                        kept_pitch, kept_step, lanes, buffer,
                    )  # fmt: skip
                    accumulate(opcode, buffer[:n], sums[:n], squares[:n])


@kernel
def reduction(table, bases, half, word, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run units ``first`` .. ``last`` of a reduction table."""
    opcode, lanes, inner, blocks = table[OPCODE], table[LANES], table[INNER], table[BLOCKS]
    scale = bits_float(np.int32(table[VALUE]))
    buffer, sums = scratch[:BUFFER], scratch[BUFFER : 2 * BUFFER]
    squares = scratch[2 * BUFFER : 3 * BUFFER]
    source = table[IN + BASE] + bases[table[IN + TENSOR]]
    target = table[OUT + BASE] + bases[table[OUT + TENSOR]]
    for unit in range(first, last):
        outer = unit // blocks
        at = (unit - outer * blocks) * BLOCK_STICKS
        sticks = min(BLOCK_STICKS, inner - at)
        address = source + at * table[IN + INNER_PITCH]
        result = target + at * table[OUT + INNER_PITCH]
        coordinate = table[AT + BASE] + at * table[AT + INNER_PITCH]
        for axis in range(3, -1, -1):
            index = outer % table[EXTENT + axis]
            outer //= table[EXTENT + axis]
            address += index * table[IN + PITCH + axis]
            result += index * table[OUT + PITCH + axis]
            coordinate += index * table[AT + PITCH + axis]
        start = identity_of(opcode)
        for i in range(sticks * lanes):
            sums[i] = start
            squares[i] = F(0.0)
        reduce_block(table, half, word, address, coordinate, sticks, buffer, sums, squares)
        finish(opcode, table[FLAGS], scale, sticks, lanes, sums, squares)
        store_sticks(
            half, word, result, sticks, table[OUT + INNER_PITCH], table[OUT + FORMAT], sums
        )


@entry
def run(table, bases, memory, scratch, first, last):  # type: ignore[no-untyped-def]
    """C entry of :func:`reduction`."""
    reduction(
        carray(pointer_i64(table), WORDS),
        carray(pointer_i64(bases), 8),
        carray(pointer_u16(memory), HALVES),
        carray(pointer_f32(memory), WORDS32),
        carray(pointer_f32(scratch + 8 * COUNTERS), FLOATS),
        first,
        last,
    )
    return 0
