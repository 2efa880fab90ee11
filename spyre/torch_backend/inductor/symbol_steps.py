"""How one symbol moves through memory: a pitch, or one per range of its digits.

A symbol that counts the elements of two device dims, as where dims of a tensor are seen as one, has
``floor(c/128)`` and ``Mod(c, 128)`` in its coordinates: two digits, each with a pitch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

from spyre.dtypes import STICK_BYTES
from spyre.layout.view_factors import Factor
from spyre.torch_backend.inductor.linear_forms import Form, NotLinear, Term


@dataclass(frozen=True, slots=True)
class Step:
    """A digit of a symbol that counts ``unit`` elements: ``pitch_bytes`` from one to the next, or
    from stick to stick where it runs along the lanes.
    """

    unit: int
    pitch_bytes: int
    lane: bool = False


@dataclass(frozen=True, slots=True)
class SymbolSteps:
    """All digits of a symbol, the innermost first. ``lanes``: elements of a stick."""

    steps: tuple[Step, ...]
    lanes: int

    def factors(self, extent: int) -> tuple[Factor, ...]:
        """Its first ``extent`` elements as factors, the outermost first. NotLinear if the digits
        cut them unevenly.
        """
        units = [step.unit for step in self.steps if step.unit < extent] + [extent]
        pairs = list(itertools.pairwise(units))
        if any(upper % lower for lower, upper in pairs):
            raise NotLinear(f"tiles of {extent} elements in steps of {units[-2]}")
        found = [
            Factor(upper // lower, step.pitch_bytes, step.lane)
            for step, (lower, upper) in zip(self.steps, pairs, strict=False)
        ]
        return tuple(reversed(found))

    def stride_bytes(self, elements: int, count: int) -> int:
        """Bytes that ``elements`` move it by, the same ``count`` times. NotLinear if they vary."""
        fitting = [k for k, step in enumerate(self.steps) if elements % step.unit == 0]
        k = fitting[-1]
        step = self.steps[k]
        unit = self.lanes if step.lane else step.unit
        above = self.steps[k + 1].unit if k + 1 < len(self.steps) else inf
        if (elements % unit and step.pitch_bytes) or elements * count > above:
            raise NotLinear(f"{count} tiles of {elements} elements, in steps of {unit}")
        return elements // unit * step.pitch_bytes


@dataclass(frozen=True, slots=True)
class _Digits:
    """``floor(Mod(symbol, end)/begin)``."""

    symbol: str
    begin: int
    end: float


def symbol_steps(address: Form, lane: Term | None, lanes: int) -> dict[str, SymbolSteps]:
    """Digits of every symbol in ``address`` (bytes). ``lane``: what counts the lanes of sticks of
    ``lanes`` elements. NotLinear where digits mix symbols, or do not nest.
    """
    terms: dict[str, list[tuple[_Digits, Fraction]]] = {}
    for term, factor in address.terms:
        digits = _digits(term)
        terms.setdefault(digits.symbol, []).append((digits, factor))
    along = None if lane is None else _digits(lane)
    if along is not None:
        if along.begin != 1 or along.end not in (lanes, inf):
            raise NotLinear(f"lanes that {term_text(lane)} counts")
        terms.setdefault(along.symbol, [])
    found = {}
    for symbol, walks in terms.items():
        is_lane = along is not None and along.symbol == symbol
        cut = is_lane and along is not None and along.end == lanes
        steps = _steps(walks, lanes if cut else 0)
        if is_lane:
            steps = _along_lanes(steps, lanes, cut)
        found[symbol] = SymbolSteps(_joined(steps, lanes), lanes)
    return found


def _digits(term: Term) -> _Digits:
    if term.inner is None:
        return _Digits(term.symbol, 1, inf)
    if term.inner.constant or len(term.inner.terms) != 1:
        raise NotLinear(term_text(term))
    ((inner, factor),) = term.inner.terms
    below = _digits(inner)
    if factor != 1:
        raise NotLinear(term_text(term))
    if term.kind == "floor":
        return replace(below, begin=below.begin * term.divisor)
    return replace(below, end=min(below.end, below.begin * term.divisor))


def _steps(walks: Sequence[tuple[_Digits, Fraction]], lanes: int) -> list[Step]:
    """Digits with their pitches, cut at ``lanes`` too where that is not 0."""
    units = {1, *({lanes} if lanes else ())}
    for digits, _ in walks:
        units |= {digits.begin, *({int(digits.end)} if digits.end < inf else ())}
    ordered = sorted(units)
    if any(upper % lower for lower, upper in itertools.pairwise(ordered)):
        raise NotLinear(f"digits of {ordered} elements")
    steps = []
    for unit in ordered:
        held = [(d, f) for d, f in walks if d.begin <= unit < d.end]
        pitch = sum((f * (unit // d.begin) for d, f in held), Fraction(0))
        if pitch < 0 or pitch.denominator > 1:
            raise NotLinear(f"a pitch of {pitch} bytes")
        steps.append(Step(unit, int(pitch)))
    return steps


def _along_lanes(steps: Sequence[Step], lanes: int, has_sticks: bool) -> list[Step]:
    """The digits below a stick and those that count its sticks as one."""
    inside = [step for step in steps if step.unit < lanes or not has_sticks]
    if len(inside) != 1 or inside[0].pitch_bytes:
        raise NotLinear("a symbol along the lanes that also counts sticks otherwise")
    if not has_sticks:
        return [Step(1, STICK_BYTES, True)]
    if not steps[1].pitch_bytes:
        raise NotLinear("sticks that follow each other at no pitch")
    return [Step(1, steps[1].pitch_bytes, True), *steps[2:]]


def _joined(steps: Sequence[Step], lanes: int) -> tuple[Step, ...]:
    """Digits, those left out that the one below goes on into."""
    found = [steps[0]]
    for step in steps[1:]:
        last = found[-1]
        unit = lanes if last.lane else last.unit
        if step.pitch_bytes * unit != last.pitch_bytes * step.unit:
            found.append(step)
    return tuple(found)


def term_text(term: Term | None) -> str:
    """A term as people write it."""
    if term is None or term.inner is None:
        return term.symbol if term is not None else "0"
    inner = form_text(term.inner)
    if term.kind == "floor":
        return f"floor(({inner})/{term.divisor})"
    return f"Mod({inner}, {term.divisor})"


def form_text(form: Form) -> str:
    """A form as people write it."""
    terms = [f"{f}*{term_text(t)}" for t, f in form.terms]
    return " + ".join([*sorted(terms), *([str(form.constant)] if form.constant else [])])
