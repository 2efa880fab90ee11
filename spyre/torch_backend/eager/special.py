"""Special functions and NaN in float32, which the vector unit lacks.

It has some functions for 16-bit floats only, in both formats. In float32 they are made of
operations that exist there: a logarithm from a 16-bit one and `exp`, hyperbolic functions from
`sigmoid` and a polynomial near zero, the error function by a rational approximation with `exp`.
The card's extremes of float32 prefer numbers, torch's prefer NaN; 16-bit floats need nothing, since
their one code for infinity and NaN ranks above all numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from spyre.torch_backend.program import Lowering, Value, float_bits

_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""Abramowitz and Stegun 7.1.26: |error| < 1.5e-7."""
_ERF_P = 0.3275911
_SQRT_2_OVER_PI = 0.7978845608028654
_TANH_CUBIC = 0.044715
_TANH = (
    *(-3.33332819422e-1, 1.33314422036e-1, -5.37397155531e-2),
    *(2.06390887954e-2, -5.70498872745e-3),
)
"""(tanh x - x) / x³ as a polynomial of x² for |x| < 0.625, which is that of the kernels."""
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
    """y + 2 artanh((x - e^y) / (x + e^y)), y a 16-bit logarithm.

    One factor of 2^±64 leaves 2^-85 to 2^64, of which `exp` is exact enough; the eighth root of
    that lies in the range of both 16-bit formats, so y errs by less than 0.04.
    """
    scaled, steps = _brought_near(low, x)
    root = scaled
    for _ in range(3):
        root = low.pointwise("sqrt", root)
    y = low.convert(low.pointwise("log", low.convert(root, "float16")), "float32")
    y = low.pointwise("mul", y, low.constant(8.0, "float32"))
    # near 1 the result is small, and the rounding of e^y would show: there y is 0 and e^y exact
    far = low.pointwise("greaterthan", low.pointwise("abs", y), low.constant(0.36, "float32"))
    y = low.pointwise("mul", y, far)
    e = low.pointwise("exp", y)
    sum_ = low.pointwise("add", scaled, e)
    ratio = low.pointwise("realdiv", low.pointwise("sub", scaled, e), sum_)
    y = low.pointwise("add", y, _twice_artanh(low, ratio, 5))
    unit = low.constant(64 * _LN_2, "float32")
    y = low.pointwise("add", y, low.pointwise("mul", steps, unit))
    return _log_edges(low, x, y)


def _brought_near(low: Lowering, x: Value) -> tuple[Value, Value]:
    """x · 2^(-64 n) within 2^-85 .. 2^64, and n, which is -1, 0 or 1."""
    up = low.pointwise("lesserthan", x, low.constant(2.0**-32, "float32"))
    down = low.pointwise("greaterthan", x, low.constant(2.0**32, "float32"))
    grown = low.pointwise("mul", x, low.constant(2.0**64, "float32"))
    shrunk = low.pointwise("mul", x, low.constant(2.0**-64, "float32"))
    scaled = low.pointwise("where3", down, shrunk, low.pointwise("where3", up, grown, x))
    return scaled, low.pointwise("sub", down, up)


def _twice_artanh(low: Lowering, r: Value, terms: int) -> Value:
    """2 artanh r = ln((1 + r) / (1 - r)) by the series 2r (1 + r²/3 + r⁴/5 + …)."""
    z = low.pointwise("mul", r, r)
    coefficients = [2 / (2 * k + 1) for k in range(terms)]
    return low.pointwise("mul", r, _polynomial(low, z, coefficients))


def _polynomial(low: Lowering, z: Value, coefficients: Sequence[float]) -> Value:
    """Horner's scheme; ``coefficients``: at least two, the constant one first."""
    *lower, highest = coefficients
    total = low.constant(highest, "float32")
    for coefficient in reversed(lower):
        total = low.pointwise("mul", total, z)
        total = low.pointwise("add", total, low.constant(coefficient, "float32"))
    return total


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
    large = low.pointwise("sub", low.pointwise("mul", s, two), one)
    # near zero the difference cancels
    near = low.pointwise("lesserthan", low.pointwise("abs", x), low.constant(0.625, dtype))
    return low.pointwise("where3", near, _small_tangent(low, x), large)


def _small_tangent(low: Lowering, x: Value) -> Value:
    """tanh x in float32 for |x| < 0.625, which is -0 at -0."""
    z = low.pointwise("mul", x, x)
    series = low.pointwise("mul", z, _polynomial(low, z, _TANH))
    return low.pointwise("add", x, low.pointwise("mul", x, series))


def exponential_minus_one(low: Lowering, x: Value) -> Value:
    """e^x - 1 in float32; near zero, where that cancels, 2t / (1 - t) with t = tanh(x / 2)."""
    one = low.constant(1.0, "float32")
    large = low.pointwise("sub", low.pointwise("exp", x), one)
    t = _small_tangent(low, low.pointwise("mul", x, low.constant(0.5, "float32")))
    small = low.pointwise("realdiv", low.pointwise("add", t, t), low.pointwise("sub", one, t))
    near = low.pointwise("lesserthan", low.pointwise("abs", x), one)
    return low.pointwise("where3", near, small, large)


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
    # ln(1 + d) = 2 artanh(d / (2 + d)): 1 + d would lose a small d
    beyond = low.pointwise("add", decay, low.constant(2.0, "float32"))
    inside = _twice_artanh(low, low.pointwise("realdiv", decay, beyond), 8)
    above = low.pointwise("maximum", x, low.constant(0.0, "float32"))
    return low.pointwise("add", above, inside)


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
