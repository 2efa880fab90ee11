"""The elementwise kernel: stage 16 sticks of every input, compute, store 16 sticks.

One unit is one block of up to BLOCK_STICKS sticks along the innermost axis. Every block is staged
whole before it is written, so operating in place is safe. Cheap operations on neighbouring sticks
are not staged and take as many blocks at once as follow each other.
"""

from __future__ import annotations

from numba import carray

from spyre.hw import table as tb
from spyre.hw.jit import entry, kernel
from spyre.hw.kernels.blocks import (
    begin,
    follow,
    load_sticks,
    mask_lanes,
    mask_sticks,
    store_sticks,
)
from spyre.hw.kernels.fused import fused_runs
from spyre.hw.kernels.intrinsics import pointer_f32, pointer_i64, pointer_u16
from spyre.hw.kernels.opcodes import FUSE
from spyre.hw.kernels.pointwise import apply_binary, apply_many, apply_unary
from spyre.hw.spec import HOST_BYTES, STICK_BYTES

OPCODE, INPUTS, INNER, BLOCKS, LANES = tb.OPCODE, tb.INPUTS, tb.INNER, tb.BLOCKS, tb.LANES
FLAGS, SECOND = tb.FLAGS, tb.OPERAND + tb.OPERAND_WORDS
MASK, MASK_LANES, CONSTANT = tb.MASK, tb.MASK_LANES, tb.CONSTANT
OPERAND, OPERAND_WORDS = tb.OPERAND, tb.OPERAND_WORDS
LANE, FORMAT, PITCH, INNER_PITCH = tb.LANE, tb.FORMAT, tb.PITCH, tb.INNER_PITCH
RANK, EXTENT, OPERANDS = tb.RANK, tb.EXTENT, tb.OPERANDS
BLOCK_STICKS, WORDS = tb.BLOCK_STICKS, tb.WORDS
COUNTERS, FLOATS = tb.SCRATCH_COUNTERS, tb.SCRATCH_FLOATS
HALVES, WORDS32 = HOST_BYTES // 2, HOST_BYTES // 4
BUFFER = BLOCK_STICKS * 64


@kernel
def run_fused(table, counters, memory, block, most):
    """Run up to ``most`` units from ``block`` on without staging; how many, 0 if that cannot be.

    The counters are then those of the last of them. Whole runs go on along the next outer axis.
    """
    inputs, blocks, rank = table[INPUTS], table[BLOCKS], table[RANK]
    axis, out, second_pitch = rank - 1, 8 + inputs, table[SECOND + INNER_PITCH]
    units, runs = min(blocks - block, most), 1
    if units == blocks and rank > 0:
        runs = min(most // blocks, table[EXTENT + axis] - counters[axis])
    at = block * BLOCK_STICKS
    n = min(units * BLOCK_STICKS, table[INNER] - at) * table[LANES]
    step = OPERAND + PITCH + max(axis, 0)
    while not fused_runs(
        table[OPCODE], inputs, memory,
        counters[8] + at * STICK_BYTES,
        counters[9] + at * second_pitch,
        counters[10] + at * STICK_BYTES,
        counters[out] + at * STICK_BYTES,
        table[step], table[step + OPERAND_WORDS], table[step + 2 * OPERAND_WORDS],
        table[step + inputs * OPERAND_WORDS],
        runs, n, table[SECOND + LANE], second_pitch,
    ):  # fmt: skip
        if runs == 1:
            return 0
        runs = 1
    if runs > 1:
        counters[axis] += runs - 1
        for k in range(table[OPERANDS]):
            counters[8 + k] += (runs - 1) * table[step + k * OPERAND_WORDS]
    return units * runs


@kernel
def elementwise(table, bases, constants, half, word, counters, scratch, first, last):
    """Run units ``first`` .. ``last`` of an elementwise table."""
    inputs, lanes, inner, blocks = table[INPUTS], table[LANES], table[INNER], table[BLOCKS]
    opcode, masked, fuse = table[OPCODE], table[MASK], table[FLAGS] == FUSE
    memory = half.ctypes.data
    out_word = OPERAND + inputs * OPERAND_WORDS
    mask_word = out_word + OPERAND_WORDS
    block, unit = begin(table, bases, counters, first, blocks), first
    while unit < last:
        at = block * BLOCK_STICKS
        if fuse:
            units = run_fused(table, counters, memory, block, last - unit)
            if units > 0:
                unit += units
                block = follow(table, counters, (block + units - 1) % blocks, blocks)
                continue
        sticks = min(BLOCK_STICKS, inner - at)
        n = sticks * lanes
        for k in range(inputs):
            operand = OPERAND + k * OPERAND_WORDS
            pitch = table[operand + INNER_PITCH]
            load_sticks(
                half, word, counters[8 + k] + at * pitch, sticks, pitch,
                table[operand + LANE], table[operand + FORMAT], lanes,
                scratch[k * BUFFER : (k + 1) * BUFFER],
            )  # fmt: skip
        if masked != 0:
            step = table[mask_word + INNER_PITCH]
            coordinate = counters[8 + inputs + 1] + at * step
            if masked == MASK_LANES:
                mask_lanes(table, coordinate, step, sticks, lanes, scratch)
            else:
                mask_sticks(table, coordinate, step, sticks, lanes, scratch)
        a = scratch[:n]
        b = scratch[BUFFER : BUFFER + n]
        out = scratch[5 * BUFFER : 5 * BUFFER + n]
        if inputs == 1:
            apply_unary(opcode, a, out, constants)
        elif inputs == 2:
            apply_binary(opcode, a, b, out, constants)
        else:
            c = scratch[2 * BUFFER : 2 * BUFFER + n]
            d = scratch[3 * BUFFER : 3 * BUFFER + n]
            e = scratch[4 * BUFFER : 4 * BUFFER + n]
            apply_many(opcode, a, b, c, d, e, out)
        pitch = table[out_word + INNER_PITCH]
        store_sticks(
            half, word, counters[8 + inputs] + at * pitch, sticks, pitch,
            table[out_word + FORMAT], out,
        )  # fmt: skip
        unit += 1
        block = follow(table, counters, block, blocks)


@entry
def run(table, bases, memory, scratch, first, last):
    """C entry of :func:`elementwise`."""
    words = carray(pointer_i64(table), WORDS)
    elementwise(
        words,
        carray(pointer_i64(bases), 8),
        carray(pointer_f32(table + 8 * CONSTANT), 16),
        carray(pointer_u16(memory), HALVES),
        carray(pointer_f32(memory), WORDS32),
        carray(pointer_i64(scratch), COUNTERS),
        carray(pointer_f32(scratch + 8 * COUNTERS), FLOATS),
        first,
        last,
    )
    return 0
