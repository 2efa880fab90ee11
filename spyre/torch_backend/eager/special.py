"""Special functions and NaN in float32, which the vector unit lacks.

It has some functions for 16-bit floats only, in both formats. In float32 they are made of
operations that exist there: a logarithm from a 16-bit one and `exp`, hyperbolic functions from
`sigmoid` and a polynomial near zero, the normal distribution from `exp` and Mills' ratio. The
polynomials were fitted by us, for the smallest relative error. The card's extremes of float32
prefer numbers, torch's prefer NaN; 16-bit floats need nothing, since their one code for infinity
and NaN ranks above all numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import factorial, pi, sqrt
from typing import Any

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
_EXPM1 = (*(1.0, 4.999999922e-1, 1.666659757e-1, 4.166696605e-2), *(8.358195502e-3, 1.388410881e-3))
"""(e^x - 1) / x as a polynomial of x for |x| up to ``_EXPM1_END``."""
_LN_2 = 0.6931471805599453
_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100059e-15)
"""π/2 as a sum of three float32 numbers, in falling order."""
_SIN = tuple((-1) ** k / factorial(2 * k + 1) for k in range(6))
_COS = tuple((-1) ** k / factorial(2 * k) for k in range(6))
"""Series in x², of sin x / x and cos x: exact to 2e-9 up to π/4."""
_ERF_END = 0.5
_ERF = tuple(2 / sqrt(pi) * (-1) ** k / (factorial(k) * (2 * k + 1)) for k in range(8))
"""erf x / x as a series in x², exact to 1e-10 up to ``_ERF_END``."""


def logarithm(builder: Lowering, x: Value, dtype: str) -> Value:
    """ln x."""
    x = builder.convert(x, dtype)
    if dtype != "float32":
        return builder.pointwise("log", x)
    return _float32_log(builder, x)


def _float32_log(builder: Lowering, x: Value) -> Value:
    """y + 2 artanh((x - e^y) / (x + e^y)), y a 16-bit logarithm.

    One factor of 2^±64 leaves 2^-85 to 2^64, of which `exp` is exact enough; the eighth root of
    that is in the range of both 16-bit formats, so y errs by less than 0.04.
    """
    scaled, steps = _brought_near(builder, x)
    root = scaled
    for _ in range(3):
        root = builder.pointwise("sqrt", root)
    y = builder.convert(builder.pointwise("log", builder.convert(root, "float16")), "float32")
    y = builder.pointwise("mul", y, 8.0)
    # near 1 the result is small, and the rounding of e^y would show: there y is 0 and e^y exact
    far = builder.pointwise("greaterthan", builder.pointwise("abs", y), 0.36)
    y = builder.pointwise("mul", y, far)
    e = builder.pointwise("exp", y)
    sum_ = builder.pointwise("add", scaled, e)
    ratio = builder.pointwise("realdiv", builder.pointwise("sub", scaled, e), sum_)
    y = builder.pointwise("add", y, _twice_artanh(builder, ratio, 5))
    y = builder.pointwise("add", y, builder.pointwise("mul", steps, 64 * _LN_2))
    return _log_edges(builder, x, y)


def _brought_near(builder: Lowering, x: Value) -> tuple[Value, Value]:
    """x · 2^(-64 n) within 2^-85 .. 2^64, and n, which is -1, 0 or 1."""
    up = builder.pointwise("lesserthan", x, 2.0**-32)
    down = builder.pointwise("greaterthan", x, 2.0**32)
    grown = builder.pointwise("mul", x, 2.0**64)
    shrunk = builder.pointwise("mul", x, 2.0**-64)
    scaled = builder.pointwise("where3", down, shrunk, builder.pointwise("where3", up, grown, x))
    return scaled, builder.pointwise("sub", down, up)


def _twice_artanh(builder: Lowering, r: Value, terms: int) -> Value:
    """2 artanh r = ln((1 + r) / (1 - r)) by the series 2r (1 + r²/3 + r⁴/5 + …)."""
    z = builder.pointwise("mul", r, r)
    coefficients = [2 / (2 * k + 1) for k in range(terms)]
    return builder.pointwise("mul", r, _polynomial(builder, z, coefficients))


def _polynomial(builder: Lowering, z: Value, coefficients: Sequence[float]) -> Any:
    """Horner's scheme; ``coefficients``: at least two, the constant one first."""
    *lower, highest = coefficients
    total: Any = highest
    for coefficient in reversed(lower):
        total = multiply_add(builder, total, z, coefficient)
    return total


def multiply_add(builder: Lowering, a: Value | float, b: Value | float, c: Value | float) -> Value:
    """a · b + c in float32, rounded once: `layernormnorm` with nothing else to do."""
    return _scaled_product_add(builder, a, b, 1.0, c)


def _scaled_product_add(
    builder: Lowering, a: Value | float, b: Value | float, scale: float, c: Value | float
) -> Value:
    """(a · scale) · b + c in float32; the product with b is not rounded."""
    return builder.pointwise("layernormnorm", a, 0.0, scale, b, c)


def _log_edges(builder: Lowering, x: Value, y: Value) -> Value:
    """-inf at zero, inf at inf, NaN below zero and at NaN."""
    at_zero = builder.pointwise("equal", x, 0.0)
    y = builder.pointwise("where3", at_zero, float("-inf"), y)
    y = builder.pointwise("where3", builder.pointwise("equal", x, float("inf")), float("inf"), y)
    valid = builder.pointwise("greaterequal", x, 0.0)
    return builder.pointwise("where3", valid, y, float("nan"))


def tanh(builder: Lowering, x: Value, dtype: str) -> Value:
    """tanh x; in float32 2σ(2x) - 1, or near zero, where that cancels, a polynomial."""
    x = builder.convert(x, dtype)
    if dtype != "float32":
        return builder.pointwise("tanh", x)
    square = builder.pointwise("mul", x, x)
    small = builder.pointwise("mul", x, _polynomial(builder, square, _TANH))
    s = builder.pointwise("sigmoid", builder.pointwise("add", x, x))
    large = multiply_add(builder, s, 2.0, -1.0)
    near = builder.pointwise("lesserthan", square, _TANH_END**2)
    return builder.pointwise("where3", near, small, large)


def sine(builder: Lowering, x: Value, dtype: str, quarters: int = 0) -> Value:
    """sin(x + quarters · π/2) in float32, by the nearest multiple of π/2 and the remainder of x.

    The remainder is exact to float32 for |x| up to 1e5; its error grows beyond.
    """
    x = builder.convert(x, "float32")
    scaled = multiply_add(builder, x, 2 / pi, 0.5)
    multiple = builder.pointwise("floor", scaled)
    rest, negative = x, builder.pointwise("neg", multiple)
    for part in _HALF_PI:
        rest = multiply_add(builder, negative, part, rest)
    square = builder.pointwise("mul", rest, rest)
    odd_series = builder.pointwise("mul", rest, _polynomial(builder, square, _SIN))
    even_series = _polynomial(builder, square, _COS)
    quarter = builder.pointwise("add", multiple, quarters) if quarters else multiple
    half_turns = builder.pointwise("floor", builder.pointwise("mul", quarter, 0.5))
    is_odd = multiply_add(builder, half_turns, -2.0, quarter)
    turns = builder.pointwise("floor", builder.pointwise("mul", half_turns, 0.5))
    is_negative = multiply_add(builder, turns, -2.0, half_turns)
    value = builder.pointwise("where3", is_odd, even_series, odd_series)
    value = builder.pointwise("where3", is_negative, builder.pointwise("neg", value), value)
    return builder.convert(value, dtype)


def error_function(builder: Lowering, x: Value, dtype: str) -> Value:
    """erf x, in float32: ±(1 - 2 Φ(-√2 |x|)), near zero, where that cancels, a series."""
    x = builder.convert(x, "float32")
    square = builder.pointwise("mul", x, x)
    small = builder.pointwise("mul", x, _polynomial(builder, square, _ERF))
    scaled = builder.pointwise("mul", builder.pointwise("abs", x), sqrt(2))
    ratio, e = normal_tail(builder, within_tail(builder, scaled))
    large = _scaled_product_add(builder, ratio, e, -2.0, 1.0)
    positive = builder.pointwise("greaterthan", x, 0.0)
    large = builder.pointwise("where3", positive, large, builder.pointwise("neg", large))
    near = builder.pointwise("lesserthan", builder.pointwise("abs", x), _ERF_END)
    value = builder.pointwise("where3", near, small, large)
    return builder.convert(
        builder.pointwise("where3", builder.pointwise("equal", x, x), value, x), dtype
    )


def exponential_minus_one(builder: Lowering, x: Value) -> Value:
    """e^x - 1 in float32; near zero, where that cancels, a polynomial."""
    large = builder.pointwise("sub", builder.pointwise("exp", x), 1.0)
    small = builder.pointwise("mul", x, _polynomial(builder, x, _EXPM1))
    near = builder.pointwise("lesserthan", builder.pointwise("abs", x), _EXPM1_END)
    return builder.pointwise("where3", near, small, large)


def normal_tail(builder: Lowering, a: Value) -> tuple[Value, Value]:
    """Two factors in float32 whose product is Φ(-a), for 0 ≤ a ≤ ``_TAIL_END``: Mills' ratio over
    √(2π), and e^(-a²/2).
    """
    scaled = multiply_add(builder, a, _MILLS_SCALE, 1.0)
    t = builder.pointwise("reciprocal", scaled)
    ratio = builder.pointwise("mul", t, _polynomial(builder, t, _MILLS))
    square = builder.pointwise("mul", builder.pointwise("neg", a), a)
    # what rounding took from the square would be half of it times 2^-24 of the result
    rest = multiply_add(builder, a, a, square)
    e = builder.pointwise("exp", builder.pointwise("mul", square, 0.5))
    return ratio, _scaled_product_add(builder, e, rest, -0.5, e)


def within_tail(builder: Lowering, x: Value) -> Value:
    """|x| in float32, at most ``_TAIL_END``."""
    return builder.pointwise("minimum", builder.pointwise("abs", x), _TAIL_END)


def silu(builder: Lowering, x: Value, dtype: str) -> Value:
    """x · σ(x); in float32 NaN at -inf as torch's, where the card's operation has 0."""
    x = builder.convert(x, dtype)
    if dtype != "float32":
        return builder.pointwise("silu", x)
    return builder.pointwise("mul", x, builder.pointwise("sigmoid", x))


def erf_gelu(builder: Lowering, x: Value, dtype: str) -> Value:
    """x · Φ(x), in float32 as max(x, 0) - |x| · Φ(-|x|)."""
    x = builder.convert(x, dtype)
    if dtype != "float32":
        return builder.pointwise("gelufwd", x)
    a = within_tail(builder, x)
    ratio, e = normal_tail(builder, a)
    # infinities and NaN come from here: a product with 0 keeps NaN, and is NaN at -inf as torch's
    positive = builder.pointwise("greaterthan", x, 0.0)
    above = builder.pointwise("mul", x, positive)
    return _scaled_product_add(builder, builder.pointwise("mul", a, ratio), e, -1.0, above)


def tanh_gelu(builder: Lowering, x: Value, dtype: str) -> Value:
    """x · σ(2·√(2/π)·(x + 0.044715·x³)), which is the tanh form."""
    x = builder.convert(x, dtype)
    square = builder.pointwise("mul", x, x)
    cubic = builder.pointwise("mul", square, 2 * _SQRT_2_OVER_PI * _TANH_CUBIC)
    factor = builder.pointwise("add", cubic, 2 * _SQRT_2_OVER_PI)
    return builder.pointwise(
        "mul", x, builder.pointwise("sigmoid", builder.pointwise("mul", x, factor))
    )


def softplus(builder: Lowering, x: Value, dtype: str, beta: float, threshold: float) -> Value:
    """ln(1 + e^(beta x)) / beta; x where beta x exceeds the threshold."""
    x = builder.convert(x, dtype)
    if dtype != "float32":
        bits = {"softplusBeta": float_bits(beta), "softplusThresh": float_bits(threshold)}
        return builder.pointwise("softplus", x, constants=bits)
    scaled = builder.pointwise("mul", x, beta)
    value = builder.pointwise("mul", _log_one_plus_exp(builder, scaled), 1 / beta)
    large = builder.pointwise("greaterthan", scaled, threshold)
    return builder.pointwise("where3", large, x, value)


def _log_one_plus_exp(builder: Lowering, x: Value) -> Value:
    """max(x, 0) + ln(1 + e^-|x|), which does not overflow."""
    decay = builder.pointwise("exp", builder.pointwise("neg", builder.pointwise("abs", x)))
    # ln(1 + d) = 2 artanh(d / (2 + d)): 1 + d would lose a small d
    beyond = builder.pointwise("add", decay, 2.0)
    inside = _twice_artanh(builder, builder.pointwise("realdiv", decay, beyond), 8)
    above = builder.pointwise("maximum", x, 0.0)
    return builder.pointwise("add", above, inside)


def mish(builder: Lowering, x: Value, dtype: str) -> Value:
    """x · tanh(ln(1 + e^x))."""
    x = builder.convert(x, dtype)
    if dtype != "float32":
        return builder.pointwise("mish", x)
    return builder.pointwise("mul", x, tanh(builder, _log_one_plus_exp(builder, x), dtype))


def along(row: Value, dim: int, rank: int) -> Value:
    """A value of one dim as dim ``dim`` of ``rank`` dims."""
    for _ in range(dim):
        row = row.unsqueezed(0)
    for _ in range(rank - dim - 1):
        row = row.unsqueezed(len(row.sizes))
    return row


def with_nan(builder: Lowering, extreme_value: Value, *operands: Value) -> Value:
    """An elementwise extreme, replaced by NaN where an operand in float32 is NaN."""
    for x in operands:
        if x.dtype == "float32":
            extreme_value = builder.pointwise(
                "where3", builder.pointwise("equal", x, x), extreme_value, x
            )
    return extreme_value


def extreme(builder: Lowering, name: str, x: Value, dims: Sequence[int]) -> Value:
    """The reduction max or min over ``dims``, NaN in float32 where one of the elements is."""
    result = builder.reduce(name, x, dims)
    if x.dtype != "float32":
        return result
    numbers = builder.reduce("min", builder.pointwise("equal", x, x), dims)
    return builder.pointwise("where3", numbers, result, float("nan"))


# --- formulas with operators ---------------------------------------------------------------------


def _binary(name: str) -> Callable[[Term, Term | float], Term]:
    return lambda a, b: a.apply(name, a, b)


def _reflected(name: str) -> Callable[[Term, float], Term]:
    return lambda b, a: b.apply(name, a, b)


@dataclass(frozen=True, slots=True)
class Term:
    """A value of a program in a formula, with operators and methods of tensors."""

    builder: Lowering
    value: Value

    def apply(self, name: str, *operands: Term | float) -> Term:
        """An elementwise operation of the card on terms and numbers."""
        values = (o.value if isinstance(o, Term) else o for o in operands)
        return replace(self, value=self.builder.pointwise(name, *values))

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__ = _binary("realdiv")
    __lt__, __gt__ = _binary("lesserthan"), _binary("greaterthan")
    equal, minimum, maximum = _binary("equal"), _binary("minimum"), _binary("maximum")

    def __abs__(self) -> Term:
        return self.apply("abs", self)

    def sigmoid(self) -> Term:
        return self.apply("sigmoid", self)

    def tanh(self) -> Term:
        return replace(self, value=tanh(self.builder, self.value, self.value.dtype))

    def chosen(self, a: Term | float, b: Term | float) -> Term:
        """a where this is true, else b."""
        return self.apply("where3", self, a, b)
