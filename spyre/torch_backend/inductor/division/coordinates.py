"""How far device coordinates reach when the symbols in them range from 0 to a last value.

Bounds are computed for many ways to divide at once: last values are arrays, one entry per way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import lcm

import numpy as np
import numpy.typing as npt
import sympy

from spyre.errors import UnsupportedError
from spyre.torch_backend.inductor.division.iteration import MODULO_NAMES

Integers = npt.NDArray[np.int64]
Bounds = tuple[Integers, Integers]
"""The least and the largest value, per way to divide."""


def coordinate_extent(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Integers:
    """Largest value of ``expr`` minus the least, plus 1.

    Each symbol runs from 0 to its entry of ``last``. Exact where no two terms hold the same
    symbol, else an upper bound. UnsupportedError SPY983 for what is neither a sum, a product, a
    floored quotient nor a remainder.
    """
    low, high = _bounds(sympy.sympify(expr), last)
    return high - low + 1


def _bounds(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    if expr.is_Integer:
        value = np.asarray(int(expr), np.int64)
        return value, value
    if expr.is_Symbol:
        high = last[expr]
        return np.zeros_like(high), high
    rule = _RULES.get(type(expr).__name__)
    if rule is None:
        raise _not_understood(expr)
    return rule(expr, last)


def _sum(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    low = high = np.asarray(0, np.int64)
    for term in expr.args:
        term_low, term_high = _bounds(term, last)
        low, high = low + term_low, high + term_high
    return low, high


def _product(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    low = high = np.asarray(1, np.int64)
    for factor in expr.args:
        a, b = _bounds(factor, last)
        corners = (low * a, low * b, high * a, high * b)
        low = np.minimum.reduce(np.broadcast_arrays(*corners))
        high = np.maximum.reduce(np.broadcast_arrays(*corners))
    return low, high


def _floor(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    numerator, denominator = _fraction(expr.args[0])
    return _quotient(_bounds(numerator, last), denominator)


def _floor_division(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    return _quotient(_bounds(expr.args[0], last), _positive(expr.args[1], expr))


def _modulo(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    return _remainder(_bounds(expr.args[0], last), _positive(expr.args[1], expr))


def _modular_indexing(expr: sympy.Expr, last: Mapping[sympy.Symbol, Integers]) -> Bounds:
    """(x // step) mod size, as Inductor writes it."""
    quotient = _quotient(_bounds(expr.args[0], last), _positive(expr.args[1], expr))
    return _remainder(quotient, _positive(expr.args[2], expr))


_RULES: dict[str, Callable[[sympy.Expr, Mapping[sympy.Symbol, Integers]], Bounds]] = {
    "Add": _sum,
    "Mul": _product,
    "floor": _floor,
    "FloorDiv": _floor_division,
    "CleanDiv": _floor_division,
    "ModularIndexing": _modular_indexing,
    **dict.fromkeys(MODULO_NAMES, _modulo),
}


def _quotient(bounds: Bounds, divisor: int) -> Bounds:
    return bounds[0] // divisor, bounds[1] // divisor


def _remainder(bounds: Bounds, size: int) -> Bounds:
    low, high = bounds
    within = low // size == high // size
    return np.where(within, low % size, 0), np.where(within, high % size, size - 1)


@lru_cache(maxsize=4096)
def _fraction(expr: sympy.Expr) -> tuple[sympy.Expr, int]:
    """A sum with rational factors as one of integer factors, and what to divide it by."""
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(expr)]
    common = lcm(*(int(factor.q) for factor, _ in terms))
    return sympy.Add(*(factor * common * rest for factor, rest in terms)), common


def _positive(value: sympy.Expr, whole: sympy.Expr) -> int:
    if not (value.is_Integer and value > 0):
        raise _not_understood(whole)
    return int(value)


def _not_understood(expr: sympy.Expr) -> UnsupportedError:
    return UnsupportedError(
        "SPY983",
        "a coordinate cannot be divided",
        expected="sums, products, floored quotients and remainders of iteration symbols",
        found=str(expr),
    )
