"""Special functions and NaN in float32, which the vector unit lacks.

It has some functions for 16-bit floats only, in both formats. In float32 they are made of
operations that exist there: a logarithm from a 16-bit one and `exp`, hyperbolic functions from
`sigmoid` and a polynomial near zero, the normal distribution from `exp` and Mills' ratio. The
polynomials were fitted by us, for the smallest relative error. The card's extremes of float32
prefer numbers, torch's prefer NaN; 16-bit floats need nothing, since their one code for infinity
and NaN ranks above all numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial, pi, sqrt

from spyre.torch_backend.program import Lowering, Value, float_bits

_MILLS = (
    *(1.39621247e-1, 1.39864523e-1, 1.19814188e-1, 1.05579816e-1, -2.32753441e-2),
    *(1.59409189e-1, -2.55915768e-1, 1.44067382e-1, -2.91652501e-2),
)
"""Φ(-a) e^(a²/2) / t as a polynomial of t = 1 / (1 + 0.35 a) for 0 ≤ a ≤ 16; error 4e-8."""
_MILLS_SCALE = 0.35
_TAIL_END = 16.0
"""Φ(-a) is zero in float32 from 14.2 on."""
_SQRT_2_OVER_PI = 0.7978845608028654
_TANH_CUBIC = 0.044715
_TANH_END = 0.625
_TANH = (
    *(1.0, -3.333328194e-1, 1.333144219e-1, -5.373971485e-2),
    *(2.063908657e-2, -5.704986326e-3),
)
"""tanh x / x as a polynomial of x² up to ``_TANH_END``, which is that of the kernels."""
_EXPM1_END = 0.3
_EXPM1 = (
    *(1.0, 4.999999922e-1, 1.666659757e-1, 4.166696605e-2),
    *(8.358195502e-3, 1.388410881e-3),
)
"""(e^x - 1) / x as a polynomial of x for |x| up to ``_EXPM1_END``."""
_LN_2 = 0.6931471805599453
_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100059e-15)
"""π/2 as three numbers of float32, each what the ones before leave."""
_SIN = tuple((-1) ** k / factorial(2 * k + 1) for k in range(6))
_COS = tuple((-1) ** k / factorial(2 * k) for k in range(6))
"""Series in x², of sin x / x and cos x: exact to 2e-9 up to π/4."""
_ERF_END = 0.5
_ERF = tuple(2 / sqrt(pi) * (-1) ** k / (factorial(k) * (2 * k + 1)) for k in range(8))
"""erf x / x as a series in x², exact to 1e-10 up to ``_ERF_END``."""


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
        total = multiply_add(low, total, z, low.constant(coefficient, "float32"))
    return total


def multiply_add(low: Lowering, a: Value, b: Value, c: Value) -> Value:
    """a · b + c in float32, rounded once: `layernormnorm` with nothing else to do."""
    return _scaled_product_add(low, a, b, 1.0, c)


def _scaled_product_add(low: Lowering, a: Value, b: Value, scale: float, c: Value) -> Value:
    """(a · scale) · b + c in float32; the product with b is not rounded."""
    zero, factor = low.constant(0.0, "float32"), low.constant(scale, "float32")
    return low.pointwise("layernormnorm", a, zero, factor, b, c)


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
    """tanh x; in float32 2σ(2x) - 1, or near zero, where that cancels, a polynomial."""
    x = low.convert(x, dtype)
    if _is_half(dtype):
        return low.pointwise("tanh", x)
    square = low.pointwise("mul", x, x)
    small = low.pointwise("mul", x, _polynomial(low, square, _TANH))
    s = low.pointwise("sigmoid", low.pointwise("add", x, x))
    two, minus_one = low.constant(2.0, dtype), low.constant(-1.0, dtype)
    large = multiply_add(low, s, two, minus_one)
    near = low.pointwise("lesserthan", square, low.constant(_TANH_END**2, dtype))
    return low.pointwise("where3", near, small, large)


def sine(low: Lowering, x: Value, dtype: str, quarters: int = 0) -> Value:
    """sin(x + quarters · π/2), in float32: by the nearest multiple of π/2 and what is left of x.

    What is left is exact to float32 for |x| up to 1e5, and less and less so beyond.
    """
    x = low.convert(x, "float32")

    def number(value: float) -> Value:
        return low.constant(value, "float32")

    scaled = multiply_add(low, x, number(2 / pi), number(0.5))
    multiple = low.pointwise("floor", scaled)
    rest, negative = x, low.pointwise("neg", multiple)
    for part in _HALF_PI:
        rest = multiply_add(low, negative, number(part), rest)
    square = low.pointwise("mul", rest, rest)
    odd_series = low.pointwise("mul", rest, _polynomial(low, square, _SIN))
    even_series = _polynomial(low, square, _COS)
    quarter = low.pointwise("add", multiple, number(quarters)) if quarters else multiple
    half_turns = low.pointwise("floor", low.pointwise("mul", quarter, number(0.5)))
    is_odd = multiply_add(low, half_turns, number(-2.0), quarter)
    turns = low.pointwise("floor", low.pointwise("mul", half_turns, number(0.5)))
    is_negative = multiply_add(low, turns, number(-2.0), half_turns)
    value = low.pointwise("where3", is_odd, even_series, odd_series)
    value = low.pointwise("where3", is_negative, low.pointwise("neg", value), value)
    return low.convert(value, dtype)


def error_function(low: Lowering, x: Value, dtype: str) -> Value:
    """erf x, in float32: ±(1 - 2 Φ(-√2 |x|)), near zero, where that cancels, a series."""
    x = low.convert(x, "float32")
    square = low.pointwise("mul", x, x)
    small = low.pointwise("mul", x, _polynomial(low, square, _ERF))
    scaled = low.pointwise("mul", low.pointwise("abs", x), low.constant(sqrt(2), "float32"))
    ratio, e = normal_tail(low, within_tail(low, scaled))
    one = low.constant(1.0, "float32")
    large = _scaled_product_add(low, ratio, e, -2.0, one)
    positive = low.pointwise("greaterthan", x, low.constant(0.0, "float32"))
    large = low.pointwise("where3", positive, large, low.pointwise("neg", large))
    near = low.pointwise("lesserthan", low.pointwise("abs", x), low.constant(_ERF_END, "float32"))
    value = low.pointwise("where3", near, small, large)
    return low.convert(low.pointwise("where3", low.pointwise("equal", x, x), value, x), dtype)


def exponential_minus_one(low: Lowering, x: Value) -> Value:
    """e^x - 1 in float32; near zero, where that cancels, a polynomial."""
    large = low.pointwise("sub", low.pointwise("exp", x), low.constant(1.0, "float32"))
    small = low.pointwise("mul", x, _polynomial(low, x, _EXPM1))
    near = low.pointwise("lesserthan", low.pointwise("abs", x), low.constant(_EXPM1_END, "float32"))
    return low.pointwise("where3", near, small, large)


def normal_tail(low: Lowering, a: Value) -> tuple[Value, Value]:
    """Two factors in float32 whose product is Φ(-a), for 0 ≤ a ≤ ``_TAIL_END``: Mills' ratio over
    √(2π), and e^(-a²/2).
    """
    one, half = low.constant(1.0, "float32"), low.constant(0.5, "float32")
    scaled = multiply_add(low, a, low.constant(_MILLS_SCALE, "float32"), one)
    t = low.pointwise("reciprocal", scaled)
    ratio = low.pointwise("mul", t, _polynomial(low, t, _MILLS))
    square = low.pointwise("mul", low.pointwise("neg", a), a)
    # what rounding took from the square would be half of it times 2^-24 of the result
    rest = multiply_add(low, a, a, square)
    e = low.pointwise("exp", low.pointwise("mul", square, half))
    return ratio, _scaled_product_add(low, e, rest, -0.5, e)


def within_tail(low: Lowering, x: Value) -> Value:
    """|x| in float32, at most ``_TAIL_END``."""
    return low.pointwise("minimum", low.pointwise("abs", x), low.constant(_TAIL_END, "float32"))


def silu(low: Lowering, x: Value, dtype: str) -> Value:
    """x · σ(x); in float32 NaN at -inf as torch's, where the card's operation has 0."""
    x = low.convert(x, dtype)
    if _is_half(dtype):
        return low.pointwise("silu", x)
    return low.pointwise("mul", x, low.pointwise("sigmoid", x))


def erf_gelu(low: Lowering, x: Value, dtype: str) -> Value:
    """x · Φ(x), in float32 as max(x, 0) - |x| · Φ(-|x|)."""
    x = low.convert(x, dtype)
    if _is_half(dtype):
        return low.pointwise("gelufwd", x)
    a = within_tail(low, x)
    ratio, e = normal_tail(low, a)
    # infinities and NaN come from here: a product with 0 keeps NaN, and is NaN at -inf as torch's
    positive = low.pointwise("greaterthan", x, low.constant(0.0, dtype))
    above = low.pointwise("mul", x, positive)
    return _scaled_product_add(low, low.pointwise("mul", a, ratio), e, -1.0, above)


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
