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
def fused_unary(opcode, x, z, dx, dz, runs, n):
    """z[i] = op(x[i]) on ``runs`` runs of ``n`` DL16 codes, dx and dz bytes apart."""
    if opcode == RELU:
        relu_codes((x, z), (dx, dz), runs, n)
    elif opcode == NEG:
        negate_codes((x, z), (dx, dz), runs, n)
    else:
        absolute_codes((x, z), (dx, dz), runs, n)


@kernel
def fused_binary(opcode, operands, pitches, runs, n):
    """z[i] = op(x[i], y[i]); operands x, y, z as :func:`fused_unary`'s."""
    if opcode == ADD:
        add_codes(operands, pitches, runs, n)
    elif opcode == SUB:
        subtract_codes(operands, pitches, runs, n)
    elif opcode == MUL:
        multiply_codes(operands, pitches, runs, n)
    elif opcode == DIV:
        divide_codes(operands, pitches, runs, n)
    elif opcode == MAX:
        maximum_codes(operands, pitches, runs, n)
    else:
        minimum_codes(operands, pitches, runs, n)


@kernel
def fused_lanes(opcode, operands, pitches, runs, n):
    """:func:`fused_binary` with a code y per stick; operands x, y, bytes from y to the next, z."""
    if opcode == ADD:
        add_lanes(operands, pitches, runs, n)
    elif opcode == SUB:
        subtract_lanes(operands, pitches, runs, n)
    elif opcode == MUL:
        multiply_lanes(operands, pitches, runs, n)
    elif opcode == DIV:
        divide_lanes(operands, pitches, runs, n)
    elif opcode == MAX:
        maximum_lanes(operands, pitches, runs, n)
    else:
        minimum_lanes(operands, pitches, runs, n)


@kernel
def separate(a, da, size_a, z, dz, size, runs):
    """True if no run of z overlaps one of a, or only the same run, which then is equal to it.

    Runs of ``size_a`` bytes are ``da`` apart, those of z, ``size`` bytes, ``dz``.
    """
    if a == z and da == dz:
        return True
    low, high = a + min(da * (runs - 1), 0), a + max(da * (runs - 1), 0) + size_a
    z_low, z_high = z + min(dz * (runs - 1), 0), z + max(dz * (runs - 1), 0) + size
    return high <= z_low or z_high <= low


@kernel
def fused_runs(opcode, inputs, memory, a, b, c, z, da, db, dc, dz, runs, n, lane, pitch):
    """``runs`` runs of ``n`` codes at bytes a, b, c → z; False if the result overlaps an operand.

    da to dz: bytes from one run to the next. ``lane``: the second operand is one value per stick,
    sticks ``pitch`` bytes apart; -1: not. ``memory``: host address of byte 0.
    """
    size = 2 * n
    if not separate(a, da, size, z, dz, size, runs):
        return False
    x, y, out = memory + a, memory + b, memory + z
    if inputs == 1:
        fused_unary(opcode, x, out, da, dz, runs, n)
    elif inputs == 2 and lane < 0:
        if not separate(b, db, size, z, dz, size, runs):
            return False
        fused_binary(opcode, (x, y, out), (da, db, dz), runs, n)
    elif inputs == 2:
        span = (n // 64 - 1) * pitch
        first = b + 2 * lane
        if not separate(first + min(span, 0), db, abs(span) + 2, z, dz, size, runs):
            return False
        fused_lanes(opcode, (x, memory + first, pitch, out), (da, db, 0, dz), runs, n)
    else:
        if not separate(b, db, size, z, dz, size, runs):
            return False
        if not separate(c, dc, size, z, dz, size, runs):
            return False
        where_codes((x, y, memory + c, out), (da, db, dc, dz), runs, n)
    return True
