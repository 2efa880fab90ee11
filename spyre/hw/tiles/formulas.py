"""Functions that the engine has no operation for, as formulas over those that it has.

They are computed in float32 and rounded once. Their relative error is below 1e-6, that of sin and
cos grows with the argument; erf's is below 2e-7 of its largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import log, pi

from spyre.hw.tiles.values import DataTile


@dataclass(frozen=True)
class FormulaTerm:
    """A float32 tile, or a number, in a formula. ``apply``: states an operation of the engine."""

    tile: DataTile | float
    apply: Callable[..., DataTile]

    def of(self, name: str, *others: FormulaTerm | float) -> FormulaTerm:
        """An operation on this and others."""
        tiles = [other.tile if isinstance(other, FormulaTerm) else other for other in others]
        return FormulaTerm(self.apply(name, self.tile, *tiles), self.apply)

    def __add__(self, other: FormulaTerm | float) -> FormulaTerm:
        return self.of("add", other)

    def __sub__(self, other: FormulaTerm | float) -> FormulaTerm:
        return self.of("sub", other)

    def __mul__(self, other: FormulaTerm | float) -> FormulaTerm:
        return self.of("mul", other)

    def __neg__(self) -> FormulaTerm:
        return self.of("neg")


def _polynomial(x: FormulaTerm, factors: tuple[float, ...]) -> FormulaTerm:
    """Σ factors[k] · x^k."""
    *lower, highest = factors
    first = x * highest + lower[-1]
    return reduce(lambda total, factor: total * x + factor, reversed(lower[:-1]), first)


_PI = (3.140625, 9.67025756835938e-4, 6.2771141529083252e-7)
"""π as a sum of numbers whose products with small integers are exact in float32."""
_SINE = (1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800)


def _sine(x: FormulaTerm, quarter: float = 0.0) -> FormulaTerm:
    """sin(x + π · quarter): the remainder of whole half turns, its series, and their sign."""
    turns = (x * (1 / pi) + (0.5 + quarter)).of("floor")
    whole = turns - quarter
    rest = reduce(lambda left, part: left - whole * part, _PI, x)
    odd = turns - (turns * 0.5).of("floor") * 2.0
    return rest * _polynomial(rest * rest, _SINE) * (odd * -2.0 + 1.0)


_ERF = (0.0, 0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _erf(x: FormulaTerm) -> FormulaTerm:
    """The approximation 7.1.26 of Abramowitz and Stegun, odd."""
    size = x.of("abs")
    t = (size * 0.3275911 + 1.0).of("reciprocal")
    positive = -(_polynomial(t, _ERF) * (-(x * x)).of("exp")) + 1.0
    return x.of("lesserthan", 0.0).of("where3", -positive, positive)


def _power(x: FormulaTerm, y: FormulaTerm) -> FormulaTerm:
    """|x|^y, negative for negative x and odd y."""
    size = (x.of("abs").of("log") * y).of("exp")
    odd = y - (y * 0.5).of("floor") * 2.0
    sign = x.of("lesserthan", 0.0) * odd * -2.0 + 1.0
    return y.of("equal", 0.0).of("where3", y * 0.0 + 1.0, size * sign)


FORMULAS: Mapping[str, Callable[..., FormulaTerm]] = {
    "exp2": lambda x: (x * log(2)).of("exp"),
    "log2": lambda x: x.of("log") * (1 / log(2)),
    "log1p": lambda x: (x + 1.0).of("log"),
    "ceil": lambda x: -(-x).of("floor"),
    "fma": lambda a, b, c: a * b + c,
    "pow": _power,
    "erf": _erf,
    "sin": _sine,
    "cos": lambda x: _sine(x, 0.5),
}
