"""Kernels that move elements: copies, conversions between 16 and 32 bits, changes of the stick dim.

Copies are of bits, with broadcast, and through an index tensor (FLAGS): an index adds
``index * VALUE`` bytes to the input (gather) or the output (scatter) address, one index per block
of up to BLOCK_STICKS sticks or one per lane; an index outside 0 .. MASK_END stops the kernel.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.kernels.blocks import begin, follow, load_sticks, store_sticks
from spyre.hw.kernels.dl16_vectors import emit_narrow, emit_widen, make_choice, stick_loops
from spyre.hw.kernels.intrinsics import transpose_tile
from spyre.hw.kernels.jit import entry, kernel

OPCODE, INNER, BLOCKS, FLAGS, VALUE = tb.OPCODE, tb.INNER, tb.BLOCKS, tb.FLAGS, tb.VALUE
LANE, LANES, FORMAT, INNER_PITCH = tb.LANE, tb.LANES, tb.FORMAT, tb.INNER_PITCH
IN, OUT, THIRD, FOURTH = (tb.OPERAND + k * tb.OPERAND_WORDS for k in range(4))
BLOCK_STICKS = tb.BLOCK_STICKS
FP32_FORMAT, CONSTANT = tb.FP32, tb.CONSTANT

INDEX, INDEX_END = THIRD, tb.MASK_END
WIDEN = tb.CONVERSIONS.index("widen")
AT_A, AT_B, A_END = THIRD, FOURTH, tb.MASK_END
B_PITCH, A_PITCH = tb.CONSTANT, tb.CONSTANT + 1
"""Bytes between consecutive b in the input, and between consecutive a in the output."""
BOTH_STAGGERED = tb.HALF_STAGGERED | tb.WORD_STAGGERED


# --- copies -----------------------------------------------------------------------------------


@kernel
def move_lanes(table, half, integers, source, target, index_at, sticks):
    """Gather or scatter element by element; nonzero is 1 + the faulty index address."""
    lanes, flags, step = table[LANES], table[FLAGS], table[VALUE]
    shift = 1 if lanes == 64 else 2
    for s in range(sticks):
        index_stick = index_at + s * table[INDEX + INNER_PITCH]
        x = source + s * table[IN + INNER_PITCH]
        y = target + s * table[OUT + INNER_PITCH]
        for i in range(lanes):
            at = index_stick + (i // 32) * table[CONSTANT] + (i % 32) * 4
            index = integers[at >> 2]
            if index < 0 or index >= table[INDEX_END]:
                return 1 + at  # 0 is "no fault", and an address
            moved = index * step
            a = x + (moved if flags & tb.GATHER else 0)
            b = y + (0 if flags & tb.GATHER else moved)
            if shift == 1:
                half[(b >> 1) + i] = half[(a >> 1) + i]
            else:
                integers[(b >> 2) + i] = integers[(a >> 2) + i]
    return 0


@kernel
def copying(table, bases, half, integers, counters, first, last):
    """Run units ``first`` .. ``last`` of a copy table; nonzero is 1 + the faulty index address."""
    inner, blocks, flags, lanes = table[INNER], table[BLOCKS], table[FLAGS], table[LANES]
    source_pitch, target_pitch = table[IN + INNER_PITCH], table[OUT + INNER_PITCH]
    lane, lane_bytes, kind = table[IN + LANE], np.int64(0), tb.COPY
    if lane >= 0:
        lane_bytes = lane * (2 if lanes == 64 else 4)
        kind = tb.SPREAD_CODE if lanes == 64 else tb.SPREAD_WORD
    block = begin(table, bases, counters, first, blocks)
    for _ in range(first, last):
        at = block * BLOCK_STICKS
        sticks = min(BLOCK_STICKS, inner - at)
        source = counters[8] + at * source_pitch + lane_bytes
        target = counters[9] + at * target_pitch
        index_at = counters[10] + at * table[INDEX + INNER_PITCH]
        if flags & tb.INDEX_PER_LANE:
            fault = move_lanes(table, half, integers, source, target, index_at, sticks)
            if fault != 0:
                return fault
        else:
            if flags != 0:
                index = integers[index_at >> 2]
                if index < 0 or index >= table[INDEX_END]:
                    return 1 + index_at
                source += index * table[VALUE] if flags & tb.GATHER else 0
                target += 0 if flags & tb.GATHER else index * table[VALUE]
            places = half.ctypes.data + source, half.ctypes.data + target
            stick_loops(kind, places, (source_pitch, target_pitch), sticks, 64)
        block = follow(table, counters, block, blocks)
    return 0


run_copy = entry(copying, reports_faults=True)


# --- conversions ------------------------------------------------------------------------------

code_loops = make_choice(
    {k: partial((emit_widen, emit_narrow)[k // 2], bool(k % 2)) for k in range(4)}
)
"""Sticks of DL16 codes to float32 and back, in registers. By fours: one side is staggered."""


@kernel
def convert_group(table, half, word, source, target, buffer, ordered):
    """Convert one group of 64 elements from byte ``source`` to byte ``target``."""
    flags, second, widen = table[FLAGS], table[VALUE], table[OPCODE] == WIDEN
    lane, code = table[IN + LANE], table[IN + FORMAT]
    if widen:
        load_sticks(half, word, source, 1, 128, lane, code, 64, buffer)
    else:
        load_sticks(half, word, source, 2, second, lane, FP32_FORMAT, 32, buffer)
    staggered_in = flags & (tb.HALF_STAGGERED if widen else tb.WORD_STAGGERED)
    staggered_out = flags & (tb.WORD_STAGGERED if widen else tb.HALF_STAGGERED)
    for i in range(64):
        # places of a logical column in two DL16_TO_FP32 sticks, and in an FP32_TO_DL16 stick
        in_words, in_half = 32 * (i // 4 % 2) + 4 * (i // 8), 8 * (i // 4 % 8) + 4 * (i // 32)
        a, b = i, i
        if staggered_in != 0:
            a = (in_half if widen else in_words) + i % 4
        if staggered_out != 0:
            b = (in_words if widen else in_half) + i % 4
        ordered[b] = buffer[a]
    if widen:
        store_sticks(half, word, target, 2, second, FP32_FORMAT, ordered)
    else:
        store_sticks(half, word, target, 1, 128, table[OUT + FORMAT], ordered)


@kernel
def converting(table, bases, half, word, counters, scratch, first, last):
    """Run units ``first`` .. ``last`` of a conversion table: groups of 64 elements.

    One 16-bit stick corresponds to two 32-bit ones. FLAGS tell which side is stored in its element
    arrangement (operations reference §6).
    """
    inner, flags, second, widen = table[INNER], table[FLAGS], table[VALUE], table[OPCODE] == WIDEN
    dx, dy = table[IN + INNER_PITCH], table[OUT + INNER_PITCH]
    of_codes = table[(IN if widen else OUT) + FORMAT] == tb.DL16 and table[IN + LANE] < 0
    at, unit = begin(table, bases, counters, first, inner), first
    while unit < last:
        source, target = counters[8] + at * dx, counters[9] + at * dy
        x, y, groups = half.ctypes.data + source, half.ctypes.data + target, 1
        if of_codes and flags < BOTH_STAGGERED:
            groups, by_fours = min(inner - at, last - unit), np.int64(flags != 0)
            if widen:
                code_loops(by_fours, (x, y, y + second), (dx, dy, dy), groups, 64)
            else:
                code_loops(2 + by_fours, (x, x + second, y), (dx, dx, dy), groups, 64)
        else:
            convert_group(table, half, word, source, target, scratch[:64], scratch[64:128])
        unit += groups
        at = follow(table, counters, at + groups - 1, inner)


run_convert = entry(converting)


# --- changes of the stick dim -----------------------------------------------------------------


@kernel
def whole_block(memory, source, source_pitch, target, target_pitch):
    """A 64x64 block of 16-bit elements, all of it stored on both sides."""
    for i in range(4):
        for j in range(4):
            transpose_tile(
                memory + source + 16 * i * source_pitch + 32 * j,
                source_pitch,
                memory + target + 16 * j * target_pitch + 32 * i,
                target_pitch,
            )


@kernel
def partial_block(view, shift, source, source_pitch, target, target_pitch, rows, columns, side):
    """A block of which ``rows`` of the input exist and ``columns`` of the output do."""
    for j in range(columns):
        at = (target + j * target_pitch) >> shift
        out = view[at : at + side]
        for i in range(rows):
            out[i] = view[((source + i * source_pitch) >> shift) + j]
        for i in range(rows, side):
            out[i] = 0


@kernel
def restickify(table, bases, memory, half, integers, counters, first, last):
    """Run blocks ``first`` .. ``last`` of a restickify table (SDSC reference §7).

    A block is one stick of the input's stick dim a by one of the output's stick dim b. Rows beyond
    the stored extents read as zero and are not written: VALUE limits b in the input, MASK_END
    limits a in the output. Operands 2 and 3 are the coordinates of a and b.
    """
    inner, side = table[INNER], table[LANES]
    source_pitch, target_pitch = table[B_PITCH], table[A_PITCH]
    at = begin(table, bases, counters, first, inner)
    for _ in range(first, last):
        source = counters[8] + at * table[IN + INNER_PITCH]
        target = counters[9] + at * table[OUT + INNER_PITCH]
        columns = min(side, table[A_END] - counters[10] - at * table[AT_A + INNER_PITCH])
        rows = min(side, table[VALUE] - counters[11] - at * table[AT_B + INNER_PITCH])
        if side == 64 and rows == 64 and columns == 64:
            whole_block(memory, source, source_pitch, target, target_pitch)
        elif side == 64:
            partial_block(
                half, 1, source, source_pitch, target, target_pitch,
                max(rows, 0), max(columns, 0), 64,
            )  # fmt: skip
        else:
            partial_block(
                integers, 2, source, source_pitch, target, target_pitch,
                max(rows, 0), max(columns, 0), 32,
            )  # fmt: skip
        at = follow(table, counters, at, inner)


run_restickify = entry(restickify)
