"""Cheap operations on DL16 in one pass: decode, compute, encode, no staging.

For these the staged kernel spends more on its buffers than on arithmetic. They apply to blocks of
neighbouring sticks whose output overlaps no input (the loops then vectorise); everything else is
staged. Same arithmetic, same single rounding, so the results are the same bits.
"""

from __future__ import annotations

import numpy as np

from spyre.hw.jit import kernel
from spyre.hw.kernels.intrinsics import (
    decode_dl16,
    encode_dl16,
    key_code,
    maximum_f32,
    maximum_i16,
    minimum_i16,
    order_key,
)
from spyre.hw.kernels.opcodes import BINARY, FUSED_BINARY, FUSED_UNARY, MANY, UNARY
from spyre.hw.kernels.vector_math import absolute

F = np.float32

ADD, SUB, MUL, DIV, MAX, MIN = (BINARY.index(name) for name in FUSED_BINARY)
NEG, ABS, RELU = (UNARY.index(name) for name in FUSED_UNARY)
WHERE = MANY.index("where")


@kernel
def fused_unary(opcode, x, z):
    """z[i] = op(x[i]) on DL16 codes."""
    if opcode == RELU:
        for i in range(z.size):
            z[i] = encode_dl16(maximum_f32(decode_dl16(x[i]), F(0.0)))
    elif opcode == NEG:
        for i in range(z.size):
            z[i] = encode_dl16(-decode_dl16(x[i]))
    else:
        for i in range(z.size):
            z[i] = encode_dl16(absolute(decode_dl16(x[i])))


@kernel
def fused_binary(opcode, x, y, z):
    """z[i] = op(x[i], y[i]) on DL16 codes."""
    n = z.size
    if opcode == ADD:
        for i in range(n):
            z[i] = encode_dl16(decode_dl16(x[i]) + decode_dl16(y[i]))
    elif opcode == SUB:
        for i in range(n):
            z[i] = encode_dl16(decode_dl16(x[i]) - decode_dl16(y[i]))
    elif opcode == MUL:
        for i in range(n):
            z[i] = encode_dl16(decode_dl16(x[i]) * decode_dl16(y[i]))
    elif opcode == DIV:
        for i in range(n):
            z[i] = encode_dl16(decode_dl16(x[i]) / decode_dl16(y[i]))
    elif opcode == MAX:
        for i in range(n):
            z[i] = key_code(maximum_i16(order_key(x[i]), order_key(y[i])))
    else:
        for i in range(n):
            z[i] = key_code(minimum_i16(order_key(x[i]), order_key(y[i])))


@kernel
def fused_binary_lane(opcode, x, code, z):
    """z[i] = op(x[i], code): the second operand is one DL16 code for the whole stick."""
    n = z.size
    value, key = decode_dl16(code), order_key(code)
    if opcode == ADD:
        for i in range(n):
            z[i] = encode_dl16(decode_dl16(x[i]) + value)
    elif opcode == SUB:
        for i in range(n):
            z[i] = encode_dl16(decode_dl16(x[i]) - value)
    elif opcode == MUL:
        for i in range(n):
            z[i] = encode_dl16(decode_dl16(x[i]) * value)
    elif opcode == DIV:
        for i in range(n):
            z[i] = encode_dl16(decode_dl16(x[i]) / value)
    elif opcode == MAX:
        for i in range(n):
            z[i] = key_code(maximum_i16(order_key(x[i]), key))
    else:
        for i in range(n):
            z[i] = key_code(minimum_i16(order_key(x[i]), key))


@kernel
def fused_where(c, a, b, z):
    """z[i] = c[i] != 0 ? a[i] : b[i]; the codes pass unchanged."""
    for i in range(z.size):
        yes, no = a[i], b[i]
        z[i] = yes if (c[i] & np.uint16(0x7FFF)) != 0 else no


@kernel
def apart(a, b, size):
    """True if ranges of ``size`` from a and from b do not overlap."""
    return a + size <= b or b + size <= a


@kernel
def fused_block(opcode, inputs, half, a, b, c, z, n, b_lane, b_pitch):
    """One block of ``n`` codes at element offsets a, b, c → z; False if operands overlap.

    ``b_lane``: the second operand is one value per stick, sticks ``b_pitch`` elements apart.
    """
    if not apart(a, z, n) or (inputs > 1 and b_lane < 0 and not apart(b, z, n)):
        return False
    x, out = half[a : a + n], half[z : z + n]
    if inputs == 1:
        fused_unary(opcode, x, out)
    elif inputs == 2 and b_lane < 0:
        fused_binary(opcode, x, half[b : b + n], out)
    elif inputs == 2:
        for s in range(n // 64):
            code = half[b + s * b_pitch + b_lane]
            fused_binary_lane(opcode, x[s * 64 : s * 64 + 64], code, out[s * 64 : s * 64 + 64])
    else:
        if not apart(c, z, n):
            return False
        fused_where(x, half[b : b + n], half[c : c + n], out)
    return True
