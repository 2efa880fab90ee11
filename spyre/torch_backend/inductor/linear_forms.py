"""Coordinate expressions as sums of pitches: floor and remainder taken apart where they separate.

``floor((64*c0 + c1)/64)`` is c0 when c1 stays below 64, and ``64*floor(c/64) + Mod(c, 64)`` is c.
What remains of floors and remainders stays a term of the sum. Arithmetic is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import sympy

from spyre.torch_backend.inductor.spec_text import plain


class NotLinear(ValueError):
    """An expression is no sum of symbols, floors and remainders; the text says what it has."""


@dataclass(frozen=True, slots=True)
class Term:
    """A symbol, or by ``kind`` the floor or the remainder ("mod") of ``inner`` by ``divisor``."""

    kind: str
    symbol: str = ""
    inner: Form | None = None
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class Form:
    """``constant`` plus the sum of ``terms``, (what, coefficient) pairs without zeros."""

    terms: frozenset[tuple[Term, Fraction]] = frozenset()
    constant: Fraction = Fraction(0)

    def __add__(self, other: Form) -> Form:
        found = dict(self.terms)
        for term, factor in other.terms:
            found[term] = found.get(term, Fraction(0)) + factor
        return form_of(found, self.constant + other.constant)

    def times(self, factor: Fraction | int) -> Form:
        """Every coefficient multiplied."""
        return form_of({t: f * factor for t, f in self.terms}, self.constant * factor)

    def without(self, term: Term) -> Form:
        """The form with that term left out."""
        return form_of({t: f for t, f in self.terms if t != term}, self.constant)


def form_of(terms: Mapping[Term, Fraction], constant: Fraction | int = 0) -> Form:
    """A form; terms of coefficient 0 vanish."""
    return Form(frozenset((t, f) for t, f in terms.items() if f), Fraction(constant))


def floor_of(inner: Form, divisor: int) -> Term:
    """The floor of a quotient; that of another floor is one of the product."""
    if len(inner.terms) == 1 and not inner.constant:
        ((term, factor),) = inner.terms
        if term.kind == "floor" and term.inner is not None and factor == 1:
            return Term("floor", "", term.inner, term.divisor * divisor)
    return Term("floor", "", inner, divisor)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads expressions over symbols that count from 0 to below ``extents``."""

    extents: Mapping[str, int]

    def read(self, expression: Any) -> Form:
        """The form of an expression. NotLinear where it has none."""
        return self._read(plain(expression))

    def _read(self, e: sympy.Expr) -> Form:
        if e.is_Rational:
            return Form(constant=_fraction(e))
        if e.is_Symbol:
            if e.name not in self.extents:
                raise NotLinear(f"{e.name}, no symbol of the iteration")
            if self.extents[e.name] == 1:
                return Form()
            return form_of({Term("symbol", e.name): Fraction(1)})
        if e.is_Add:
            return sum((self._read(a) for a in e.args), Form())
        if e.is_Mul:
            return self._product(e)
        if isinstance(e, sympy.floor):
            return self.floor(self._read(e.args[0]))
        if isinstance(e, sympy.Mod) and e.args[1].is_Rational and e.args[1] > 0:
            return self._remainder(self._read(e.args[0]), _fraction(e.args[1]))
        raise NotLinear(str(e))

    def _product(self, e: sympy.Expr) -> Form:
        number, rest = e.as_coeff_Mul()
        if not number.is_Rational or rest.is_Mul:
            raise NotLinear(str(e))
        return self._read(rest).times(_fraction(number))

    def floor(self, form: Form) -> Form:
        """The greatest integer below."""
        scale = _denominator(form)
        return self._divided(form.times(scale), scale)[0]

    def _remainder(self, form: Form, divisor: Fraction) -> Form:
        scale = lcm(_denominator(form), divisor.denominator)
        return self._divided(form.times(scale), int(divisor * scale))[1].times(Fraction(1, scale))

    def _divided(self, form: Form, divisor: int) -> tuple[Form, Form]:
        """Quotient and remainder of a form of integers."""
        high = {t: Fraction(int(f) // divisor) for t, f in form.terms}
        low = form_of({t: f % divisor for t, f in form.terms}, form.constant % divisor)
        quotient = form_of(high, int(form.constant) // divisor)
        if self.largest(low) < divisor:
            return quotient, low
        unit = gcd(divisor, *(int(f) for _, f in low.terms))
        inner = form_of({t: f / unit for t, f in low.terms}, int(low.constant) // unit)
        rest = Form(constant=low.constant % unit)
        step = divisor // unit
        one, mod = {floor_of(inner, step): Fraction(1)}, Term("mod", "", inner, step)
        return quotient + form_of(one), form_of({mod: Fraction(unit)}) + rest

    def largest(self, form: Form) -> Fraction:
        """An upper bound of what it counts to; its coefficients are not negative."""
        rising = (f * self._largest(t) for t, f in form.terms if f > 0)
        return form.constant + sum(rising, Fraction(0))

    def _largest(self, term: Term) -> int:
        if term.inner is None:
            return self.extents[term.symbol] - 1
        whole = int(self.largest(term.inner))
        return whole // term.divisor if term.kind == "floor" else min(whole, term.divisor - 1)


def collapsed(form: Form) -> Form:
    """The form with every ``k*floor(x/k) + Mod(x, k)`` in it written as x."""
    factors = dict(form.terms)
    for term, factor in form.terms:
        if term.kind != "mod" or term.inner is None:
            continue
        floor = floor_of(term.inner, term.divisor)
        if factors.get(floor) == factor * term.divisor:
            return collapsed(form.without(term).without(floor) + term.inner.times(factor))
    return form


def _fraction(number: sympy.Rational) -> Fraction:
    return Fraction(int(number.p), int(number.q))


def _denominator(form: Form) -> int:
    return lcm(form.constant.denominator, *(f.denominator for _, f in form.terms))
