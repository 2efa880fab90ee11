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
from math import inf, nan, sqrt

import msgspec
from msgspec.structs import replace

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
_EXPM1_MIDDLE, _EXPM1_REACH = -0.35, 0.65
_EXPM1 = (
    *(0.1666666567325592, 0.041666802018880844, 0.008333790116012096),
    *(0.001387880533002317, 0.0001934014435391873, 1.8607554011396132e-05),
)
"""(e^x - 1 - x - x²/2) / x³ as a polynomial of x so far around the middle: mostly x is negative."""
_LN_2 = 0.6931471805599453
_ROUNDER = 1.5 * 2.0**23
"""float32 of this size are integers: adding it rounds a number below 2^22."""
_CYCLES = (
    (float.fromhex("0x1.484dd6p+112"), 16689375 * 2.0**-46, -1.0799034e-15),
    (float.fromhex("0x1.abb4b0p+93"), 13482585 * 2.0**-46, -1.7272006e-15),
    (float.fromhex("0x1.5c0e66p+75"), 5805921 * 2.0**-46, -3.984489e-15),
    (float.fromhex("0x1.0f79a0p+59"), -3738431 * 2.0**-46, -6.85021e-15),
    (float.fromhex("0x1.47d0fep+37"), -1133019 * 2.0**-46, 1.4321503e-16),
    (float.fromhex("0x1.04ccbcp+20"), 9668305 * 2.0**-46, -3.2446315e-15),
    (float.fromhex("0x1.921fb6p+0"), -3075916 * 2.0**-46, 5.390303e-15),
)
"""Per row: a float32 number close to a multiple of 2π (in the last row to π/2), and its difference
from that multiple as a sum of two numbers, the first of them a multiple of 2^-46. The rows were
searched for small differences: times the largest count of each row, their sum is at most 0.13, and
that of the second numbers at most 2^-28."""
_HIGH_START = 0.75
"""Sums between this ± 1/4 are rounded to multiples of 2^-24."""
_SIN = (0.1666666716337204, -0.008333359844982624, 0.00019844296912197024, -2.7413498173700646e-06)
"""(r - sin r) / r³ as a polynomial of r² up to 0.95."""
_COS = (-0.5, 0.04166660085320473, -0.0013885521329939365, 2.426301762170624e-05)
"""(cos r - 1) / r² likewise."""
_ERF_END = 0.9
_ERF = (
    *(0.12837916612625122, -0.3761262893676758, 0.11283624172210693, -0.026855560019612312),
    *(0.005191753152757883, -0.0008039752719923854, 7.943100354168564e-05),
)
"""erf x / x - 1 as a polynomial of x² up to ``_ERF_END``."""


def _values(operands: Sequence[Term | float]) -> list[Value | float]:
    return [o.value if isinstance(o, Term) else o for o in operands]


def _binary(name: str) -> Callable[[Term, Term | float], Term]:
    return lambda a, b: a.apply(name, b)


def _reflected(name: str) -> Callable[[Term, float], Term]:
    return lambda b, a: replace(b, value=b.builder.pointwise(name, a, b.value))


def _unary(name: str) -> Callable[[Term], Term]:
    return lambda a: a.apply(name)


class Term(msgspec.Struct, frozen=True):
    """A value of a program in a formula, with operators and methods of tensors."""

    builder: Lowering
    value: Value

    def apply(self, name: str, *others: Term | float) -> Term:
        """An elementwise operation of the card on this term and others."""
        return replace(self, value=self.builder.pointwise(name, self.value, *_values(others)))

    def convert(self, dtype: str) -> Term:
        return replace(self, value=self.builder.convert(self.value, dtype))

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__ = _binary("realdiv")
    __lt__, __gt__, __ge__ = _binary("lesserthan"), _binary("greaterthan"), _binary("greaterequal")
    equal, minimum, maximum = _binary("equal"), _binary("minimum"), _binary("maximum")

    __abs__, __neg__, exp, floor = _unary("abs"), _unary("neg"), _unary("exp"), _unary("floor")
    sigmoid, sqrt, rsqrt = _unary("sigmoid"), _unary("sqrt"), _unary("rsqrt")

    def reduce(self, name: str, dims: Sequence[int]) -> Term:
        """A reduction over ``dims``, which have size 1 in the result."""
        return replace(self, value=self.builder.reduce(name, self.value, dims))

    def mean(self, dims: Sequence[int]) -> Term:
        return replace(self, value=self.builder.mean(self.value, dims))

    def reshaped(self, sizes: Sequence[int]) -> Term:
        return replace(self, value=self.value.reshaped(sizes))

    def tanh(self) -> Term:
        return replace(self, value=tanh(self.builder, self.value, self.value.dtype))

    def chosen(self, a: Term | float, b: Term | float) -> Term:
        """a where this is true, else b."""
        return self.apply("where3", a, b)


def terms_of(builder: Lowering, dtype: str, *values: Value) -> list[Term]:
    """Values as terms in ``dtype``."""
    return [Term(builder, builder.convert(value, dtype)) for value in values]


def fused(
    a: Term | float, b: Term | float, c: Term | float, scale: float = 1.0, less: Term | float = 0.0
) -> Term:
    """((a - less) · scale) · b + c in float32; the product with b is not rounded."""
    some = next(term for term in (a, b, c) if isinstance(term, Term))
    value = some.builder.pointwise("layernormnorm", *_values((a, less, scale, b, c)))
    return replace(some, value=value)


def multiply_add(builder: Lowering, a: Value, b: Value, c: Value) -> Value:
    """a · b + c in float32, rounded once: `layernormnorm` with nothing else to do."""
    return builder.pointwise("layernormnorm", a, 0.0, 1.0, b, c)


def logarithm(builder: Lowering, x: Value, dtype: str) -> Value:
    """ln x."""
    (term,) = terms_of(builder, dtype, x)
    return (term.apply("log") if dtype != "float32" else _float32_log(term)).value


def _float32_log(x: Term) -> Term:
    """y + ln(x / e^y), y a 16-bit logarithm.

    One factor of 2^±64 leaves 2^-85 to 2^64, of which `exp` is exact enough; the eighth root of
    that is in the range of both 16-bit formats, so y errs by less than 0.04.
    """
    up, down = x < 2.0**-32, x > 2.0**32
    scaled = down.chosen(x * 2.0**-64, up.chosen(x * 2.0**64, x))
    steps = down - up
    root = scaled.sqrt().sqrt().sqrt()
    y = root.convert("float16").apply("log").convert("float32") * 8.0
    # near 1 the result is small, and the rounding of e^y would show: there y is 0 and e^y exact
    y = y * (abs(y) > 0.55)
    e = y.exp()
    rest = scaled - e
    y = fused(steps, 64 * _LN_2, y + _log_one_plus(rest / e, rest / (scaled + e), 6))
    y = x.equal(0.0).chosen(-inf, y)
    y = x.equal(inf).chosen(inf, y)
    return (x >= 0.0).chosen(y, nan)


_LN_2_HIGH = 0.693145751953125
"""16 bits: products with whole numbers below 2^8 are exact."""
_TO_HALF_BITS = 2.0**12 + 1


def _logarithm_in_two(x: Term) -> tuple[Term, Term]:
    """ln x of positive finite numbers as a sum of two, exact to some 2^-45: a whole number of ln 2,
    and the logarithm of a number near 1, which an exact power of two leaves.
    """
    up, down = x < 2.0**-32, x > 2.0**32
    scaled = down.chosen(x * 2.0**-64, up.chosen(x * 2.0**64, x))
    root = scaled.sqrt().sqrt().sqrt()
    rough = root.convert("float16").apply("log").convert("float32") * 8.0
    count = fused(rough, 1 / _LN_2, _ROUNDER) - _ROUNDER
    # e^y is this power of two but for its last bits
    widened = (inverse := (count * -_LN_2).exp()) * _TO_HALF_BITS
    near_one = scaled * (widened - (widened - inverse))
    above, over = near_one - 1.0, near_one + 1.0
    ratio = above / over
    lost = near_one - (over - 1.0)
    rest = (fused(ratio, over, above, -1.0) - ratio * lost) / over
    square = ratio * ratio
    rest = fused(ratio * square, _polynomial(square, [1 / (2 * k + 3) for k in range(6)]), rest)
    count = fused(down - up, 64.0, count)
    twos = count * _LN_2_HIGH
    high = fused(ratio, 2.0, twos)
    low = fused(ratio, 2.0, twos - high) + fused(rest, 2.0, count * (_LN_2 - _LN_2_HIGH))
    total = high + low
    return total, low - (total - high)


def power_of_floats(builder: Lowering, base: Value, exponent: Value, dtype: str) -> Value:
    """x ** y in float32, with C's values for zeros, infinities and negative x."""
    x, y = terms_of(builder, "float32", base, exponent)
    size, whole, half = abs(x), y.equal(y.floor()), y * 0.5
    high, low = _logarithm_in_two(size)
    high = size.equal(0.0).chosen(-inf, size.equal(inf).chosen(inf, high))
    product = y * high
    scale = product.exp()
    rest = fused(y, low, fused(y, high, -product))
    result = fused(scale, rest, scale)
    result = result.equal(result).chosen(result, scale)  # the rest of an infinite result is NaN
    result = size.equal(1.0).chosen(1.0, result)
    is_odd = whole * (1.0 - half.equal(half.floor()))
    is_below = (x < 0.0).maximum(x.apply("reciprocal") < 0.0)
    result = (is_odd * is_below).chosen(-result, result)
    has_none = (x < 0.0) * (size < inf) * (1.0 - whole)
    result = has_none.chosen(nan, result)
    result = y.equal(0.0).chosen(1.0, x.equal(1.0).chosen(1.0, result))
    return result.convert(dtype).value


def _log_one_plus(x: Term, r: Term, terms: int) -> Term:
    """ln(1 + x) = 2 artanh r = x - r (x - 2r² (1/3 + r²/5 + …)) with r = x / (2 + x)."""
    square = r * r
    series = _polynomial(square, [2 / (2 * k + 3) for k in range(terms)])
    return fused(r, fused(square, series, x, -1.0), x, -1.0)


def _polynomial(z: Term, coefficients: Sequence[float]) -> Term:
    """Horner's scheme; ``coefficients``: at least two, the constant one first."""
    *lower, second, highest = coefficients
    total = fused(highest, z, second)
    for coefficient in reversed(lower):
        total = fused(total, z, coefficient)
    return total


def tanh(builder: Lowering, x: Value, dtype: str) -> Value:
    """tanh x; in float32 ±(1 - 2σ(-2|x|)), or near zero, where that cancels, a polynomial."""
    (term,) = terms_of(builder, dtype, x)
    if dtype != "float32":
        return term.apply("tanh").value
    square = term * term
    small = term * _polynomial(square, _TANH)
    sign = (term < 0.0).chosen(-1.0, 1.0)
    large = fused(fused(term, sign, 0.0, -2.0).sigmoid(), sign, sign, -2.0)
    return (square < _TANH_END**2).chosen(small, large).value


def sine(builder: Lowering, x: Value, dtype: str, quarters: int = 0) -> Value:
    """sin(x + quarters · π/2) in float32, by the nearest multiple of π/2 and the remainder of x."""
    is_wide = x.dtype not in ("float16", "bfloat16", "bool")
    (term,) = terms_of(builder, "float32", x)
    count, rest, low = _remainder(term, _CYCLES if is_wide else _CYCLES[-2:])
    square = fused(rest, rest, fused(low, rest, 0.0, -2.0))
    odd_series = rest - fused(rest * square, _polynomial(square, _SIN), low)
    even_series = fused(square, _polynomial(square, _COS), 1.0)
    multiple = count - (_ROUNDER - quarters)
    # sin(quarter · π/2) where that is odd; -2 to 2, since halves are rounded to even
    quarter = fused(fused(multiple, 0.25, _ROUNDER), 1.0, multiple, -4.0, _ROUNDER)
    even_sign = fused(quarter, quarter, 1.0, -0.5)
    is_odd = even_sign.equal(0.5)
    value = is_odd.chosen(even_series, odd_series) * is_odd.chosen(quarter, even_sign)
    return value.convert(dtype).value


def _remainder(x: Term, cycles: Sequence[tuple[float, float, float]]) -> tuple[Term, Term, Term]:
    """x modulo π/2 as a difference rest - low, exact to 2^-53, and _ROUNDER + the multiple.

    Integer counts of numbers are subtracted from x exactly, and counts of their errors are added:
    in ``high`` multiples of 2^-24, in ``middle`` their rounding errors, multiples of 2^-46,
    both exact as well. All signs are such that the remainder of -0 is -0.
    """
    high: Term | float = _HIGH_START
    middle: Term | None = None
    tiny: Term | float = 0.0
    for number, lack, rest_of_lack in cycles:
        count = fused(x, 1 / number, _ROUNDER)
        x = fused(count, -number, x, less=_ROUNDER)
        before, high = high, fused(count, lack, high, less=_ROUNDER)
        taken = fused(count, lack, before - high, less=_ROUNDER)
        middle = taken if middle is None else middle + taken
        tiny = fused(count, rest_of_lack, tiny, less=_ROUNDER)
    assert middle is not None
    x = fused(high, 1.0, x, -1.0, _HIGH_START)
    total = x - middle
    low = fused(total, 1.0, middle, less=x) + tiny
    rest = total - low
    return count, rest, fused(rest, 1.0, low, less=total)


def error_function(builder: Lowering, x: Value, dtype: str) -> Value:
    """erf x, in float32: ±(1 - 2 Φ(-√2 |x|)), near zero, where that cancels, a polynomial."""
    (term,) = terms_of(builder, "float32", x)
    small = fused(term, _polynomial(term * term, _ERF), term)
    ratio, e = normal_tail(within_tail(abs(term) * sqrt(2)))
    large = fused(ratio, e, 1.0, -2.0)
    large = (term > 0.0).chosen(large, -large)
    value = (abs(term) < _ERF_END).chosen(small, large)
    return term.equal(term).chosen(value, term).convert(dtype).value


def power(x: Term, exponent: int) -> Term:
    """x to an integer power other than 0 in float32, by repeated squaring.

    Numbers are differences ``result - low``, so that rounding errors of products and 1/x are kept.
    """
    base, base_low = x, None
    if exponent < 0:
        base = x.apply("reciprocal")
        base_low = fused(base, fused(x, base, 1.0, -1.0), 0.0, -1.0)
    result, low = base, base_low
    for bit in f"{abs(exponent):b}"[1:]:
        result, low = _product(result, low, result, low)
        if bit == "1":
            result, low = _product(result, low, base, base_low)
    exact = result if low is None else result - low
    # the low part of an infinite result is NaN
    return exact.equal(exact).chosen(exact, result)


def _product(a: Term, a_low: Term | None, b: Term, b_low: Term | None) -> tuple[Term, Term]:
    """(a - a_low) · (b - b_low) as such a difference; None is 0."""
    product = a * b
    low = fused(a, b, product, -1.0)
    if a is b:
        return product, low if a_low is None else fused(a, a_low, low, 2.0)
    for factor, other_low in ((a, b_low), (b, a_low)):
        low = low if other_low is None else fused(factor, other_low, low)
    return product, low


def exponential_minus_one(x: Term) -> Term:
    """e^x - 1 in float32; near zero, where that cancels, a polynomial."""
    large = x.exp() - 1.0
    small = fused(x, fused(x * x, _polynomial(x, _EXPM1), x * 0.5), x)
    return (abs(x - _EXPM1_MIDDLE) < _EXPM1_REACH).chosen(small, large)


def normal_tail(a: Term) -> tuple[Term, Term]:
    """Two factors in float32 whose product is Φ(-a), for 0 ≤ a ≤ ``_TAIL_END``: Mills' ratio over
    √(2π), and e^(-a²/2).
    """
    t = fused(a, _MILLS_SCALE, 1.0).apply("reciprocal")
    ratio = t * _polynomial(t, _MILLS)
    square = -a * a
    # without the rounding error of the square, the relative error would be square/2 · 2^-24
    rest = fused(a, a, square)
    e = (square * 0.5).exp()
    return ratio, fused(e, rest, e, -0.5)


def within_tail(x: Term) -> Term:
    """|x| in float32, at most ``_TAIL_END``."""
    return abs(x).minimum(_TAIL_END)


def silu(builder: Lowering, x: Value, dtype: str) -> Value:
    """x · σ(x); in float32 NaN at -inf as torch's, where the card's operation has 0."""
    (term,) = terms_of(builder, dtype, x)
    return (term.apply("silu") if dtype != "float32" else term * term.sigmoid()).value


def erf_gelu(builder: Lowering, x: Value, dtype: str) -> Value:
    """x · Φ(x), in float32 as max(x, 0) - |x| · Φ(-|x|)."""
    (term,) = terms_of(builder, dtype, x)
    if dtype != "float32":
        return term.apply("gelufwd").value
    a = within_tail(term)
    ratio, e = normal_tail(a)
    # infinities and NaN come from here: a product with 0 keeps NaN, and is NaN at -inf as torch's
    above = term * (term > 0.0)
    return fused(a * ratio, e, above, -1.0).value


def tanh_gelu(builder: Lowering, x: Value, dtype: str) -> Value:
    """x · σ(2·√(2/π)·(x + 0.044715·x³)), which is the tanh form."""
    (term,) = terms_of(builder, dtype, x)
    factor = term * term * (2 * _SQRT_2_OVER_PI * _TANH_CUBIC) + 2 * _SQRT_2_OVER_PI
    return (term * (term * factor).sigmoid()).value


def softplus(builder: Lowering, x: Value, dtype: str, beta: float, threshold: float) -> Value:
    """ln(1 + e^(beta x)) / beta; x where beta x exceeds the threshold."""
    x = builder.convert(x, dtype)
    if dtype != "float32":
        bits = {"softplusBeta": float_bits(beta), "softplusThresh": float_bits(threshold)}
        return builder.pointwise("softplus", x, constants=bits)
    term = Term(builder, x)
    scaled = term * beta
    inverse = 1 / beta if beta else inf
    return (scaled > threshold).chosen(term, _log_one_plus_exp(scaled) * inverse).value


def _log_one_plus_exp(x: Term) -> Term:
    """max(x, 0) + ln(1 + e^-|x|), which does not overflow."""
    decay = (-abs(x)).exp()
    # 1 + d would lose a small d
    return x.maximum(0.0) + _log_one_plus(decay, decay / (decay + 2.0), 7)


def mish(builder: Lowering, x: Value, dtype: str) -> Value:
    """x · tanh(ln(1 + e^x))."""
    (term,) = terms_of(builder, dtype, x)
    half = dtype != "float32"
    return (term.apply("mish") if half else term * _log_one_plus_exp(term).tanh()).value


def along(row: Value, dim: int, rank: int) -> Value:
    """A value of one dim as dim ``dim`` of ``rank`` dims."""
    for _ in range(dim):
        row = row.unsqueezed(0)
    for _ in range(rank - dim - 1):
        row = row.unsqueezed(len(row.sizes))
    return row


def with_nan(builder: Lowering, extreme_value: Value, *operands: Value) -> Value:
    """An elementwise extreme, replaced by NaN where an operand in float32 is NaN."""
    for x in (Term(builder, value) for value in operands if value.dtype == "float32"):
        extreme_value = x.equal(x).chosen(Term(builder, extreme_value), x).value
    return extreme_value


def extreme(builder: Lowering, name: str, x: Value, dims: Sequence[int]) -> Value:
    """The reduction max or min over ``dims``, NaN in float32 where one of the elements is."""
    term = Term(builder, x)
    result = term.reduce(name, dims)
    if x.dtype != "float32":
        return result.value
    return term.equal(term).reduce("min", dims).chosen(result, nan).value
