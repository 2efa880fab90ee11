"""The requantize kernel: elementwise operations between operands of any stick and format.

One unit is an outer step and up to 8 middle steps, each a vector of inner elements, so that both
4-bit elements of a byte are written by one thread. Floating point operations stage float32 values,
integer ones work on int32 words. Sticks beyond an argument (BOUNDED) are neither read nor written.
"""

from __future__ import annotations

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.kernels.intrinsics import bits_float
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.kernels.offset_vectors import gather_values, read_vector, scatter_values, vector_word
from spyre.hw.spec_choices import QUANTIZE_TIES_TO_EVEN, QUANTIZED_FP8_MAX

F = np.float32

QUANTIZE8, QUANTIZE4, TO_FP8, VALUE, ADD, MUL, TRUNCATE, FROM_INT = range(len(tb.REQUANTIZATIONS))
BASE, TENSOR, FORMAT = tb.BASE, tb.TENSOR, tb.FORMAT
OPERAND, OPERAND_WORDS = tb.OPERAND, tb.OPERAND_WORDS
OPCODE, INPUTS, CONSTANT, FLAGS = tb.OPCODE, tb.INPUTS, tb.CONSTANT, tb.FLAGS
END, BOUNDED, REFUSE_OVERFLOW = tb.END, tb.BOUNDED, tb.REFUSE_OVERFLOW
MASK, MASK_START, MASK_END = tb.MASK, tb.MASK_START, tb.MASK_END
OUTER, MIDDLE, INNER = range(tb.COUNTS, tb.COUNTS + 3)
MIDDLE_BLOCK = tb.MIDDLE_BLOCK
FP8_MAX = F(QUANTIZED_FP8_MAX)


@kernel
def quantize(values, scale, shift, low, high):
    """values = whole numbers: value · scale + shift to the nearest in low .. high; NaN 0."""
    for i in range(values.size):
        exact = np.float64(values[i]) * scale + shift
        if QUANTIZE_TIES_TO_EVEN:
            whole = np.rint(exact)
        else:
            whole = np.copysign(np.floor(abs(exact) + 0.5), exact)
        if whole != whole:  # NaN
            whole = 0.0
        values[i] = F(min(max(whole, low), high))


@kernel
def saturate(values, limit):
    """Clamp to ±limit; NaN stays."""
    for i in range(values.size):
        if values[i] > limit:
            values[i] = limit
        elif values[i] < -limit:
            values[i] = -limit


@kernel
def to_int(value):
    """float32 → int32 towards zero; larger values saturate, NaN is 0."""
    if value != value:  # NaN
        return np.int64(0)
    if value >= F(2147483648.0):
        return np.int64(2147483647)
    if value <= F(-2147483648.0):
        return np.int64(-2147483648)
    return np.int64(value)


@kernel
def requantize_words(table, word, integers, places, vectors, inner):
    """Integer operations and conversions on 32-bit elements.

    Masked elements of the first input count as 0. Returns 0, or where a result that does not fit is
    to be refused 1 + the host address (bytes) of one.
    """
    opcode, last, fault = table[OPCODE], table[INPUTS], 0
    masked, refused = table[MASK], table[FLAGS] & REFUSE_OVERFLOW
    for i in range(inner):
        a = (places[0] + vectors[0, i]) >> 5
        y = (places[last] + vectors[last, i]) >> 5
        hidden = False
        if masked:
            position = places[last + 1] + vectors[last + 1, i]
            hidden = table[MASK_START] <= position < table[MASK_END]
        if opcode == TRUNCATE:
            value = F(0.0) if hidden else word[a]
            whole = to_int(value)
            integers[y] = np.int32(whole)
            fits = value != value or F(-2147483648.0) <= value < F(2147483648.0)
        elif opcode == FROM_INT:
            word[y] = F(0.0) if hidden else F(integers[a])
            fits = True
        else:
            b = (places[1] + vectors[1, i]) >> 5
            left, right = np.int64(0) if hidden else np.int64(integers[a]), np.int64(integers[b])
            # two 32-bit integers in 64 bits: dropping the upper half wraps modulo 2^32
            result = left + right if opcode == ADD else left * right
            integers[y] = np.int32(result & 0xFFFFFFFF)
            fits = -2147483648 <= result <= 2147483647
        if refused and not fits:
            fault = 1 + 4 * y
    return fault


@kernel
def gather_bounded(half, word, octet, code, place, end, offsets, buffer):
    """:func:`gather_values` of the elements before bit ``end``; 0 for the others."""
    for i in range(buffer.size):
        buffer[i] = F(0.0)
        if place + offsets[i] < end:
            one = offsets[i : i + 1]
            gather_values(half, word, octet, code, place, one, buffer[i : i + 1])


@kernel
def scatter_bounded(half, word, octet, code, place, end, offsets, buffer):
    """:func:`scatter_values` of the elements before bit ``end``; the others are not written."""
    for i in range(buffer.size):
        if place + offsets[i] < end:
            one = offsets[i : i + 1]
            scatter_values(half, word, octet, code, place, one, buffer[i : i + 1])


@kernel
def end_of(table, bases, operand):
    """First bit of memory that the operand may not touch."""
    at = OPERAND + operand * OPERAND_WORDS
    return table[at + END] + 8 * bases[table[at + TENSOR]]


@kernel
def requantize_values(table, bases, half, word, octet, places, vectors, buffer):
    """Floating point operations of one input."""
    opcode, target = table[OPCODE], OPERAND + OPERAND_WORDS
    bounded, code = table[FLAGS] & BOUNDED, table[OPERAND + FORMAT]
    if bounded:
        end = end_of(table, bases, 0)
        gather_bounded(half, word, octet, code, places[0], end, vectors[0], buffer)
    else:
        gather_values(half, word, octet, code, places[0], vectors[0], buffer)
    if opcode == QUANTIZE8 or opcode == QUANTIZE4:
        scale = np.float64(bits_float(np.int32(table[CONSTANT])))
        shift = np.float64(bits_float(np.int32(table[CONSTANT + 1])))
        high = 127.0 if opcode == QUANTIZE8 else 7.0
        quantize(buffer, scale, shift, -high - 1.0, high)
    elif opcode == TO_FP8:
        saturate(buffer, FP8_MAX)
    code = table[target + FORMAT]
    if bounded:
        end = end_of(table, bases, 1)
        scatter_bounded(half, word, octet, code, places[1], end, vectors[1], buffer)
    else:
        scatter_values(half, word, octet, code, places[1], vectors[1], buffer)


@kernel
def requantize(table, bases, half, word, integers, octet, first, last):
    """Run units ``first`` .. ``last`` of a requantize table; 0 or `requantize_words`' fault."""
    operands, opcode = table[INPUTS] + 1, table[OPCODE]
    rows = operands + 1 if table[MASK] else operands
    outer, middle, inner = table[OUTER], table[MIDDLE], table[INNER]
    blocks = -(-middle // MIDDLE_BLOCK)
    vectors = np.empty((rows, inner), np.int64)
    middle_at = rows * outer
    for k in range(rows):
        read_vector(table, middle_at + rows * middle + k * inner, vectors[k])
    buffer = np.empty(inner, np.float32)
    places = np.empty(rows, np.int64)
    for unit in range(first, last):
        step, block = unit // blocks, unit % blocks * MIDDLE_BLOCK
        for m in range(block, min(block + MIDDLE_BLOCK, middle)):
            for k in range(rows):
                at = OPERAND + k * OPERAND_WORDS
                if k < operands:
                    place = table[at + BASE] + 8 * bases[table[at + TENSOR]]
                else:
                    place = table[CONSTANT]
                place += vector_word(table, k * outer + step)
                places[k] = place + vector_word(table, middle_at + k * middle + m)
            if opcode >= ADD:
                fault = requantize_words(table, word, integers, places, vectors, inner)
                if fault != 0:
                    return fault
            else:
                requantize_values(table, bases, half, word, octet, places, vectors, buffer)
    return 0


run = entry(requantize, reports_faults=True)
