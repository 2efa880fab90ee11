"""Functions of vectors of DL16 codes that stay in registers: decoded, computed, encoded.

Written as :mod:`.vector_math` has them for single numbers, operation by operation, so the bits are
the same. Numbers that no code decodes to, NaN among them, need no care here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from spyre.hw.kernels.dl16_vectors import CodeVectors, Operation
from spyre.hw.kernels.intrinsics import F32
from spyre.hw.spec_choices import GELU_FORM


@dataclass(frozen=True)
class Floats:
    """A vector of float32; operators as numpy has them, numbers are rounded to float32."""

    codes: CodeVectors
    value: Any

    def _of(self, number: Any) -> Any:
        """The vector of ``number``, which may be one."""
        if isinstance(number, Floats):
            return number.value
        lanes = self.codes.codes // 2
        return ir.Constant(self.codes.float, [ir.Constant(F32, float(number))] * lanes)

    def _made(self, name: str, left: Any, right: Any) -> Floats:
        operation = getattr(self.codes.b, name)
        return Floats(self.codes, operation(self._of(left), self._of(right)))

    def __add__(self, other: Any) -> Floats:
        return self._made("fadd", self, other)

    def __sub__(self, other: Any) -> Floats:
        return self._made("fsub", self, other)

    def __mul__(self, other: Any) -> Floats:
        return self._made("fmul", self, other)

    def __rtruediv__(self, other: Any) -> Floats:
        return self._made("fdiv", other, self)

    def __neg__(self) -> Floats:
        return Floats(self.codes, self.codes.b.fneg(self.value))

    def function(self, name: str, *others: Any) -> Floats:
        """LLVM's function of it and others."""
        operands = [self.value, *map(self._of, others)]
        kind = ir.FunctionType(self.codes.float, [self.codes.float] * len(operands))
        full_name = f"llvm.{name}.v{self.codes.codes // 2}f32"
        function = cgutils.get_or_insert_function(self.codes.b.module, kind, full_name)
        return Floats(self.codes, self.codes.b.call(function, operands))

    def times_plus(self, factor: Any, addend: Any) -> Floats:
        """self · factor + addend, rounded once, on every processor."""
        return self.function("fma", factor, addend)

    def chosen(self, sign: str, limit: Any, no: Any, yes: Any = None) -> Floats:
        """``yes`` (default ``limit``) where self compares so with ``limit``, else ``no``."""
        condition = self.codes.b.fcmp_ordered(sign, self.value, self._of(limit))
        yes = self._of(limit if yes is None else yes)
        return Floats(self.codes, self.codes.b.select(condition, yes, self._of(no)))

    def magnitude(self) -> Floats:
        """Without its sign."""
        b = self.codes.b
        return self.with_bits(b.and_(self.bits, self.codes.words(0x7FFFFFFF)))

    @property
    def bits(self) -> Any:
        """As words."""
        return self.codes.b.bitcast(self.value, self.codes.word)

    def with_bits(self, words: Any) -> Floats:
        """The numbers of these bits."""
        return Floats(self.codes, self.codes.b.bitcast(words, self.codes.float))


_ROUNDER = 12582912.0
"""1.5 · 2^23, as in `vector_math`."""


def exponential(x: Floats) -> Floats:
    """`vector_math.half_exponential`."""
    low = x.chosen("<", -87.33654, x)
    clamped = low.chosen(">", 88.72283, low)
    shifted = clamped.times_plus(1.44269504088896341, _ROUNDER)
    n = shifted - _ROUNDER
    r = n.times_plus(-0.693359375, clamped)
    r = n.times_plus(2.12194440e-4, r)
    p = r.times_plus(8.290308433e-3, 4.189796469e-2)
    for coefficient in (1.666763649e-1, 4.999914927e-1, 9.999997071e-1, 1.0):
        p = p.times_plus(r, coefficient)
    b = x.codes.b
    return p.with_bits(b.add(p.bits, b.shl(shifted.bits, x.codes.words(23))))


def sigmoid(x: Floats) -> Floats:
    """`vector_math.half_sigmoid`."""
    return 1.0 / (exponential(-x) + 1.0)


def silu(x: Floats) -> Floats:
    """`vector_math.half_silu`."""
    return x.chosen("<", -87.0, x * sigmoid(x), 0.0)


def gelu_erf(x: Floats) -> Floats:
    """`vector_math.gelu_erf`."""
    magnitude = x.magnitude()
    a = magnitude.chosen(">", 6.5, magnitude)
    p = a.times_plus(-1.757777098e-6, 5.993659103e-5)
    for coefficient in (
        *(-9.163630115e-4, 8.447385717e-3, -5.382450209e-2, -4.586157070e-1),
        *(-1.151180166e0, -1.000003873e0),
    ):
        p = p.times_plus(a, coefficient)
    shifted = p + _ROUNDER
    r = p - (shifted - _ROUNDER)
    q = r.times_plus(9.5701e-3, 5.591786e-2)
    for coefficient in (2.4024745e-1, 6.9312181e-1, 9.9999926e-1):
        q = q.times_plus(r, coefficient)
    b = x.codes.b
    tail = q.with_bits(b.add(q.bits, b.shl(shifted.bits, x.codes.words(23))))
    return (-a).times_plus(tail, x.chosen(">", 0.0, 0.0, x))


def gelu_tanh(x: Floats) -> Floats:
    """`vector_math.gelu_tanh`."""
    inner = (x * 0.044715 * x).times_plus(x, x) * 0.7978845608
    return x.chosen("<", -10.0, x * sigmoid(inner + inner), 0.0)


def hyperbolic_tangent(x: Floats) -> Floats:
    """`vector_math.hyperbolic_tangent`."""
    a = x.magnitude()
    large = -(2.0 / (exponential(a + a) + 1.0)) + 1.0
    z = x * x
    p = z.times_plus(-5.70498872745e-3, 2.06390887954e-2)
    for coefficient in (-5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
        p = p.times_plus(z, coefficient)
    small = (a * z).times_plus(p, a)
    b = x.codes.b
    found = a.chosen("<", 0.625, large, small)
    sign = b.and_(x.bits, x.codes.words(-0x80000000))
    return x.with_bits(b.or_(b.and_(found.bits, x.codes.words(0x7FFFFFFF)), sign))


_SQRT_HALF_BITS = 0x3F3504F3


def logarithm(x: Floats) -> Floats:
    """`vector_math.logarithm`."""
    b, words = x.codes.b, x.codes.words
    exponent = b.ashr(b.sub(x.bits, words(_SQRT_HALF_BITS)), words(23))
    f = x.with_bits(b.sub(x.bits, b.shl(exponent, words(23)))) - 1.0
    e = Floats(x.codes, b.sitofp(exponent, x.codes.float))
    p = f.times_plus(7.0376836292e-2, -1.1514610310e-1)
    for coefficient in (
        *(1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1),
        *(2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    ):
        p = p.times_plus(f, coefficient)
    z = f * f
    y = e.times_plus(-2.12194440e-4, f * z * p)
    y = f + z.times_plus(-0.5, y)
    y = e.times_plus(0.693359375, y)
    infinity = float("inf")
    y = x.chosen("==", infinity, y, x)
    y = x.chosen("==", 0.0, y, -infinity)
    return x.chosen(">=", 0.0, float("nan"), y)


def square_root(x: Floats) -> Floats:
    """√x, rounded to nearest."""
    return x.function("sqrt")


def reciprocal(x: Floats) -> Floats:
    """1/x, rounded to nearest."""
    return 1.0 / x


_FIRST_GUESS = 0x5F0B8A81


def _inverse_root(x: Floats) -> Floats:
    """1/√x of positive numbers, near enough to have the code of `vector_math.inverse_root`: two
    steps of Newton's from a guess by the exponent, with factors fitted by us to all codes.
    """
    b, words = x.codes.b, x.codes.words
    y = x.with_bits(b.sub(words(_FIRST_GUESS), b.lshr(x.bits, words(1))))
    y = y * (-(x * y)).times_plus(y, 1.89000928)
    h = x * 0.49999696 * y
    return y * (-h).times_plus(y, 1.49999917)


def inverse_root(codes: CodeVectors, x: Any) -> Any:
    """1/√x: 0 of infinity, infinity of 0, with its sign of numbers below."""
    b = codes.b
    found = of_numbers(_inverse_root, codes, x)
    found = b.select(b.icmp_unsigned("==", x, codes.shorts(0x7FFF)), codes.shorts(0), found)
    found = b.select(b.icmp_unsigned("==", x, codes.shorts(0)), codes.shorts(0x7FFF), found)
    return b.select(b.icmp_signed("<", x, codes.shorts(0)), codes.shorts(0xFFFF), found)


def of_numbers(function: Callable[[Floats], Floats], codes: CodeVectors, x: Any) -> Any:
    """Codes of ``function`` of a vector of codes."""
    return codes.encoded(*[function(Floats(codes, v)).value for v in codes.decoded(x)])


CODE_FUNCTIONS: dict[str, Operation] = {
    "rsqrt": inverse_root,
    "exp": partial(of_numbers, exponential),
    "sigmoid": partial(of_numbers, sigmoid),
    "silu": partial(of_numbers, silu),
    "gelu": partial(of_numbers, gelu_erf if GELU_FORM == "erf" else gelu_tanh),
    "tanh": partial(of_numbers, hyperbolic_tangent),
    "log": partial(of_numbers, logarithm),
    "sqrt": partial(of_numbers, square_root),
    "reciprocal": partial(of_numbers, reciprocal),
}
"""Operations on vectors of codes, by their names in the plan table."""
