"""The arithmetic of every pointwise operation over staged float32 blocks.

One branch per operation, taken once per block; the loops vectorise. Opcodes are the positions in
the lists of :mod:`spyre.hw.kernels.opcodes`. Definitions:
operations reference §3; adding one is a name and a branch.
"""

from __future__ import annotations

import numpy as np

from spyre.hw.jit import kernel
from spyre.hw.kernels.intrinsics import (
    maximum_f32,
    maximum_number,
    minimum_f32,
    minimum_number,
)
from spyre.hw.kernels.vector_math import (
    absolute,
    exponential,
    gelu,
    hyperbolic_tangent,
    inverse_root,
    logarithm,
    mish,
    sigmoid,
    silu,
    softplus,
)
from spyre.hw.readings import BATCHNORM_OPERANDS, FNMS_FORM, LEAKY_SLOPE, VARIANCE_FLOOR

F = np.float32
SLOPE = F(LEAKY_SLOPE)
SUBTRAHEND_LAST = FNMS_FORM == "c-ab"
SCALE_FIRST = BATCHNORM_OPERANDS == "scale-shift"
LOWEST_VARIANCE = F(0.0) if VARIANCE_FLOOR else F(-np.inf)


@kernel
def apply_unary(opcode, a, out, constants):
    """out[i] = op(a[i]) for the opcode'th operation of UNARY."""
    n = out.size
    c0, c1 = constants[0], constants[1]
    if opcode == 0:
        for i in range(n):
            out[i] = a[i]
    elif opcode == 1:
        for i in range(n):
            out[i] = absolute(a[i])
    elif opcode == 2:
        for i in range(n):
            out[i] = -a[i]
    elif opcode == 3:
        for i in range(n):
            out[i] = exponential(a[i])
    elif opcode == 4:
        for i in range(n):
            out[i] = logarithm(a[i])
    elif opcode == 5:
        for i in range(n):
            out[i] = np.sqrt(a[i])
    elif opcode == 6:
        for i in range(n):
            out[i] = inverse_root(a[i])
    elif opcode == 7:
        for i in range(n):
            out[i] = F(1.0) / a[i]
    elif opcode == 8:
        for i in range(n):
            out[i] = hyperbolic_tangent(a[i])
    elif opcode == 9:
        for i in range(n):
            out[i] = sigmoid(a[i])
    elif opcode == 10:
        for i in range(n):
            out[i] = np.floor(a[i])
    elif opcode == 11:
        for i in range(n):
            out[i] = maximum_f32(a[i], F(0.0))
    elif opcode == 12:
        for i in range(n):
            out[i] = gelu(a[i])
    elif opcode == 13:
        for i in range(n):
            out[i] = silu(a[i])
    elif opcode == 14:
        for i in range(n):
            out[i] = minimum_number(maximum_number(a[i], c0), c1)
    elif opcode == 15:
        for i in range(n):
            out[i] = softplus(a[i], c0, c1)
    elif opcode == 16:
        for i in range(n):
            out[i] = minimum_f32(maximum_f32(a[i], F(0.0)), F(6.0))
    elif opcode == 17:
        for i in range(n):
            out[i] = mish(a[i])
    elif opcode == 18:
        for i in range(n):
            x = a[i]
            out[i] = x if x > F(0.0) else x * SLOPE


@kernel
def apply_binary(opcode, a, b, out, constants):
    """out[i] = op(a[i], b[i]) for the opcode'th operation of BINARY."""
    n = out.size
    c0 = constants[0]
    if opcode == 0:
        for i in range(n):
            out[i] = a[i] + b[i]
    elif opcode == 1:
        for i in range(n):
            out[i] = a[i] - b[i]
    elif opcode == 2:
        for i in range(n):
            out[i] = a[i] * b[i]
    elif opcode == 3:
        for i in range(n):
            out[i] = a[i] / b[i]
    elif opcode == 4:
        for i in range(n):
            out[i] = maximum_number(a[i], b[i])
    elif opcode == 5:
        for i in range(n):
            out[i] = minimum_number(a[i], b[i])
    elif opcode == 6:
        for i in range(n):
            out[i] = F(a[i] == b[i])
    elif opcode == 7:
        for i in range(n):
            out[i] = F(a[i] != b[i])
    elif opcode == 8:
        for i in range(n):
            out[i] = F(a[i] >= b[i])
    elif opcode == 9:
        for i in range(n):
            out[i] = F(a[i] <= b[i])
    elif opcode == 10:
        for i in range(n):
            out[i] = F(a[i] > b[i])
    elif opcode == 11:
        for i in range(n):
            out[i] = F(a[i] < b[i])
    elif opcode == 12:
        for i in range(n):
            out[i] = b[i] - a[i]
    elif opcode == 13:
        for i in range(n):
            mean, mean_square = a[i], b[i]
            variance = maximum_f32(mean_square - mean * mean, LOWEST_VARIANCE)
            out[i] = inverse_root(variance + c0)


@kernel
def apply_many(opcode, a, b, c, d, e, out):
    """out[i] for the opcode'th operation of MANY; layernormnorm takes (x, mean, scale, w, bias),
    muladd (x, scale, shift)."""
    n = out.size
    if opcode == 0:
        for i in range(n):
            yes, no = b[i], c[i]
            out[i] = yes if a[i] != F(0.0) else no
    elif opcode == 1:
        for i in range(n):
            out[i] = (a[i] - b[i]) * c[i] * d[i] + e[i]
    elif opcode == 2:
        for i in range(n):
            out[i] = c[i] - a[i] * b[i] if SUBTRAHEND_LAST else -c[i] - a[i] * b[i]
    elif opcode == 3:
        for i in range(n):
            scale, shift = (b[i], c[i]) if SCALE_FIRST else (c[i], b[i])
            out[i] = a[i] * scale + shift
