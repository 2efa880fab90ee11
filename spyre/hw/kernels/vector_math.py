"""Transcendental functions as float32 arithmetic: the one text of every formula.

numba compiles them for single numbers, and LLVM vectorises the loops they are inlined into.
`.dl16_functions` runs the same text over LLVM vectors, the interpreter over numpy arrays. They may
therefore use operators, the functions of `.intrinsics` and `select`, but no statement or expression
that branches.

Each is accurate to a few float32 ulp over its range, far below one DL16 ulp (2^-9); the
polynomials were fitted by us. Functions that the card has for float32 too cover the range of
float32; the ``half_`` forms cover 16-bit floats only and cost less. Special values follow IEEE:
exp(-inf)=0, log(0)=-inf, NaN stays NaN.
"""

from __future__ import annotations

import numpy as np

from spyre.hw.kernels.intrinsics import (
    add_i32,
    and_i32,
    bits_float,
    float_bits,
    maximum_f32,
    minimum_f32,
    multiply_add,
    or_i32,
    sar_i32,
    select,
    shl_i32,
    sub_i32,
)
from spyre.hw.kernels.jit import inline
from spyre.hw.spec_choices import GELU_FORM

F = np.float32
I = np.int32  # noqa: E741
_SIGN = I(-0x80000000)
_MAGNITUDE = I(0x7FFFFFFF)
_INFINITY = F(np.inf)
_NAN = F(np.nan)
_ROUNDER = F(12582912.0)  # 1.5 · 2^23: a float32 of this size has no fraction bits left
_BIASED_ROUNDER = F(12582912.0 + 254.0)
_SQRT_HALF_BITS = I(0x3F3504F3)


@inline
def absolute(x):
    """|x|."""
    return bits_float(and_i32(float_bits(x), _MAGNITUDE))


@inline
def copy_sign(x, y):
    """|x| with the sign of y."""
    return bits_float(or_i32(and_i32(float_bits(x), _MAGNITUDE), and_i32(float_bits(y), _SIGN)))


@inline
def keep_nan(x, y):
    """y, or x if x is NaN."""
    return select(x == x, y, x)


@inline
def in_step(x):
    """x. `.dl16_functions` computes all vectors up to here before it goes on with any of them."""
    return x


@inline
def exponential(x):
    """e**x, also where it is subnormal; zero below -104, infinity above 88.7.

    Adding 1.5·2^23 + 254 rounds x/ln 2 to an integer n and leaves n + 254 in the low bits of the
    sum. 2^n is two factors, since n may exceed the exponents of normal numbers.
    """
    # the comparison is false for NaN, which so takes the second operand and stays
    clamped = minimum_f32(F(89.0), maximum_f32(F(-104.0), x))
    shifted = multiply_add(clamped, F(1.44269504088896341), _BIASED_ROUNDER)
    n = shifted - _BIASED_ROUNDER
    # ln 2 in two parts, the first of few bits: n times it is exact (Cody and Waite)
    r = multiply_add(n, F(-0.693359375), clamped)
    r = multiply_add(n, F(2.12194440e-4), r)
    q = F(1.395050669e-3)
    q = multiply_add(q, r, F(8.368900046e-3))
    q = multiply_add(q, r, F(4.166620597e-2))
    q = multiply_add(q, r, F(1.666651815e-1))
    q = multiply_add(q, r, F(0.5))
    p = multiply_add(r * r, q, r) + F(1.0)
    # both halves of n + 254 are biased exponents; the bits above them are shifted out
    exponents = float_bits(shifted)
    half = sar_i32(exponents, I(1))
    first, second = shl_i32(half, I(23)), shl_i32(sub_i32(exponents, half), I(23))
    return p * bits_float(first) * bits_float(second)


@inline
def half_exponential(x):
    """e**x within 2e-7 where it is normal, else the nearest such number, for 16-bit floats.

    Results beyond those round to 0 or infinity in 16 bits. As :func:`exponential`, but n is added
    to the exponent of the polynomial, which has one degree less.
    """
    clamped = minimum_f32(F(88.72283), maximum_f32(F(-87.33654), x))
    shifted = multiply_add(clamped, F(1.44269504088896341), _ROUNDER)
    n = shifted - _ROUNDER
    r = multiply_add(n, F(-0.693359375), clamped)
    r = multiply_add(n, F(2.12194440e-4), r)
    p = F(8.290308433e-3)
    p = multiply_add(p, r, F(4.189796469e-2))
    p = multiply_add(p, r, F(1.666763649e-1))
    p = multiply_add(p, r, F(4.999914927e-1))
    p = multiply_add(p, r, F(9.999997071e-1))
    p = multiply_add(p, r, F(1.0))
    y = bits_float(add_i32(float_bits(p), shl_i32(float_bits(shifted), I(23))))
    # the payload of a NaN would have gone into the exponent
    return keep_nan(x, y)


@inline
def logarithm(x):
    """ln x; -inf at zero, NaN below."""
    # x = 2^exponent · mantissa with the mantissa in √½ .. √2, where the polynomial is good
    bits = float_bits(x)
    exponent = sar_i32(sub_i32(bits, _SQRT_HALF_BITS), I(23))
    mantissa = bits_float(sub_i32(bits, shl_i32(exponent, I(23))))
    f = mantissa - F(1.0)
    e = F(exponent)
    p = F(7.0376836292e-2)
    p = multiply_add(p, f, F(-1.1514610310e-1))
    p = multiply_add(p, f, F(1.1676998740e-1))
    p = multiply_add(p, f, F(-1.2420140846e-1))
    p = multiply_add(p, f, F(1.4249322787e-1))
    p = multiply_add(p, f, F(-1.6668057665e-1))
    p = multiply_add(p, f, F(2.0000714765e-1))
    p = multiply_add(p, f, F(-2.4999993993e-1))
    p = multiply_add(p, f, F(3.3333331174e-1))
    z = f * f
    y = multiply_add(e, F(-2.12194440e-4), f * z * p)
    y = f + multiply_add(F(-0.5), z, y)
    y = multiply_add(e, F(0.693359375), y)
    y = select(x == _INFINITY, x, y)
    y = select(x == F(0.0), -_INFINITY, y)
    return select(x >= F(0.0), y, _NAN)


@inline
def floored_exponential(x):
    """e**max(x, -17): cards are reported not to underflow, see `spyre.hw.numerics.ERRATA`."""
    return half_exponential(maximum_f32(F(-17.0), x))


@inline
def logarithm_one_plus(y):
    """ln(1+y) for y >= 0 without losing small y."""
    # d is y as 1 + y rounded it: ln(u) · y/d undoes the rounding to first order
    u = F(1.0) + y
    d = u - F(1.0)
    corrected = logarithm(u) * (y / select(d != F(0.0), d, F(1.0)))
    corrected = select(d == F(0.0), y, corrected)
    return select(y == _INFINITY, y, corrected)


@inline
def square_root(x):
    """√x, rounded to nearest."""
    return np.sqrt(x)


@inline
def reciprocal(x):
    """1/x, rounded to nearest."""
    return F(1.0) / x


@inline
def inverse_root(x):
    """1/√x; root and quotient are each rounded to nearest, as in IEEE 754."""
    return F(1.0) / np.sqrt(x)


@inline
def sigmoid(x):
    """1 / (1 + e**-x), below zero as e**x / (1 + e**x), which reaches the smallest numbers."""
    e = exponential(-absolute(x))
    return select(x < F(0.0), e, F(1.0)) / (F(1.0) + e)


@inline
def half_sigmoid(x):
    """1 / (1 + e**-x) for 16-bit floats."""
    return F(1.0) / (F(1.0) + half_exponential(-x))


@inline
def hyperbolic_tangent(x):
    """tanh x; an odd polynomial near zero, where the quotient would cancel."""
    a = absolute(x)
    large = in_step(F(1.0) - F(2.0) / (F(1.0) + half_exponential(a + a)))
    z = x * x
    p = F(-5.70498872745e-3)
    p = multiply_add(p, z, F(2.06390887954e-2))
    p = multiply_add(p, z, F(-5.37397155531e-2))
    p = multiply_add(p, z, F(1.33314422036e-1))
    p = multiply_add(p, z, F(-3.33332819422e-1))
    small = multiply_add(a * z, p, a)
    return copy_sign(select(a < F(0.625), small, large), x)


@inline
def gelu_erf(x):
    """x·Φ(x), the erf form, as max(x, 0) - a·Φ(-a) with a = |x|.

    log2 Φ(-a) is smooth: a polynomial of degree 7 on 0 .. 6.5, then a power of two; both fitted by
    us. Relative error below 1e-5 down to x = -6.4, where DL16 ends: beyond, the result is at most
    2.7e-10, which DL16 stores as zero.
    """
    a = minimum_f32(F(6.5), absolute(x))
    p = F(-1.757777098e-6)
    p = multiply_add(p, a, F(5.993659103e-5))
    p = multiply_add(p, a, F(-9.163630115e-4))
    p = multiply_add(p, a, F(8.447385717e-3))
    p = multiply_add(p, a, F(-5.382450209e-2))
    p = multiply_add(p, a, F(-4.586157070e-1))
    p = multiply_add(p, a, F(-1.151180166e0))
    p = in_step(multiply_add(p, a, F(-1.000003873e0)))
    # 2^p: the integer part goes into the exponent, as in `exponential`
    shifted = p + _ROUNDER
    r = p - (shifted - _ROUNDER)
    q = F(9.5701e-3)
    q = multiply_add(q, r, F(5.591786e-2))
    q = multiply_add(q, r, F(2.4024745e-1))
    q = multiply_add(q, r, F(6.9312181e-1))
    q = in_step(multiply_add(q, r, F(9.9999926e-1)))
    tail = bits_float(add_i32(float_bits(q), shl_i32(float_bits(shifted), I(23))))
    return multiply_add(-a, tail, maximum_f32(x, F(0.0)))


@inline
def gelu_tanh(x):
    """x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2; zero at -inf."""
    inner = F(0.7978845608) * multiply_add(F(0.044715) * x * x, x, x)
    return select(x < F(-10.0), F(0.0), x * half_sigmoid(inner + inner))


gelu = gelu_erf if GELU_FORM == "erf" else gelu_tanh


@inline
def silu(x):
    """x·σ(x); zero at -inf."""
    return select(x == -_INFINITY, F(0.0), x * sigmoid(x))


@inline
def half_silu(x):
    """:func:`silu` for 16-bit floats."""
    return select(x < F(-87.0), F(0.0), x * half_sigmoid(x))


@inline
def softplus(x, beta, threshold):
    """ln(1+e^{βx})/β, or x where βx exceeds the threshold."""
    scaled = x * beta
    # times 1/β, which is computed once: β is the same for all elements
    inverse = F(1.0) / beta
    return select(scaled > threshold, x, logarithm_one_plus(half_exponential(scaled)) * inverse)


@inline
def mish(x):
    """x·tanh(ln(1+e^x)) = x·n/(n+2) with n = e^x·(e^x+2); zero at -inf."""
    # beyond 20 the quotient is 1 in float32, and e^x squared would overflow
    e = half_exponential(minimum_f32(F(20.0), x))
    n = e * (e + F(2.0))
    return select(x < F(-87.0), F(0.0), x * (n / (n + F(2.0))))
