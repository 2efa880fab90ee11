"""The elementwise kernel: stage 16 sticks of every input, compute, store 16 sticks.

One unit is one block of up to BLOCK_STICKS sticks along the innermost axis. Every block is staged
whole before it is written, so operating in place is safe. Operations on codes, where DL16 sticks
are neighbours, and all on such sticks of float32 are not staged, and take as many blocks at once as
follow each other. Definitions: operations reference §3; adding one is a name in
:mod:`spyre.hw.table.plan` and a branch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numba import carray

from spyre.hw.kernels.blocks import (
    begin,
    fill,
    follow,
    load_sticks,
    mask_lanes,
    mask_sticks,
    store_sticks,
)
from spyre.hw.kernels.dl16_functions import CODE_FUNCTIONS
from spyre.hw.kernels.dl16_vectors import (
    CODE_OPERATIONS,
    emit_elementwise,
    emit_lanes,
    make_choice,
)
from spyre.hw.kernels.intrinsics import (
    maximum_f32,
    maximum_number,
    minimum_f32,
    minimum_number,
    multiply_add,
    pointer_f32,
    pointer_i64,
    pointer_u16,
)
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.kernels.vector_math import (
    absolute,
    exponential,
    gelu,
    half_exponential,
    half_sigmoid,
    half_silu,
    hyperbolic_tangent,
    inverse_root,
    logarithm,
    mish,
    sigmoid,
    silu,
    softplus,
)
from spyre.hw.spec import HOST_BYTES, STICK_BYTES
from spyre.hw.spec_choices import BATCHNORM_OPERANDS, FNMS_FORM, LEAKY_SLOPE, VARIANCE_FLOOR
from spyre.hw.table import (
    BINARY,
    FUSE,
    FUSED_BINARY,
    FUSED_MANY,
    FUSED_UNARY,
    MANY,
    UNARY,
    plan as tb,
)

F = np.float32
SLOPE = F(LEAKY_SLOPE)
SUBTRAHEND_LAST = FNMS_FORM == "c-ab"
SCALE_FIRST = BATCHNORM_OPERANDS == "scale-shift"
(
    COPY, ABS, NEG, EXP, LOG, SQRT, RSQRT, RECIPROCAL, TANH, SIGMOID, FLOOR,
    RELU, GELU, SILU, CLIP, SOFTPLUS, RELU6, MISH, LEAKYRELU,
) = range(len(UNARY))  # fmt: skip
(
    ADD, SUB, MUL, DIV, MAX, MIN, EQ, NE, GE, LE, GT, LT, REVSUB, LAYERNORMSCALE,
) = range(len(BINARY))  # fmt: skip
WHERE, LAYERNORMNORM, FNMS, MULADD = range(len(MANY))
LOWEST_VARIANCE = F(0.0) if VARIANCE_FLOOR else F(-np.inf)


@kernel
def apply_unary(opcode, wide, a, out, constants):
    """out[i] = op(a[i]) for the opcode'th operation of UNARY; ``wide``: the result is float32."""
    n = out.size
    c0, c1 = constants[0], constants[1]
    if opcode == COPY:
        for i in range(n):
            out[i] = a[i]
    elif opcode == ABS:
        for i in range(n):
            out[i] = absolute(a[i])
    elif opcode == NEG:
        for i in range(n):
            out[i] = -a[i]
    elif opcode == EXP and wide:
        for i in range(n):
            out[i] = exponential(a[i])
    elif opcode == EXP:
        for i in range(n):
            out[i] = half_exponential(a[i])
    elif opcode == LOG:
        for i in range(n):
            out[i] = logarithm(a[i])
    elif opcode == SQRT:
        for i in range(n):
            out[i] = np.sqrt(a[i])
    elif opcode == RSQRT:
        for i in range(n):
            out[i] = inverse_root(a[i])
    elif opcode == RECIPROCAL:
        for i in range(n):
            out[i] = F(1.0) / a[i]
    elif opcode == TANH:
        for i in range(n):
            out[i] = hyperbolic_tangent(a[i])
    elif opcode == SIGMOID and wide:
        for i in range(n):
            out[i] = sigmoid(a[i])
    elif opcode == SIGMOID:
        for i in range(n):
            out[i] = half_sigmoid(a[i])
    elif opcode == FLOOR:
        for i in range(n):
            out[i] = np.floor(a[i])
    elif opcode == RELU:
        for i in range(n):
            out[i] = maximum_f32(a[i], F(0.0))
    elif opcode == GELU:
        for i in range(n):
            out[i] = gelu(a[i])
    elif opcode == SILU and wide:
        for i in range(n):
            out[i] = silu(a[i])
    elif opcode == SILU:
        for i in range(n):
            out[i] = half_silu(a[i])
    elif opcode == CLIP:
        for i in range(n):
            out[i] = minimum_number(maximum_number(a[i], c0), c1)
    elif opcode == SOFTPLUS:
        for i in range(n):
            out[i] = softplus(a[i], c0, c1)
    elif opcode == RELU6:
        for i in range(n):
            out[i] = minimum_f32(maximum_f32(a[i], F(0.0)), F(6.0))
    elif opcode == MISH:
        for i in range(n):
            out[i] = mish(a[i])
    elif opcode == LEAKYRELU:
        for i in range(n):
            x = a[i]
            out[i] = x if x > F(0.0) else x * SLOPE


@kernel
def apply_binary(opcode, a, b, out, constants):
    """out[i] = op(a[i], b[i]) for the opcode'th operation of BINARY."""
    n = out.size
    c0 = constants[0]
    if opcode == ADD:
        for i in range(n):
            out[i] = a[i] + b[i]
    elif opcode == SUB:
        for i in range(n):
            out[i] = a[i] - b[i]
    elif opcode == MUL:
        for i in range(n):
            out[i] = a[i] * b[i]
    elif opcode == DIV:
        for i in range(n):
            out[i] = a[i] / b[i]
    elif opcode == MAX:
        for i in range(n):
            out[i] = maximum_number(a[i], b[i])
    elif opcode == MIN:
        for i in range(n):
            out[i] = minimum_number(a[i], b[i])
    elif opcode == EQ:
        for i in range(n):
            out[i] = F(a[i] == b[i])
    elif opcode == NE:
        for i in range(n):
            out[i] = F(a[i] != b[i])
    elif opcode == GE:
        for i in range(n):
            out[i] = F(a[i] >= b[i])
    elif opcode == LE:
        for i in range(n):
            out[i] = F(a[i] <= b[i])
    elif opcode == GT:
        for i in range(n):
            out[i] = F(a[i] > b[i])
    elif opcode == LT:
        for i in range(n):
            out[i] = F(a[i] < b[i])
    elif opcode == REVSUB:
        for i in range(n):
            out[i] = b[i] - a[i]
    elif opcode == LAYERNORMSCALE:
        for i in range(n):
            mean, mean_square = a[i], b[i]
            variance = maximum_f32(multiply_add(-mean, mean, mean_square), LOWEST_VARIANCE)
            out[i] = inverse_root(variance + c0)


@kernel
def apply_many(opcode, a, b, c, d, e, out):
    """out[i] for the opcode'th operation of MANY; layernormnorm takes (x, mean, scale, w, bias),
    muladd (x, scale, shift)."""
    n = out.size
    if opcode == WHERE:
        for i in range(n):
            yes, no = b[i], c[i]
            out[i] = yes if a[i] != F(0.0) else no
    elif opcode == LAYERNORMNORM:
        for i in range(n):
            out[i] = multiply_add((a[i] - b[i]) * c[i], d[i], e[i])
    elif opcode == FNMS:
        for i in range(n):
            out[i] = multiply_add(-a[i], b[i], c[i] if SUBTRAHEND_LAST else -c[i])
    elif opcode == MULADD:
        for i in range(n):
            scale, shift = (b[i], c[i]) if SCALE_FIRST else (c[i], b[i])
            out[i] = multiply_add(a[i], scale, shift)


# --- without staging --------------------------------------------------------------------------


def _loops(names: Sequence[str], opcodes: Sequence[str], emit: Any) -> Any:
    """One loop over DL16 codes per operation of ``names``, chosen by opcode."""
    operations = {**CODE_OPERATIONS, **CODE_FUNCTIONS}
    return make_choice({opcodes.index(n): partial(emit, operations[n]) for n in names})


fused_unary = _loops(FUSED_UNARY, UNARY, emit_elementwise)
fused_binary = _loops(FUSED_BINARY, BINARY, emit_elementwise)
fused_many = _loops(FUSED_MANY, MANY, emit_elementwise)
fused_lanes = _loops(FUSED_BINARY, BINARY, emit_lanes)
"""Decode, compute and encode in one pass, in registers: the staged kernel has buffers between them.
The results are the same bits, which the tests compare over all codes.
``fused_lanes`` takes one second operand per stick: x, y, bytes from y to the next, z."""


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
        fused_many(opcode, (x, y, memory + c, out), (da, db, dc, dz), runs, n)
    return True


OPCODE, INPUTS, INNER, BLOCKS, LANES = tb.OPCODE, tb.INPUTS, tb.INNER, tb.BLOCKS, tb.LANES
FLAGS, SECOND = tb.FLAGS, tb.OPERAND + tb.OPERAND_WORDS
MASK, MASK_LANES, CONSTANT = tb.MASK, tb.MASK_LANES, tb.CONSTANT
OPERAND, OPERAND_WORDS = tb.OPERAND, tb.OPERAND_WORDS
LANE, FORMAT, PITCH, INNER_PITCH = tb.LANE, tb.FORMAT, tb.PITCH, tb.INNER_PITCH
RANK, EXTENT, OPERANDS = tb.RANK, tb.EXTENT, tb.OPERANDS
BLOCK_STICKS, WORDS = tb.BLOCK_STICKS, tb.WORDS
FP32, WHOLE_STICK = tb.FP32, tb.WHOLE_STICK
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
    """Run up to ``most`` units of one run from ``block`` on where they lie; how many.

    0 if the result overlaps an operand: then staged, for which operands are read before it is
    written. Inputs that are one number are in ``scratch`` as often as a piece needs.
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
            if flags == FUSE:
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
