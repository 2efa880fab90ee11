"""The elementwise kernel: stage 16 sticks of every input, compute, store 16 sticks.

One unit is one block of up to BLOCK_STICKS sticks along the innermost axis. Every block is staged
whole before it is written, so operating in place is safe. Not staged are adjacent float32 sticks,
and operations with a code form on DL16 sticks, which take several blocks at once.
Definitions: operations reference §3; rows: :mod:`spyre.hw.ops.elementwise`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import carray

from spyre.hw import plan_table as tb
from spyre.hw.kernels.blocks import (
    begin,
    follow,
    load_sticks,
    mask,
    store_sticks,
)
from spyre.hw.kernels.dl16_functions import CODE_OPERATIONS
from spyre.hw.kernels.dl16_vectors import emit_elementwise, make_choice
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


def _loops(inputs: int) -> Any:
    """Loops over sticks of DL16 codes of the operations of so many inputs with a code form: by 8
    times the opcode, and bit k if operand k is one value per stick.
    """
    rows = [(OPCODES[name], CODE_OPERATIONS[name], row) for name, row in CODE_FORMS.items()]
    lanes = range(1 << inputs) if inputs > 1 else (0,)
    return make_choice(
        {
            8 * opcode + n: partial(emit_elementwise, n, form)
            for opcode, form, row in rows
            if row.inputs == inputs
            for n in lanes
        }
    )


fused_unary, fused_binary, fused_ternary = map(_loops, (1, 2, 3))
"""Decode, compute and encode in one pass, in registers: the staged kernel has buffers between them.
The results are the same bits, which the tests compare over all codes."""

OPCODE, INPUTS, INNER, BLOCKS, LANES = tb.OPCODE, tb.INPUTS, tb.INNER, tb.BLOCKS, tb.LANES
FLAGS = tb.FLAGS
MASK, BLOCK_STICKS = tb.MASK, tb.BLOCK_STICKS
OPERAND, OPERAND_WORDS = tb.OPERAND, tb.OPERAND_WORDS
LANE, FORMAT, PITCH, INNER_PITCH = tb.LANE, tb.FORMAT, tb.PITCH, tb.INNER_PITCH
RANK, EXTENT, OPERANDS = tb.RANK, tb.EXTENT, tb.OPERANDS
FP32, WHOLE_STICK = tb.FP32, tb.WHOLE_STICK
BUFFER = BLOCK_STICKS * 64


@kernel
def separate(a, z, sticks, runs):
    """True if an operand is the result stick by stick, or overlaps none of its bytes.

    Both are (address, bytes from stick to stick, bytes from run to run), see `place`.
    """
    if a == z:
        return True
    (at_a, pitch_a, step_a), (at_z, pitch_z, step_z) = a, z
    inner, outer = (sticks - 1) * pitch_a, (runs - 1) * step_a
    low, high = at_a + min(inner, 0) + min(outer, 0), at_a + max(inner, 0) + max(outer, 0)
    inner, outer = (sticks - 1) * pitch_z, (runs - 1) * step_z
    z_low, z_high = at_z + min(inner, 0) + min(outer, 0), at_z + max(inner, 0) + max(outer, 0)
    return high + STICK_BYTES <= z_low or z_high + STICK_BYTES <= low


@kernel
def place(table, counters, k, at):
    """Byte of stick ``at`` of operand ``k``, or of its lane; bytes to the next stick, and to that
    of the next run along the innermost outer axis.
    """
    operand = OPERAND + k * OPERAND_WORDS
    pitch, step = table[operand + INNER_PITCH], table[operand + PITCH + max(table[RANK] - 1, 0)]
    first = counters[8 + k] + at * pitch + 2 * max(table[operand + LANE], 0)
    return first, pitch, step


@kernel
def fused_runs(table, counters, memory, at, sticks, runs):
    """``runs`` runs of ``sticks`` sticks from stick ``at`` on; False if the result overlaps an
    operand. ``memory``: host address of byte 0.
    """
    inputs, choice = table[INPUTS], 8 * table[OPCODE]
    a, z = place(table, counters, 0, at), place(table, counters, inputs, at)
    b = place(table, counters, min(inputs, 1), at)
    c = place(table, counters, min(inputs, 2), at)
    if not (separate(a, z, sticks, runs) and separate(b, z, sticks, runs)):
        return False
    if not separate(c, z, sticks, runs):
        return False
    for k in range(inputs):
        choice += (table[OPERAND + k * OPERAND_WORDS + LANE] != WHOLE_STICK) << k
    # runs of one stick are one run
    by, beyond = (2, 1) if sticks == 1 else (1, 2)
    if sticks == 1:
        sticks, runs = runs, 1
    x, y, w, out = memory + a[0], memory + b[0], memory + c[0], memory + z[0]
    if inputs == 1:
        addresses, pitches = (x, out, a[by], z[by]), (a[beyond], z[beyond], 0, 0)
        fused_unary(choice, addresses, pitches, runs, sticks)
    elif inputs == 2:
        fused_binary(
            choice, (x, y, out, a[by], b[by], z[by]),
            (a[beyond], b[beyond], z[beyond], 0, 0, 0), runs, sticks,
        )  # fmt: skip
    else:
        fused_ternary(
            choice, (x, y, w, out, a[by], b[by], c[by], z[by]),
            (a[beyond], b[beyond], c[beyond], z[beyond], 0, 0, 0, 0), runs, sticks,
        )  # fmt: skip
    return True


@kernel
def run_fused(table, counters, memory, block, most):
    """Run up to ``most`` units from ``block`` on without staging; returns how many, 0 if
    impossible.

    Sets the counters to the last of these units. Whole runs continue along the next outer axis.
    """
    blocks, axis = table[BLOCKS], table[RANK] - 1
    units, runs = min(blocks - block, most), 1
    if units == blocks and axis >= 0:
        runs = min(most // blocks, table[EXTENT + axis] - counters[axis])
    at = block * BLOCK_STICKS
    sticks = min(units * BLOCK_STICKS, table[INNER] - at)
    while not fused_runs(table, counters, memory, at, sticks, runs):
        # runs together may overlap where a single one does not
        if runs == 1:
            return 0
        runs = 1
    if runs > 1:
        counters[axis] += runs - 1
        for k in range(table[OPERANDS]):
            step = table[OPERAND + k * OPERAND_WORDS + PITCH + axis]
            counters[8 + k] += (runs - 1) * step
    return units * runs


@kernel
def stage(table, counters, half, word, scratch, at, sticks):
    """Decode ``sticks`` sticks of the inputs from stick ``at`` on to ``scratch``; returns a bit for
    each input that is: all but adjacent float32 that no mask changes.
    """
    lanes, masked, staged = table[LANES], table[MASK] != tb.NO_MASK, 0
    for k in range(table[INPUTS]):
        operand = OPERAND + k * OPERAND_WORDS
        pitch, lane = table[operand + INNER_PITCH], table[operand + LANE]
        code, adjacent = table[operand + FORMAT], lane == WHOLE_STICK and pitch == STICK_BYTES
        if code == FP32 and adjacent and not (masked and k == 0):
            continue
        staged |= 1 << k
        first, buffer = counters[8 + k] + at * pitch, scratch[k * BUFFER : (k + 1) * BUFFER]
        load_sticks(half, word, first, sticks, pitch, lane, code, lanes, buffer)
    return staged


@kernel
def numbers(k, staged, counters, at, half, scratch, n):
    """The ``n`` float32 of input ``k``; of an input that the operation lacks, any."""
    if staged >> k & 1:
        return carray(pointer_f32(scratch.ctypes.data + 4 * k * BUFFER), n)
    return carray(pointer_f32(half.ctypes.data + counters[8 + k] + at * STICK_BYTES), n)


@kernel
def compute_block(table, constants, counters, half, word, scratch, at, sticks):
    """Compute ``sticks`` sticks from stick ``at`` on, at most BUFFER elements."""
    opcode, inputs, lanes, masked = table[OPCODE], table[INPUTS], table[LANES], table[MASK]
    out_word, n = OPERAND + inputs * OPERAND_WORDS, sticks * lanes
    staged = stage(table, counters, half, word, scratch, at, sticks)
    if masked != 0:
        step = table[out_word + OPERAND_WORDS + INNER_PITCH]
        mask(table, counters[8 + inputs + 1] + at * step, step, sticks, lanes, scratch)
    pitch, wide = table[out_word + INNER_PITCH], table[out_word + FORMAT] == FP32
    target = counters[8 + inputs] + at * pitch
    z, in_place = half.ctypes.data + target, wide and pitch == STICK_BYTES
    for k in range(inputs):
        x = numbers(k, staged, counters, at, half, scratch, n)
        in_place = in_place and abs(x.ctypes.data - z) >= 4 * n
    # the result's buffer is behind those of five inputs
    out = carray(pointer_f32(z if in_place else scratch.ctypes.data + 4 * 5 * BUFFER), n)
    a = numbers(0, staged, counters, at, half, scratch, n)
    b = numbers(1, staged, counters, at, half, scratch, n)
    if inputs == 1:
        apply_unary(opcode, wide, a, out, constants)
    elif inputs == 2:
        apply_binary(opcode, a, b, out, constants)
    else:
        c = numbers(2, staged, counters, at, half, scratch, n)
        d = numbers(3, staged, counters, at, half, scratch, n)
        e = numbers(4, staged, counters, at, half, scratch, n)
        apply_many(opcode, a, b, c, d, e, out)
    if not in_place:
        store_sticks(half, word, target, sticks, pitch, table[out_word + FORMAT], out)


@kernel
def elementwise(table, bases, constants, half, word, counters, scratch, first, last):
    """Run units ``first`` .. ``last`` of an elementwise table."""
    inner, blocks, is_fused = table[INNER], table[BLOCKS], table[FLAGS] != 0
    most = BUFFER // (BLOCK_STICKS * table[LANES])
    block, unit = begin(table, bases, counters, first, blocks), first
    while unit < last:
        units = np.int64(0)
        if is_fused:
            units = run_fused(table, counters, half.ctypes.data, block, last - unit)
        if units == 0:  # also where the result overlaps an operand other than stick by stick
            at, units = block * BLOCK_STICKS, min(most, blocks - block, last - unit)
            sticks = min(units * BLOCK_STICKS, inner - at)
            compute_block(table, constants, counters, half, word, scratch, at, sticks)
        unit += units
        block = follow(table, counters, (block + units - 1) % blocks, blocks)


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
        places = x, y, z, STICK_BYTES, STICK_BYTES, STICK_BYTES
        fused_binary(8 * opcode, places, (0, 0, 0, 0, 0, 0), 1, sticks)
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
