"""The elementwise kernel: stage 16 sticks of every input, compute, store 16 sticks.

One unit is one block of up to BLOCK_STICKS sticks along the innermost axis. Every block is staged
whole before it is written, so operating in place is safe. Not staged are operations with a code
form on adjacent DL16 sticks, and all operations on adjacent float32 sticks; they take all adjacent
blocks at once. Definitions: operations reference §3; rows: :mod:`spyre.hw.ops.elementwise`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import carray

from spyre.hw import plan_table as tb
from spyre.hw.kernels.blocks import (
    begin,
    fill,
    follow,
    load_sticks,
    mask_lanes,
    mask_sticks,
    store_sticks,
)
from spyre.hw.kernels.dl16_functions import CODE_OPERATIONS
from spyre.hw.kernels.dl16_vectors import emit_elementwise, emit_lanes, make_choice
from spyre.hw.kernels.intrinsics import (
    maximum_f32,
    maximum_number,
    minimum_f32,
    minimum_number,
    multiply_add,
    pointer_f32,
    pointer_u16,
)
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.kernels.vector_math import (
    absolute,
    exponential,
    floored_exponential,
    gelu,
    half_exponential,
    half_sigmoid,
    half_silu,
    hyperbolic_tangent,
    inverse_root,
    logarithm,
    mish,
    reciprocal,
    sigmoid,
    silu,
    softplus,
    square_root,
)
from spyre.hw.ops import CODE_FORMS, OPCODE as OP, OPCODES
from spyre.hw.spec import STICK_BYTES
from spyre.hw.spec_choices import BATCHNORM_OPERANDS, FNMS_FORM, LEAKY_SLOPE, VARIANCE_FLOOR

F = np.float32
SLOPE = F(LEAKY_SLOPE)
SUBTRAHEND_LAST = FNMS_FORM == "c-ab"
SCALE_FIRST = BATCHNORM_OPERANDS == "scale-shift"
LOWEST_VARIANCE = F(0.0) if VARIANCE_FLOOR else F(-np.inf)


@kernel
def apply_unary(opcode, wide, a, out, constants):
    """out[i] = op(a[i]) by opcode; ``wide``: the result is float32."""
    n = out.size
    c0, c1 = constants[0], constants[1]
    if opcode == OP.ABS:
        for i in range(n):
            out[i] = absolute(a[i])
    elif opcode == OP.NEG:
        for i in range(n):
            out[i] = -a[i]
    elif opcode == OP.EXP and wide:
        for i in range(n):
            out[i] = exponential(a[i])
    elif opcode == OP.EXP:
        for i in range(n):
            out[i] = half_exponential(a[i])
    elif opcode == OP.LOG:
        for i in range(n):
            out[i] = logarithm(a[i])
    elif opcode == OP.SQRT:
        for i in range(n):
            out[i] = square_root(a[i])
    elif opcode == OP.RSQRT:
        for i in range(n):
            out[i] = inverse_root(a[i])
    elif opcode == OP.RECIPROCAL:
        for i in range(n):
            out[i] = reciprocal(a[i])
    elif opcode == OP.TANH:
        for i in range(n):
            out[i] = hyperbolic_tangent(a[i])
    elif opcode == OP.SIGMOID and wide:
        for i in range(n):
            out[i] = sigmoid(a[i])
    elif opcode == OP.SIGMOID:
        for i in range(n):
            out[i] = half_sigmoid(a[i])
    elif opcode == OP.FLOOR:
        for i in range(n):
            out[i] = np.floor(a[i])
    elif opcode == OP.RELU:
        for i in range(n):
            out[i] = maximum_f32(a[i], F(0.0))
    elif opcode == OP.GELU:
        for i in range(n):
            out[i] = gelu(a[i])
    elif opcode == OP.SILU and wide:
        for i in range(n):
            out[i] = silu(a[i])
    elif opcode == OP.SILU:
        for i in range(n):
            out[i] = half_silu(a[i])
    elif opcode == OP.CLIP:
        for i in range(n):
            out[i] = minimum_number(maximum_number(a[i], c0), c1)
    elif opcode == OP.SOFTPLUS:
        for i in range(n):
            out[i] = softplus(a[i], c0, c1)
    elif opcode == OP.RELU6:
        for i in range(n):
            out[i] = minimum_f32(maximum_f32(a[i], F(0.0)), F(6.0))
    elif opcode == OP.MISH:
        for i in range(n):
            out[i] = mish(a[i])
    elif opcode == OP.LEAKYRELU:
        for i in range(n):
            x = a[i]
            out[i] = x if x > F(0.0) else x * SLOPE
    elif opcode == OP.FLOORED_EXP:
        for i in range(n):
            out[i] = floored_exponential(a[i])
    elif opcode == OP.LOG_BELOW_ZERO:
        for i in range(n):
            out[i] = F(16.15625) if a[i] < F(0.0) else logarithm(a[i])


@kernel
def apply_binary(opcode, a, b, out, constants):
    """out[i] = op(a[i], b[i]) by opcode."""
    n = out.size
    c0 = constants[0]
    if opcode == OP.ADD:
        for i in range(n):
            out[i] = a[i] + b[i]
    elif opcode == OP.SUB:
        for i in range(n):
            out[i] = a[i] - b[i]
    elif opcode == OP.MUL:
        for i in range(n):
            out[i] = a[i] * b[i]
    elif opcode == OP.DIV:
        for i in range(n):
            out[i] = a[i] / b[i]
    elif opcode == OP.MAX:
        for i in range(n):
            out[i] = maximum_number(a[i], b[i])
    elif opcode == OP.MIN:
        for i in range(n):
            out[i] = minimum_number(a[i], b[i])
    elif opcode == OP.EQ:
        for i in range(n):
            out[i] = F(a[i] == b[i])
    elif opcode == OP.NE:
        for i in range(n):
            out[i] = F(a[i] != b[i])
    elif opcode == OP.GE:
        for i in range(n):
            out[i] = F(a[i] >= b[i])
    elif opcode == OP.LE:
        for i in range(n):
            out[i] = F(a[i] <= b[i])
    elif opcode == OP.GT:
        for i in range(n):
            out[i] = F(a[i] > b[i])
    elif opcode == OP.LT:
        for i in range(n):
            out[i] = F(a[i] < b[i])
    elif opcode == OP.REVSUB:
        for i in range(n):
            out[i] = b[i] - a[i]
    elif opcode == OP.LAYERNORMSCALE:
        for i in range(n):
            mean, mean_square = a[i], b[i]
            variance = maximum_f32(multiply_add(-mean, mean, mean_square), LOWEST_VARIANCE)
            out[i] = inverse_root(variance + c0)


@kernel
def apply_many(opcode, a, b, c, d, e, out):
    """out[i] = op(a[i], b[i], c[i], ...) by opcode; layernormnorm takes (x, mean, scale, w, bias),
    muladd (x, scale, shift)."""
    n = out.size
    if opcode == OP.WHERE:
        for i in range(n):
            yes, no = b[i], c[i]
            out[i] = yes if a[i] != F(0.0) else no
    elif opcode == OP.LAYERNORMNORM:
        for i in range(n):
            out[i] = multiply_add((a[i] - b[i]) * c[i], d[i], e[i])
    elif opcode == OP.FNMS:
        for i in range(n):
            out[i] = multiply_add(-a[i], b[i], c[i] if SUBTRAHEND_LAST else -c[i])
    elif opcode == OP.MULADD:
        for i in range(n):
            scale, shift = (b[i], c[i]) if SCALE_FIRST else (c[i], b[i])
            out[i] = multiply_add(a[i], scale, shift)


# --- without staging --------------------------------------------------------------------------


def _loops(inputs: int, emit: Any) -> Any:
    """One loop over DL16 codes per operation of so many inputs with a code form, by opcode."""
    forms = [name for name, row in CODE_FORMS.items() if row.inputs == inputs]
    return make_choice({OPCODES[name]: partial(emit, CODE_OPERATIONS[name]) for name in forms})


fused_unary = _loops(1, emit_elementwise)
fused_binary = _loops(2, emit_elementwise)
fused_ternary = _loops(3, emit_elementwise)
fused_lanes = _loops(2, emit_lanes)
"""Decode, compute and encode in one pass, in registers: the staged kernel has buffers between them.
The results are the same bits, which the tests compare over all codes.
``fused_lanes`` takes one second operand per stick: x, y, bytes from y to the next, z."""


@kernel
def separate(a, da, size_a, z, dz, size, runs):
    """True if each run of z is the same as that of a, or no run of z overlaps one of a.

    Runs of ``size_a`` bytes begin every ``da`` bytes, those of z, ``size`` bytes, every ``dz``.
    """
    if a == z and da == dz:
        return True
    low, high = a + min(da * (runs - 1), 0), a + max(da * (runs - 1), 0) + size_a
    z_low, z_high = z + min(dz * (runs - 1), 0), z + max(dz * (runs - 1), 0) + size
    return high <= z_low or z_high <= low


@kernel
def fused_runs(opcode, inputs, memory, a, b, c, z, da, db, dc, dz, runs, n, lane, pitch):
    """``runs`` runs of ``n`` codes at bytes a, b, c → z; False if the result overlaps an operand.

    da to dz: bytes from one run to the next. ``lane``: lane of the second operand if it is one
    value per stick, with a stick every ``pitch`` bytes, else -1. ``memory``: host address of byte
    0.
    """
    size = 2 * n
    if not separate(a, da, size, z, dz, size, runs):
        return False
    x, y, out = memory + a, memory + b, memory + z
    if inputs == 1:
        fused_unary(opcode, (x, out), (da, dz), runs, n)
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
        fused_ternary(opcode, (x, y, memory + c, out), (da, db, dc, dz), runs, n)
    return True


OPCODE, INPUTS, INNER, BLOCKS, LANES = tb.OPCODE, tb.INPUTS, tb.INNER, tb.BLOCKS, tb.LANES
FLAGS, SECOND = tb.FLAGS, tb.OPERAND + tb.OPERAND_WORDS
MASK, MASK_LANES, BLOCK_STICKS = tb.MASK, tb.MASK_LANES, tb.BLOCK_STICKS
OPERAND, OPERAND_WORDS = tb.OPERAND, tb.OPERAND_WORDS
LANE, FORMAT, PITCH, INNER_PITCH = tb.LANE, tb.FORMAT, tb.PITCH, tb.INNER_PITCH
RANK, EXTENT, OPERANDS = tb.RANK, tb.EXTENT, tb.OPERANDS
FP32, WHOLE_STICK = tb.FP32, tb.WHOLE_STICK
BUFFER = BLOCK_STICKS * 64


@kernel
def run_fused(table, counters, memory, block, most):
    """Run up to ``most`` units from ``block`` on without staging; returns how many, 0 if
    impossible.

    Sets the counters to the last of these units. Whole runs continue along the next outer axis.
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
        # runs together may overlap where a single one does not
        if runs == 1:
            return 0
        runs = 1
    if runs > 1:
        counters[axis] += runs - 1
        for k in range(table[OPERANDS]):
            counters[8 + k] += (runs - 1) * table[step + k * OPERAND_WORDS]
    return units * runs


@kernel
def run_direct(table, constants, counters, word, scratch, block, most):
    """Run up to ``most`` units of one run from ``block`` on without staging; returns how many.

    0 if the result overlaps an operand: they are then staged, which reads operands before it writes
    the result. Inputs that are one number are repeated in ``scratch`` for the length of a piece.
    """
    inputs = table[INPUTS]
    units = min(table[BLOCKS] - block, most)
    at = block * BLOCK_STICKS
    n = min(units * BLOCK_STICKS, table[INNER] - at) * table[LANES]
    z = counters[8 + inputs] + at * STICK_BYTES
    for k in range(inputs):
        operand = OPERAND + k * OPERAND_WORDS
        first, size = counters[8 + k] + at * table[operand + INNER_PITCH], 4 * n
        if table[operand + LANE] != WHOLE_STICK:
            first, size = first + 4 * table[operand + LANE], 4
            fill(scratch[k * BUFFER : k * BUFFER + min(n, BUFFER)], word[first >> 2])
        if first < z + 4 * n and z < first + size:
            return 0
    for start in range(0, n, BUFFER):
        count = min(BUFFER, n - start)
        out = word[(z >> 2) + start : (z >> 2) + start + count]
        a = piece(table, 0, counters, at, start, count, word, scratch)
        if inputs == 1:
            apply_unary(table[OPCODE], True, a, out, constants)
            continue
        b = piece(table, 1, counters, at, start, count, word, scratch)
        if inputs == 2:
            apply_binary(table[OPCODE], a, b, out, constants)
            continue
        c = piece(table, 2, counters, at, start, count, word, scratch)
        d, e = c, c
        if inputs > 3:
            d = piece(table, 3, counters, at, start, count, word, scratch)
            e = piece(table, 4, counters, at, start, count, word, scratch)
        apply_many(table[OPCODE], a, b, c, d, e, out)
    return units


@kernel
def piece(table, k, counters, at, start, count, word, scratch):
    """``count`` numbers of operand ``k`` from ``start`` after stick ``at``, or its one number."""
    operand = OPERAND + k * OPERAND_WORDS
    if table[operand + LANE] != WHOLE_STICK:
        return scratch[k * BUFFER : k * BUFFER + count]
    first = ((counters[8 + k] + at * STICK_BYTES) >> 2) + start
    return word[first : first + count]


@kernel
def elementwise(table, bases, constants, half, word, counters, scratch, first, last):
    """Run units ``first`` .. ``last`` of an elementwise table."""
    inputs, lanes, inner, blocks = table[INPUTS], table[LANES], table[INNER], table[BLOCKS]
    opcode, masked, flags = table[OPCODE], table[MASK], table[FLAGS]
    memory = half.ctypes.data
    out_word = OPERAND + inputs * OPERAND_WORDS
    mask_word = out_word + OPERAND_WORDS
    block, unit = begin(table, bases, counters, first, blocks), first
    while unit < last:
        at = block * BLOCK_STICKS
        if flags != 0:
            # 0 where the result overlaps an operand other than stick by stick: staged then
            if flags == tb.FUSE:
                units = run_fused(table, counters, memory, block, last - unit)
            else:
                units = run_direct(table, constants, counters, word, scratch, block, last - unit)
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
            apply_unary(opcode, table[out_word + FORMAT] == FP32, a, out, constants)
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


run = entry(elementwise)


# --- reductions of collectives ----------------------------------------------------------------

# Two runs of codes at any host address, in memory that the cards' processes share, are combined
# into one: by the functions above, with the same single rounding and the same bits.


@kernel
def _load(address, sticks, code, lanes, buffer):
    half = carray(pointer_u16(address), sticks * STICK_BYTES // 2)
    word = carray(pointer_f32(address), sticks * STICK_BYTES // 4)
    load_sticks(half, word, 0, sticks, STICK_BYTES, -1, code, lanes, buffer)


@kernel
def _store(address, sticks, code, buffer):
    half = carray(pointer_u16(address), sticks * STICK_BYTES // 2)
    word = carray(pointer_f32(address), sticks * STICK_BYTES // 4)
    store_sticks(half, word, 0, sticks, STICK_BYTES, code, buffer)


@kernel
def combine(opcode, code, fused, x, y, z, sticks):
    """z = x op y over ``sticks`` sticks in format ``code``; host addresses, z may be x.

    ``opcode``: of `spyre.hw.ops.OPCODES`. ``fused``: DL16 codes whose operation has a code form.
    """
    if fused:
        fused_binary(opcode, (x, y, z), (0, 0, 0), 1, sticks * 64)
        return
    lanes = 32 if code == FP32 else 64
    constants = np.zeros(2, np.float32)
    left = np.empty(BLOCK_STICKS * lanes, np.float32)
    right, result = np.empty_like(left), np.empty_like(left)
    for first in range(0, sticks, BLOCK_STICKS):
        count = min(BLOCK_STICKS, sticks - first)
        at, n = first * STICK_BYTES, count * lanes
        _load(x + at, count, code, lanes, left)
        _load(y + at, count, code, lanes, right)
        apply_binary(opcode, left[:n], right[:n], result[:n], constants)
        _store(z + at, count, code, result)


@kernel
def add_all(code, sources, z, sticks):
    """z = the sum of all ``sources`` (host addresses), in float32 in their order, rounded once."""
    lanes = 32 if code == FP32 else 64
    total = np.empty(BLOCK_STICKS * lanes, np.float32)
    term = np.empty_like(total)
    for first in range(0, sticks, BLOCK_STICKS):
        count = min(BLOCK_STICKS, sticks - first)
        at, n = first * STICK_BYTES, count * lanes
        _load(sources[0] + at, count, code, lanes, total)
        for k in range(1, sources.size):
            _load(sources[k] + at, count, code, lanes, term)
            for i in range(n):
                total[i] = total[i] + term[i]
        _store(z + at, count, code, total)
