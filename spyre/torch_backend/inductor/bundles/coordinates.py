"""Coordinate expressions as sums of pitches, and how one symbol moves through memory by them.

``floor((64*c0 + c1)/64)`` is c0 when c1 stays below 64, and ``64*floor(c/64) + Mod(c, 64)`` is c.
What remains of floors and remainders stays a term of the sum. A symbol that counts the elements of
two device dims, as where dims of a tensor are seen as one, has ``floor(c/128)`` and ``Mod(c, 128)``
in its coordinates: two digits, each with a pitch. Arithmetic is exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, inf, lcm
from typing import Any

import sympy

from spyre.dtypes import STICK_BYTES
from spyre.layout import Factor
from spyre.torch_backend.inductor.bundles.op_spec import plain_expression


class NotAffine(ValueError):
    """An expression is no sum of symbols, floors and remainders; the text says what it has."""


@dataclass(frozen=True, slots=True)
class AffineTerm:
    """A symbol, or by ``kind`` the floor or the remainder ("mod") of ``inner`` by ``divisor``."""

    kind: str
    symbol: str = ""
    inner: AffineForm | None = None
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class AffineForm:
    """``constant`` plus the sum of ``terms``, (what, coefficient) pairs without zeros."""

    terms: frozenset[tuple[AffineTerm, Fraction]] = frozenset()
    constant: Fraction = Fraction(0)

    def __add__(self, other: AffineForm) -> AffineForm:
        terms = dict(self.terms)
        for term, factor in other.terms:
            terms[term] = terms.get(term, Fraction(0)) + factor
        return form_of(terms, self.constant + other.constant)

    def times(self, factor: Fraction | int) -> AffineForm:
        """Every coefficient multiplied."""
        return form_of({t: f * factor for t, f in self.terms}, self.constant * factor)

    def without(self, term: AffineTerm) -> AffineForm:
        """The form with that term left out."""
        return form_of({t: f for t, f in self.terms if t != term}, self.constant)


def form_of(terms: Mapping[AffineTerm, Fraction], constant: Fraction | int = 0) -> AffineForm:
    """A form; terms of coefficient 0 vanish."""
    return AffineForm(frozenset((t, f) for t, f in terms.items() if f), Fraction(constant))


def floor_of(inner: AffineForm, divisor: int) -> AffineTerm:
    """The floor of a quotient; that of another floor is one of the product."""
    if len(inner.terms) == 1 and not inner.constant:
        ((term, factor),) = inner.terms
        if term.kind == "floor" and term.inner is not None and factor == 1:
            return AffineTerm("floor", "", term.inner, term.divisor * divisor)
    return AffineTerm("floor", "", inner, divisor)


@dataclass(frozen=True, slots=True)
class AffineReader:
    """Reads expressions over symbols that count from 0 to below ``extents``."""

    extents: Mapping[str, int]

    def read(self, expression: Any) -> AffineForm:
        """The form of an expression. NotAffine where it has none."""
        return self._read(plain_expression(expression))

    def _read(self, e: sympy.Expr) -> AffineForm:
        if e.is_Rational:
            return AffineForm(constant=_fraction(e))
        if e.is_Symbol:
            if e.name not in self.extents:
                raise NotAffine(f"{e.name}, no symbol of the iteration")
            if self.extents[e.name] == 1:
                return AffineForm()
            return form_of({AffineTerm("symbol", e.name): Fraction(1)})
        if e.is_Add:
            return sum((self._read(a) for a in e.args), AffineForm())
        if e.is_Mul:
            return self._product(e)
        if isinstance(e, sympy.floor):
            return self.floor(self._read(e.args[0]))
        if isinstance(e, sympy.Mod) and e.args[1].is_Rational and e.args[1] > 0:
            return self._remainder(self._read(e.args[0]), _fraction(e.args[1]))
        raise NotAffine(str(e))

    def _product(self, e: sympy.Expr) -> AffineForm:
        number, rest = e.as_coeff_Mul()
        if not number.is_Rational or rest.is_Mul:
            raise NotAffine(str(e))
        return self._read(rest).times(_fraction(number))

    def floor(self, form: AffineForm) -> AffineForm:
        """The greatest integer below."""
        scale = _denominator(form)
        return self._divided(form.times(scale), scale)[0]

    def _remainder(self, form: AffineForm, divisor: Fraction) -> AffineForm:
        scale = lcm(_denominator(form), divisor.denominator)
        return self._divided(form.times(scale), int(divisor * scale))[1].times(Fraction(1, scale))

    def _divided(self, form: AffineForm, divisor: int) -> tuple[AffineForm, AffineForm]:
        """Quotient and remainder of a form of integers."""
        high = {t: Fraction(int(f) // divisor) for t, f in form.terms}
        low = form_of({t: f % divisor for t, f in form.terms}, form.constant % divisor)
        quotient = form_of(high, int(form.constant) // divisor)
        if self.largest(low) < divisor:
            return quotient, low
        unit = gcd(divisor, *(int(f) for _, f in low.terms))
        inner = form_of({t: f / unit for t, f in low.terms}, int(low.constant) // unit)
        rest = AffineForm(constant=low.constant % unit)
        step = divisor // unit
        one, mod = {floor_of(inner, step): Fraction(1)}, AffineTerm("mod", "", inner, step)
        return quotient + form_of(one), form_of({mod: Fraction(unit)}) + rest

    def largest(self, form: AffineForm) -> Fraction:
        """An upper bound of what it counts to; its coefficients are not negative."""
        rising = (f * self._largest(t) for t, f in form.terms if f > 0)
        return form.constant + sum(rising, Fraction(0))

    def _largest(self, term: AffineTerm) -> int:
        if term.inner is None:
            return self.extents[term.symbol] - 1
        whole = int(self.largest(term.inner))
        return whole // term.divisor if term.kind == "floor" else min(whole, term.divisor - 1)


def collapsed(form: AffineForm) -> AffineForm:
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


def _denominator(form: AffineForm) -> int:
    return lcm(form.constant.denominator, *(f.denominator for _, f in form.terms))


@dataclass(frozen=True, slots=True)
class Digit:
    """A digit of a symbol that counts ``unit`` elements: ``pitch_bytes`` from one to the next, or
    from stick to stick where it runs along the lanes.
    """

    unit: int
    pitch_bytes: int
    lane: bool = False


@dataclass(frozen=True, slots=True)
class SymbolDigits:
    """All digits of a symbol, the innermost first. ``lanes``: elements of a stick."""

    steps: tuple[Digit, ...]
    lanes: int

    def factors(self, extent: int) -> tuple[Factor, ...]:
        """Its first ``extent`` elements as factors, the outermost first. NotAffine if the digits
        cut them unevenly.
        """
        units = [step.unit for step in self.steps if step.unit < extent] + [extent]
        pairs = list(itertools.pairwise(units))
        if any(upper % lower for lower, upper in pairs):
            raise NotAffine(f"tiles of {extent} elements in steps of {units[-2]}")
        factors = [
            Factor(upper // lower, step.pitch_bytes, step.lane)
            for step, (lower, upper) in zip(self.steps, pairs, strict=False)
        ]
        return tuple(reversed(factors))

    def stride_bytes(self, elements: int, count: int) -> int:
        """Bytes that ``elements`` move it by, the same ``count`` times. NotAffine if they vary."""
        fitting = [k for k, step in enumerate(self.steps) if elements % step.unit == 0]
        k = fitting[-1]
        step = self.steps[k]
        unit = self.lanes if step.lane else step.unit
        above = self.steps[k + 1].unit if k + 1 < len(self.steps) else inf
        if (elements % unit and step.pitch_bytes) or elements * count > above:
            raise NotAffine(f"{count} tiles of {elements} elements, in steps of {unit}")
        return elements // unit * step.pitch_bytes


@dataclass(frozen=True, slots=True)
class _DigitRange:
    """``floor(Mod(symbol, end)/begin)``."""

    symbol: str
    begin: int
    end: float


def symbol_digits(
    address: AffineForm, lane: AffineTerm | None, lanes: int
) -> dict[str, SymbolDigits]:
    """Digits of every symbol in ``address`` (bytes). ``lane``: what counts the lanes of sticks of
    ``lanes`` elements. NotAffine where digits mix symbols, or do not nest.
    """
    terms: dict[str, list[tuple[_DigitRange, Fraction]]] = {}
    for term, factor in address.terms:
        digits = _digit_range(term)
        terms.setdefault(digits.symbol, []).append((digits, factor))
    along = None if lane is None else _digit_range(lane)
    if along is not None:
        if along.begin != 1 or along.end not in (lanes, inf):
            raise NotAffine(f"lanes that {term_text(lane)} counts")
        terms.setdefault(along.symbol, [])
    by_symbol = {}
    for symbol, walks in terms.items():
        is_lane = along is not None and along.symbol == symbol
        cut = is_lane and along is not None and along.end == lanes
        steps = _cut_digits(walks, lanes if cut else 0)
        if is_lane:
            steps = _along_lanes(steps, lanes, cut)
        by_symbol[symbol] = SymbolDigits(_joined_digits(steps, lanes), lanes)
    return by_symbol


def _digit_range(term: AffineTerm) -> _DigitRange:
    if term.inner is None:
        return _DigitRange(term.symbol, 1, inf)
    if term.inner.constant or len(term.inner.terms) != 1:
        raise NotAffine(term_text(term))
    ((inner, factor),) = term.inner.terms
    below = _digit_range(inner)
    if factor != 1:
        raise NotAffine(term_text(term))
    if term.kind == "floor":
        return replace(below, begin=below.begin * term.divisor)
    return replace(below, end=min(below.end, below.begin * term.divisor))


def _cut_digits(walks: Sequence[tuple[_DigitRange, Fraction]], lanes: int) -> list[Digit]:
    """Digits with their pitches, cut at ``lanes`` too where that is not 0."""
    units = {1, *({lanes} if lanes else ())}
    for digits, _ in walks:
        units |= {digits.begin, *({int(digits.end)} if digits.end < inf else ())}
    ordered = sorted(units)
    if any(upper % lower for lower, upper in itertools.pairwise(ordered)):
        raise NotAffine(f"digits of {ordered} elements")
    steps = []
    for unit in ordered:
        held = [(d, f) for d, f in walks if d.begin <= unit < d.end]
        pitch = sum((f * (unit // d.begin) for d, f in held), Fraction(0))
        if pitch < 0 or pitch.denominator > 1:
            raise NotAffine(f"a pitch of {pitch} bytes")
        steps.append(Digit(unit, int(pitch)))
    return steps


def _along_lanes(steps: Sequence[Digit], lanes: int, has_sticks: bool) -> list[Digit]:
    """The digits below a stick and those that count its sticks as one."""
    inside = [step for step in steps if step.unit < lanes or not has_sticks]
    if len(inside) != 1 or inside[0].pitch_bytes:
        raise NotAffine("a symbol along the lanes that also counts sticks otherwise")
    if not has_sticks:
        return [Digit(1, STICK_BYTES, True)]
    if not steps[1].pitch_bytes:
        raise NotAffine("sticks that follow each other at no pitch")
    return [Digit(1, steps[1].pitch_bytes, True), *steps[2:]]


def _joined_digits(steps: Sequence[Digit], lanes: int) -> tuple[Digit, ...]:
    """Digits, those left out that the one below goes on into."""
    digits = [steps[0]]
    for step in steps[1:]:
        last = digits[-1]
        unit = lanes if last.lane else last.unit
        if step.pitch_bytes * unit != last.pitch_bytes * step.unit:
            digits.append(step)
    return tuple(digits)


def term_text(term: AffineTerm | None) -> str:
    """A term as people write it."""
    if term is None or term.inner is None:
        return term.symbol if term is not None else "0"
    inner = form_text(term.inner)
    if term.kind == "floor":
        return f"floor(({inner})/{term.divisor})"
    return f"Mod({inner}, {term.divisor})"


def form_text(form: AffineForm) -> str:
    """A form as people write it."""
    terms = [f"{f}*{term_text(t)}" for t, f in form.terms]
    return " + ".join([*sorted(terms), *([str(form.constant)] if form.constant else [])])
