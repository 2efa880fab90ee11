"""Cheap operations on DL16 in one pass: decode, compute, encode, no staging.

For these the staged kernel spends more on its buffers than on arithmetic. They apply to blocks of
neighbouring sticks whose output overlaps no input; everything else is staged. Same arithmetic, same
single rounding, so the results are the same bits.
"""

from __future__ import annotations

import numpy as np

from spyre.hw.jit import kernel
from spyre.hw.kernels.code_loops import (
    add_code,
    add_codes,
    divide_code,
    divide_codes,
    multiply_code,
    multiply_codes,
    subtract_code,
    subtract_codes,
)
from spyre.hw.kernels.intrinsics import key_code, maximum_i16, minimum_i16, order_key
from spyre.hw.kernels.opcodes import BINARY, FUSED_BINARY, FUSED_UNARY, MANY, UNARY

ADD, SUB, MUL, DIV, MAX, MIN = (BINARY.index(name) for name in FUSED_BINARY)
NEG, ABS, RELU = (UNARY.index(name) for name in FUSED_UNARY)
WHERE = MANY.index("where")


@kernel
def fused_unary(opcode, x, z):
    """z[i] = op(x[i]) on DL16 codes: what concerns only the sign needs no decoding."""
    if opcode == RELU:
        for i in range(z.size):
            z[i] = maximum_i16(np.int16(x[i]), np.int16(0))
    elif opcode == NEG:
        for i in range(z.size):
            z[i] = x[i] ^ np.uint16(0x8000)
    else:
        for i in range(z.size):
            z[i] = x[i] & np.uint16(0x7FFF)


@kernel
def fused_binary(opcode, x, y, z):
    """z[i] = op(x[i], y[i]) on DL16 codes; whole sticks."""
    n = z.size
    places = (x.ctypes.data, y.ctypes.data, z.ctypes.data)
    if opcode == ADD:
        add_codes(places, n)
    elif opcode == SUB:
        subtract_codes(places, n)
    elif opcode == MUL:
        multiply_codes(places, n)
    elif opcode == DIV:
        divide_codes(places, n)
    elif opcode == MAX:
        for i in range(n):
            z[i] = key_code(maximum_i16(order_key(x[i]), order_key(y[i])))
    else:
        for i in range(n):
            z[i] = key_code(minimum_i16(order_key(x[i]), order_key(y[i])))


@kernel
def fused_binary_lane(opcode, x, y, z):
    """z[i] = op(x[i], y[0]): the second operand is one DL16 code for the whole stick."""
    n, key = z.size, order_key(y[0])
    places = (x.ctypes.data, y.ctypes.data, z.ctypes.data)
    if opcode == ADD:
        add_code(places, n)
    elif opcode == SUB:
        subtract_code(places, n)
    elif opcode == MUL:
        multiply_code(places, n)
    elif opcode == DIV:
        divide_code(places, n)
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
            at = b + s * b_pitch + b_lane
            stick = slice(s * 64, s * 64 + 64)
            fused_binary_lane(opcode, x[stick], half[at : at + 1], out[stick])
    else:
        if not apart(c, z, n):
            return False
        fused_where(x, half[b : b + n], half[c : c + n], out)
    return True
