"""Cheap operations on DL16 in one pass: decode, compute, encode, no staging.

For these the staged kernel spends more on its buffers than on arithmetic. They apply to blocks of
neighbouring sticks whose output is an input or overlaps none; everything else is staged. Same
arithmetic, same single rounding, so the results are the same bits.
"""

from __future__ import annotations

from spyre.hw.jit import kernel
from spyre.hw.kernels.code_loops import (
    absolute_codes,
    add_codes,
    add_lanes,
    divide_codes,
    divide_lanes,
    maximum_codes,
    maximum_lanes,
    minimum_codes,
    minimum_lanes,
    multiply_codes,
    multiply_lanes,
    negate_codes,
    relu_codes,
    subtract_codes,
    subtract_lanes,
    where_codes,
)
from spyre.hw.kernels.opcodes import BINARY, FUSED_BINARY, FUSED_UNARY, MANY, UNARY

ADD, SUB, MUL, DIV, MAX, MIN = (BINARY.index(name) for name in FUSED_BINARY)
NEG, ABS, RELU = (UNARY.index(name) for name in FUSED_UNARY)
WHERE = MANY.index("where")


@kernel
def fused_unary(opcode, x, z, n):
    """z[i] = op(x[i]) on ``n`` DL16 codes at host addresses."""
    if opcode == RELU:
        relu_codes((x, z), n)
    elif opcode == NEG:
        negate_codes((x, z), n)
    else:
        absolute_codes((x, z), n)


@kernel
def fused_binary(opcode, x, y, z, n):
    """z[i] = op(x[i], y[i]) on ``n`` DL16 codes at host addresses."""
    if opcode == ADD:
        add_codes((x, y, z), n)
    elif opcode == SUB:
        subtract_codes((x, y, z), n)
    elif opcode == MUL:
        multiply_codes((x, y, z), n)
    elif opcode == DIV:
        divide_codes((x, y, z), n)
    elif opcode == MAX:
        maximum_codes((x, y, z), n)
    else:
        minimum_codes((x, y, z), n)


@kernel
def fused_lanes(opcode, x, y, pitch, z, n):
    """:func:`fused_binary` with one code y per stick, ``pitch`` bytes apart."""
    if opcode == ADD:
        add_lanes((x, y, pitch, z), n)
    elif opcode == SUB:
        subtract_lanes((x, y, pitch, z), n)
    elif opcode == MUL:
        multiply_lanes((x, y, pitch, z), n)
    elif opcode == DIV:
        divide_lanes((x, y, pitch, z), n)
    elif opcode == MAX:
        maximum_lanes((x, y, pitch, z), n)
    else:
        minimum_lanes((x, y, pitch, z), n)


@kernel
def separate(a, b, size):
    """True if ranges of ``size`` from a and from b are equal or do not overlap."""
    return a == b or a + size <= b or b + size <= a


@kernel
def fused_block(opcode, inputs, memory, a, b, c, z, n, b_lane, b_pitch):
    """One block of ``n`` codes at bytes a, b, c → z; False if the result overlaps an operand.

    ``b_lane``: the second operand is one value per stick, sticks ``b_pitch`` bytes apart; -1: not.
    ``memory``: host address of byte 0.
    """
    size = 2 * n
    if not separate(a, z, size) or (inputs > 1 and b_lane < 0 and not separate(b, z, size)):
        return False
    x, y, out = memory + a, memory + b, memory + z
    if inputs == 1:
        fused_unary(opcode, x, out, n)
    elif inputs == 2 and b_lane < 0:
        fused_binary(opcode, x, y, out, n)
    elif inputs == 2:
        first = b + 2 * b_lane
        last = first + (n // 64 - 1) * b_pitch
        if min(first, last) < z + size and max(first, last) >= z:
            return False
        fused_lanes(opcode, x, memory + first, b_pitch, out, n)
    else:
        if not separate(c, z, size):
            return False
        where_codes((x, y, memory + c, out), n)
    return True
