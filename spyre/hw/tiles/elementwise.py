"""Elementwise operations: on numbers at once, on tiles as operations of the engine.

Functions that the engine has no operation for are formulas over those that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import log, pi
from typing import Any

import numpy as np

from spyre.hw.ops import OPS
from spyre.hw.tiles.numbers import (
    comparison,
    float_operation,
    integer_operation,
    is_integer_operation,
    signed_as,
)
from spyre.hw.tiles.trace import Site
from spyre.hw.tiles.values import ELEMENT_BYTES, FORMATS, DataTile, Number
from spyre.mlir.tiles import operation_rows

COMPARISONS = {
    "eq": "equal", "ne": "notequal", "gt": "greaterthan", "ge": "greaterequal",
    "lt": "lesserthan", "le": "lesserequal",
}  # fmt: skip
HALF, SINGLE, WORD = FORMATS["f16"], FORMATS["f32"], FORMATS["i32"]
CONVERSIONS = {
    (HALF, SINGLE): "dl16tofp32", (SINGLE, HALF): "fp32todl16",
    (WORD, SINGLE): "int32tofp32", (SINGLE, WORD): "fp32toint32",
}  # fmt: skip
MASKS = {"andi": "minimum", "ori": "maximum", "xori": "notequal", "select": "where3"}
"""Operations on booleans, which are 1 and 0."""
ADDRESS_ARITHMETIC = ("addi", "subi", "index_cast", "index_castui", "select")


def trace_elementwise(site: Site) -> None:
    """An operation of its operands in order: on numbers, or stated over tiles."""
    values = [site.value(name) for name in site.op.fields.get("ins", site.op.uses())]
    given = [value for value in values if not isinstance(value, Number)]
    if not given:
        site.bind(on_numbers(site, values))
        return
    tiles = [site.as_tile(value, getattr(given[-1], "shape", ())) for value in values]
    for tile in tiles:
        site.keep(tile, site.until)
    site.bind_computed(lambda target: on_tiles(site, tiles, target))


def on_numbers(site: Site, values: Sequence[Any]) -> Number:
    """The operation on numbers of all iterations and tiles."""
    fields, name, level = site.op.fields, site.op.name.partition(".")[2], site.level
    shape = max((value.shape for value in values), key=len)
    arrays = [value.at(level, len(shape)) for value in values]
    origins = {value.origin for value in values if value.origin is not None}
    kind = values[-1].kind
    if name == "select":
        result = np.where(*arrays)
    elif name in ("cmpi", "cmpf"):
        result, kind = comparison(fields["predicate"].text, arrays[0], arrays[1], kind), "i1"
    elif "!result" in fields:
        wanted = fields["!result"].scalar
        if name == "bitcast":
            result = _reinterpreted(site, arrays[0], kind, wanted)
        else:
            result = site.rounded(signed_as(name, arrays[0], kind), wanted)
        kind = wanted
    elif is_integer_operation(name):
        active = level.active.reshape(level.active.shape + (1,) * len(shape))
        result = integer_operation(name, arrays[0], arrays[1], kind, active, site.place)
    else:
        computed = float_operation(name, *arrays)
        if computed is None:
            site.refuse("this function of a number", "functions of arith and math")
        result = site.rounded(computed, kind)
    if len(origins) > 1 or (origins and name not in ADDRESS_ARITHMETIC):
        site.refuse("this arithmetic on an address", "addition of a number")
    return Number(np.atleast_2d(result), level, origins.pop() if origins else None, kind, shape)


def _reinterpreted(site: Site, values: Any, kind: str, wanted: str) -> Any:
    """The bits of float32 as an integer of 32 bits, or of one as float32."""
    if kind == "f32" and wanted in ("i32", "si32"):
        return np.asarray(values, np.float32).view(np.int32).astype(np.int64)
    if kind in ("i32", "si32") and wanted == "f32":
        return np.asarray(values, np.int32).view(np.float32)
    site.refuse(f"the bits of {kind} as {wanted}", "f32 and i32")


def on_tiles(site: Site, tiles: Sequence[DataTile], target: DataTile | None) -> DataTile:
    """The operation over tiles of one shape; into ``target`` where that can be."""
    op, fields, shape = site.op, site.op.fields, tiles[0].shape
    row, short = operation_rows()[op.name], op.name.partition(".")[2]
    if "!a" in fields:
        return _cast(site, short, tiles[0], target)
    if short in ("cmpf", "cmpi"):
        return _compared(site, fields["predicate"].text, tiles, target)
    written = fields.get("!T") or fields.get("!outs") or fields.get("!types")
    last = written[-1] if isinstance(written, tuple) else written
    element = tiles[-1].element if last is None else last.scalar
    if element == "i1" and short in MASKS:
        tiles = [converted(site, tile, tiles[-1].element) for tile in tiles]
        return site.pointwise(MASKS[short], tiles, shape, target)
    if element not in FORMATS:
        site.refuse(f"arithmetic on tiles of {element}", f"one of {', '.join(FORMATS)}")
    if FORMATS[element] == WORD:
        return _on_integers(site, row.engine, tiles, target)
    tiles = [converted(site, tile, element) for tile in tiles]
    if row.engine in FORMULAS:
        return _formula(site, row.engine, tiles, target)
    if row.engine not in OPS or OPS[row.engine].inputs != len(tiles):
        site.refuse(f"{short} of {element}", "operations of docs/operations.md")
    further: dict[str, Any] = {}
    if row.engine == "softplus":
        keys = {"softplusBeta": "beta", "softplusThresh": "threshold"}
        further["constants"] = {
            constant: int(np.float32(fields[key].value).view(np.int32))
            for constant, key in keys.items()
        }
    return site.pointwise(row.engine, tiles, shape, target, **further)


def _cast(site: Site, short: str, tile: DataTile, target: DataTile | None) -> DataTile:
    """A conversion; booleans are 1 and 0, as signed numbers -1 and 0."""
    source, wanted = site.op.fields["!a"].scalar, site.op.fields["!result"].scalar
    if short == "bitcast":
        if ELEMENT_BYTES.get(source) != ELEMENT_BYTES.get(wanted):
            site.refuse(f"the bits of {source} as {wanted}", "f32 and i32")
        return replace(tile, element=wanted, value=None)
    if source != "i1" and short in ("uitofp", "extui", "fptoui", "index_castui"):
        site.refuse("an unsigned number as data", f"{short.replace('u', 's', 1)}")
    if source == "i1" and short in ("sitofp", "extsi"):
        tile = site.pointwise("neg", [tile], tile.shape)
    return converted(site, tile, wanted, target, site.until)


def _compared(
    site: Site, predicate: str, tiles: Sequence[DataTile], target: DataTile | None
) -> DataTile:
    """cmpf and cmpi: 1 or 0, of floats in their element type, of integers in float32."""
    shape, kind = tiles[0].shape, site.op.fields["!T"].scalar
    if predicate in ("true", "false"):
        return site.constant(site.typed(float(predicate == "true"), "f32"), shape)
    if predicate in ("ord", "uno"):
        test = "equal" if predicate == "ord" else "notequal"
        both = [site.pointwise(test, [tile, tile], shape, until=site.now) for tile in tiles]
        return site.pointwise("minimum" if predicate == "ord" else "maximum", both, shape, target)
    name = COMPARISONS[predicate[-2:]]
    if kind in FORMATS and FORMATS[kind] == WORD:
        zero = site.constant(site.typed(0.0, "f32"), shape)
        tiles = [_difference(site, tiles, predicate[0] == "u"), zero]
    elif kind == "i1" and predicate not in ("eq", "ne"):
        site.refuse(f"the predicate {predicate} of booleans", "eq or ne")
    return site.pointwise(name, tiles, shape, target)


def _difference(site: Site, tiles: Sequence[DataTile], is_unsigned: bool = False) -> DataTile:
    """A float32 with the sign of the first minus the second integer: that of their difference in
    float32 or, where they are equal in float32, of the difference of the integers, which is small.
    """
    shape = tiles[0].shape
    if is_unsigned:
        low = site.constant(site.typed(-(2**31), "i32"), shape)
        tiles = [_on_integers(site, "add", [tile, low], None) for tile in tiles]
    near = converted(site, _on_integers(site, "sub", tiles, None), "f32")
    far = site.pointwise("sub", [converted(site, tile, "f32") for tile in tiles], shape)
    return site.pointwise("where3", [far, far, near], shape)


def _formula(site: Site, name: str, tiles: Sequence[DataTile], target: DataTile | None) -> DataTile:
    """A function as operations on float32, rounded once."""
    shape = tiles[0].shape

    def apply(name: str, *operands: DataTile | float) -> DataTile:
        own = [
            o if isinstance(o, DataTile)
            else site.constant(site.typed(o, "f32"), shape)
            for o in operands
        ]  # fmt: skip
        return site.pointwise(name, own, shape)

    wide = [converted(site, tile, "f32") for tile in tiles]
    found = FORMULAS[name](*(FormulaTerm(tile, apply) for tile in wide)).tile
    assert isinstance(found, DataTile)
    return converted(site, found, tiles[0].element, target, site.until)


def combined(
    site: Site, engine: str, tiles: Sequence[DataTile], target: DataTile | None
) -> DataTile:
    """An operation of two tiles of one element type."""
    if FORMATS[tiles[0].element] == WORD:
        return _on_integers(site, engine, tiles, target)
    if engine not in OPS:
        site.refuse(f"the combiner {engine}", "operations of docs/operations.md")
    return site.pointwise(engine, tiles, tiles[0].shape, target)


def _on_integers(
    site: Site, name: str, tiles: Sequence[DataTile], target: DataTile | None
) -> DataTile:
    """Sums, differences, products and choices of 32-bit integers."""
    shape = tiles[0].shape
    if name[:3] in ("min", "max"):
        zero = site.constant(site.typed(0.0, "f32"), shape)
        test = "lesserthan" if "min" in name else "greaterthan"
        sign = _difference(site, tiles, name.endswith("ui"))
        name, tiles = "where3", [site.pointwise(test, [sign, zero], shape), *tiles]
    if name == "where3":  # moves bits
        bits = [replace(tile, element="f32", value=None) for tile in tiles[1:]]
        own = None if target is None else replace(target, element="f32")
        operands = [converted(site, tiles[0], "f32"), *bits]
        chosen = site.pointwise(name, operands, shape, own)
        return target if chosen is own and target else replace(chosen, element=tiles[-1].element)
    if name not in ("add", "sub", "mul"):
        site.refuse("this arithmetic on tiles of integers", "addi, subi, muli, minsi or maxsi")
    first, second = tiles
    if name == "sub":
        minus = site.constant(site.typed(-1, "i32"), shape)
        second = site.pointwise("muli32toi32", [second, minus], shape, None, site.now)
    own_name = "muli32toi32" if name == "mul" else "addi32toi32"
    return site.pointwise(own_name, [first, second], shape, target)


def converted(
    site: Site,
    tile: DataTile,
    wanted: str,
    target: DataTile | None = None,
    until: int | None = None,
) -> DataTile:
    """The tile with elements ``wanted``, by way of float32 between others."""
    if FORMATS.get(wanted) == FORMATS.get(tile.element):
        return tile
    if tile.value is not None:
        return site.constant(site.typed(tile.value, wanted), tile.shape)
    name = CONVERSIONS.get((FORMATS.get(tile.element, ""), FORMATS.get(wanted, "")))
    if name is None and "f32" not in (tile.element, wanted):
        wide = converted(site, tile, "f32")
        return converted(site, wide, wanted, target, until)
    if name is None:
        site.refuse(f"a conversion from {tile.element} to {wanted}", "f16, f32 and i32")
    kept = site.now if until is None else until
    return site.pointwise(name, [tile], tile.shape, target, kept, wanted)


# --- functions that the engine does not have ------------------------------------------------------


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
