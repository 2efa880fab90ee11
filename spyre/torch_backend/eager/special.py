"""Special functions and NaN in float32, which the vector unit lacks.

It has some functions for 16-bit floats only, in both formats. In float32 they are made of
operations that exist there: a logarithm by Newton's method on `exp`, hyperbolic functions from
`sigmoid`, the error function by a rational approximation with `exp`. The card's extremes of float32
prefer numbers, torch's prefer NaN; 16-bit floats need nothing, since their one code for infinity
and NaN ranks above all numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from spyre.torch_backend.program import Lowering, Value, float_bits

_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""Abramowitz and Stegun 7.1.26: |error| < 1.5e-7."""
_ERF_P = 0.3275911
_SQRT_2_OVER_PI = 0.7978845608028654
_TANH_CUBIC = 0.044715
_LN_2 = 0.6931471805599453


def _is_half(dtype: str) -> bool:
    return dtype != "float32"


def logarithm(low: Lowering, x: Value, dtype: str) -> Value:
    """ln x."""
    x = low.convert(x, dtype)
    if _is_half(dtype):
        return low.pointwise("log", x)
    return _float32_log(low, x)


def _float32_log(low: Lowering, x: Value) -> Value:
    """A 16-bit logarithm, then two steps of y + 2 (x - e^y) / (x + e^y).

    Numbers the 16-bit format cannot hold are brought into its range by factors of 2^±64 before.
    """
    shift, inverse = low.constant(2.0**64, "float32"), low.constant(2.0**-64, "float32")
    scaled = x
    steps = low.constant(0.0, "float32")
    for _ in range(2):
        up = low.pointwise("lesserthan", scaled, low.constant(2.0**-30, "float32"))
        down = low.pointwise("greaterthan", scaled, low.constant(2.0**30, "float32"))
        grown = low.pointwise("where3", up, low.pointwise("mul", scaled, shift), scaled)
        scaled = low.pointwise("where3", down, low.pointwise("mul", scaled, inverse), grown)
        steps = low.pointwise("add", steps, low.pointwise("sub", down, up))
    y = low.convert(low.pointwise("log", low.convert(scaled, "float16")), "float32")
    two = low.constant(2.0, "float32")
    for _ in range(2):
        e = low.pointwise("exp", y)
        difference = low.pointwise("sub", scaled, e)
        ratio = low.pointwise("realdiv", difference, low.pointwise("add", scaled, e))
        y = low.pointwise("add", y, low.pointwise("mul", two, ratio))
    unit = low.constant(64 * _LN_2, "float32")
    y = low.pointwise("add", y, low.pointwise("mul", steps, unit))
    return _log_edges(low, x, y)


def _log_edges(low: Lowering, x: Value, y: Value) -> Value:
    """-inf at zero, inf at inf, NaN below zero and at NaN."""
    zero = low.constant(0.0, "float32")
    at_zero = low.pointwise("equal", x, zero)
    y = low.pointwise("where3", at_zero, low.constant(float("-inf"), "float32"), y)
    inf = low.constant(float("inf"), "float32")
    y = low.pointwise("where3", low.pointwise("equal", x, inf), inf, y)
    valid = low.pointwise("greaterequal", x, zero)
    return low.pointwise("where3", valid, y, low.constant(float("nan"), "float32"))


def tangent(low: Lowering, x: Value, dtype: str) -> Value:
    """tanh x."""
    x = low.convert(x, dtype)
    if _is_half(dtype):
        return low.pointwise("tanh", x)
    two, one = low.constant(2.0, dtype), low.constant(1.0, dtype)
    s = low.pointwise("sigmoid", low.pointwise("mul", x, two))
    return low.pointwise("sub", low.pointwise("mul", s, two), one)


def erf(low: Lowering, x: Value) -> Value:
    """The error function in float32."""
    one = low.constant(1.0, "float32")
    magnitude = low.pointwise("abs", x)
    scaled = low.pointwise("mul", magnitude, low.constant(_ERF_P, "float32"))
    t = low.pointwise("reciprocal", low.pointwise("add", scaled, one))
    total = low.constant(_ERF[4], "float32")
    for coefficient in reversed(_ERF[:4]):
        total = low.pointwise("mul", total, t)
        total = low.pointwise("add", total, low.constant(coefficient, "float32"))
    total = low.pointwise("mul", total, t)
    decay = low.pointwise("exp", low.pointwise("neg", low.pointwise("mul", x, x)))
    value = low.pointwise("sub", one, low.pointwise("mul", total, decay))
    negative = low.pointwise("lesserthan", x, low.constant(0.0, "float32"))
    return low.pointwise("where3", negative, low.pointwise("neg", value), value)


def erf_gelu(low: Lowering, x: Value, dtype: str) -> Value:
    """x · Φ(x)."""
    x = low.convert(x, dtype)
    if _is_half(dtype):
        return low.pointwise("gelufwd", x)
    half = low.constant(0.5, dtype)
    e = erf(low, low.pointwise("mul", x, low.constant(0.7071067811865476, dtype)))
    share = low.pointwise("mul", half, low.pointwise("add", e, low.constant(1.0, dtype)))
    return low.pointwise("mul", x, share)


def tanh_gelu(low: Lowering, x: Value, dtype: str) -> Value:
    """x · σ(2·√(2/π)·(x + 0.044715·x³)), which is the tanh form."""
    x = low.convert(x, dtype)
    square = low.pointwise("mul", x, x)
    cubic = low.pointwise("mul", square, low.constant(2 * _SQRT_2_OVER_PI * _TANH_CUBIC, dtype))
    factor = low.pointwise("add", cubic, low.constant(2 * _SQRT_2_OVER_PI, dtype))
    return low.pointwise("mul", x, low.pointwise("sigmoid", low.pointwise("mul", x, factor)))


def softplus(low: Lowering, x: Value, dtype: str, beta: float, threshold: float) -> Value:
    """ln(1 + e^(beta x)) / beta; x where beta x exceeds the threshold."""
    x = low.convert(x, dtype)
    if _is_half(dtype):
        bits = {"softplusBeta": float_bits(beta), "softplusThresh": float_bits(threshold)}
        return low.pointwise("softplus", x, constants=bits)
    scaled = low.pointwise("mul", x, low.constant(beta, dtype))
    value = low.pointwise("mul", _log_one_plus_exp(low, scaled), low.constant(1 / beta, dtype))
    large = low.pointwise("greaterthan", scaled, low.constant(threshold, dtype))
    return low.pointwise("where3", large, x, value)


def _log_one_plus_exp(low: Lowering, x: Value) -> Value:
    """max(x, 0) + ln(1 + e^-|x|), which does not overflow."""
    decay = low.pointwise("exp", low.pointwise("neg", low.pointwise("abs", x)))
    inside = low.pointwise("add", decay, low.constant(1.0, "float32"))
    above = low.pointwise("maximum", x, low.constant(0.0, "float32"))
    return low.pointwise("add", above, _float32_log(low, inside))


def mish(low: Lowering, x: Value, dtype: str) -> Value:
    """x · tanh(ln(1 + e^x))."""
    x = low.convert(x, dtype)
    if _is_half(dtype):
        return low.pointwise("mish", x)
    return low.pointwise("mul", x, tangent(low, _log_one_plus_exp(low, x), dtype))


def with_nan(low: Lowering, extreme_value: Value, *operands: Value) -> Value:
    """``found``, an elementwise extreme, and NaN where an operand in float32 is."""
    for x in operands:
        if x.dtype == "float32":
            extreme_value = low.pointwise("where3", low.pointwise("equal", x, x), extreme_value, x)
    return extreme_value


def extreme(low: Lowering, name: str, x: Value, dims: Sequence[int]) -> Value:
    """The reduction max or min over ``dims``, NaN in float32 where one of the elements is."""
    result = low.reduce(name, x, dims)
    if x.dtype != "float32":
        return result
    numbers = low.reduce("min", low.pointwise("equal", x, x), dims)
    return low.pointwise("where3", numbers, result, low.constant(float("nan"), x.dtype))
