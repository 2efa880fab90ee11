"""The conversion kernel: dl16tofp32 and fp32todl16, one 16-bit stick against two 32-bit ones.

One unit is one group of 64 elements. Each side may be stored in its element arrangement
(operations reference §6): FLAGS says which; the arithmetic is the value conversion.
"""

from __future__ import annotations

from numba import carray

from spyre.hw.kernels.blocks import begin, follow, load_one, store_sticks
from spyre.hw.kernels.intrinsics import pointer_f32, pointer_i64, pointer_u16
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.spec import HOST_BYTES
from spyre.hw.table import plan as tb
from spyre.hw.table.plan import CONVERSIONS, HALF_STAGGERED, WORD_STAGGERED

WIDEN = CONVERSIONS.index("widen")

OPCODE, FLAGS, VALUE = tb.OPCODE, tb.FLAGS, tb.VALUE
INNER, INNER_PITCH, FORMAT = tb.INNER, tb.INNER_PITCH, tb.FORMAT
IN, OUT = tb.OPERAND, tb.OPERAND + tb.OPERAND_WORDS
WORDS, WHOLE_STICK, FP32_FORMAT = tb.WORDS, tb.WHOLE_STICK, tb.FP32
COUNTERS, FLOATS = tb.SCRATCH_COUNTERS, tb.SCRATCH_FLOATS
HALVES, WORDS32 = HOST_BYTES // 2, HOST_BYTES // 4


@kernel
def word_position(column):
    """Place of logical column 0..63 in two DL16_TO_FP32 sticks (second stick from 32 on)."""
    group, within = column // 8, column % 8
    return (within // 4) * 32 + 4 * group + within % 4


@kernel
def half_position(column):
    """Place of logical column 0..63 in one FP32_TO_DL16 stick."""
    h, within = column // 32, column % 32
    return 8 * (within // 4) + 4 * h + within % 4


@kernel
def convert_group(table, half, word, source, target, buffer, ordered):
    """Convert one group of 64 elements from byte ``source`` to byte ``target``."""
    flags, second = table[FLAGS], table[VALUE]
    if table[OPCODE] == WIDEN:
        load_one(half, word, source, WHOLE_STICK, table[IN + FORMAT], 64, buffer)
    else:
        load_one(half, word, source, WHOLE_STICK, FP32_FORMAT, 32, buffer)
        load_one(half, word, source + second, WHOLE_STICK, FP32_FORMAT, 32, buffer[32:])
    staggered_in = flags & (HALF_STAGGERED if table[OPCODE] == WIDEN else WORD_STAGGERED)
    staggered_out = flags & (WORD_STAGGERED if table[OPCODE] == WIDEN else HALF_STAGGERED)
    widen = table[OPCODE] == WIDEN
    for i in range(64):
        a = i
        if staggered_in != 0:
            a = half_position(i) if widen else word_position(i)
        b = i
        if staggered_out != 0:
            b = word_position(i) if widen else half_position(i)
        ordered[b] = buffer[a]
    if widen:
        store_sticks(half, word, target, 1, 128, FP32_FORMAT, ordered)
        store_sticks(half, word, target + second, 1, 128, FP32_FORMAT, ordered[32:])
    else:
        store_sticks(half, word, target, 1, 128, table[OUT + FORMAT], ordered)


@kernel
def converting(table, bases, half, word, counters, scratch, first, last):
    """Run units ``first`` .. ``last`` of a conversion table."""
    inner = table[INNER]
    at = begin(table, bases, counters, first, inner)
    for _ in range(first, last):
        convert_group(
            table, half, word, counters[8] + at * table[IN + INNER_PITCH],
            counters[9] + at * table[OUT + INNER_PITCH], scratch[:64], scratch[64:128],
        )  # fmt: skip
        at = follow(table, counters, at, inner)


@entry
def run(table, bases, memory, scratch, first, last):
    """C entry of :func:`converting`."""
    converting(
        carray(pointer_i64(table), WORDS),
        carray(pointer_i64(bases), 8),
        carray(pointer_u16(memory), HALVES),
        carray(pointer_f32(memory), WORDS32),
        carray(pointer_i64(scratch), COUNTERS),
        carray(pointer_f32(scratch + 8 * COUNTERS), FLOATS),
        first,
        last,
    )
    return 0
