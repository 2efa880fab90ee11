"""Elementwise operations: on numbers at once, on tiles as operations of the engine.

Functions that the engine has no operation for are formulas over those that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partialmethod, reduce
from math import log, pi
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from spyre.errors import LaunchError
from spyre.hw.ops import OPS
from spyre.hw.tiles.numbers import (
    FLOAT_OPERATIONS,
    INTEGER_OPERATIONS,
    comparison,
    integer_operation,
    signed_as,
)
from spyre.hw.tiles.trace import Site
from spyre.hw.tiles.values import ELEMENT_BYTES, FORMATS, BoolArray, DataTile, Number, Tiles
from spyre.mlir.tiles import FLOATS, operation_rows

COMPARISONS = {
    "eq": "equal", "ne": "notequal", "gt": "greaterthan", "ge": "greaterequal",
    "lt": "lesserthan", "le": "lesserequal",
}  # fmt: skip
HALF, SINGLE, WORD = (FORMATS[element] for element in ("f16", "f32", "i32"))
CONVERSIONS = {
    (HALF, SINGLE): "dl16tofp32", (SINGLE, HALF): "fp32todl16",
    (WORD, SINGLE): "int32tofp32", (SINGLE, WORD): "fp32toint32",
}  # fmt: skip
UNORDERED = {"ugt": "ole", "uge": "olt", "ult": "oge", "ule": "ogt", "ueq": "one"}
"""Predicates of floats that hold where another does not: with NaN too."""
ORDER_TESTS = {
    "ord": ("equal", "minimum"), "uno": ("notequal", "maximum"), "one": ("lesserthan", "maximum"),
}  # fmt: skip
"""Comparison of each operand with itself, or of both in either order, and how two are joined."""
MASKS = {"select": "where3"} | dict.fromkeys(("addi", "subi", "xori"), "notequal")
MASKS |= dict.fromkeys(("andi", "muli", "maxsi", "minui"), "minimum")
MASKS |= dict.fromkeys(("ori", "minsi", "maxui"), "maximum")
"""Operations on booleans, which are 1 and 0."""
_WORDS = {"f32": np.float32, "i32": np.int32, "si32": np.int32}
ADDRESS_ARITHMETIC = ("addi", "subi", "index_cast", "index_castui", "select")


def trace_elementwise(site: Site) -> None:
    """An operation of its operands in order: on numbers, or stated over tiles."""
    values = [site.value(name) for name in site.op.fields.get("ins", site.op.uses())]
    given = [value for value in values if not isinstance(value, Number)]
    if not given:
        site.bind(_on_numbers(site, values))
        return
    shape = max((getattr(value, "shape", ()) for value in values), key=len)
    tiles = [site.as_tile(value, shape) for value in values]
    tiles = [tile if tile.shape else tile.over(shape, ()) for tile in tiles]
    for tile in tiles:
        site.keep(tile, site.until)
    site.bind_computed(lambda target: _on_tiles(site, tiles, target))


def _on_numbers(site: Site, values: Sequence[Any]) -> Number:
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
    elif name == "bitcast":
        held, kind = _WORDS.get(kind), fields["!result"].scalar
        if held is None or kind not in _WORDS:
            site.refuse(f"the bits of {values[-1].kind} as {kind}", "f32 and i32")
        result = site.rounded(np.asarray(arrays[0], held).view(_WORDS[kind]), kind)
    elif "!result" in fields:
        wanted = fields["!result"].scalar
        result, kind = site.rounded(signed_as(name, arrays[0], kind), wanted), wanted
    elif name in INTEGER_OPERATIONS:
        if "div" in name or "rem" in name:
            _check_divisor(site, arrays[1].reshape(*arrays[1].shape[:2], -1) == 0)
        result = integer_operation(name, arrays[0], arrays[1], kind)
    elif name in FLOAT_OPERATIONS:
        with np.errstate(all="ignore"):
            exact = FLOAT_OPERATIONS[name](*(np.asarray(x, np.float64) for x in arrays))
        result = site.rounded(exact, kind)
    else:
        site.refuse("this function of a number", "functions of arith and math")
    if len(origins) > 1 or (origins and name not in ADDRESS_ARITHMETIC):
        site.refuse("this arithmetic on an address", "addition of a number")
    return Number(np.atleast_2d(result), level, origins.pop() if origins else None, kind, shape)


def _check_divisor(site: Site, is_zero: BoolArray) -> None:
    """LaunchError SPY125 for a division by zero on a tile that takes part."""
    wrong = np.argwhere(site.level.active & is_zero.any(axis=2))
    if len(wrong):
        message, found = f"{site.op.name} divides by zero", f"0 on tile {wrong[0][1]}"
        site.fail(LaunchError, "SPY125", message, "a divisor other than 0", found)


def _on_tiles(site: Site, tiles: Tiles, target: DataTile | None) -> DataTile:
    """The operation over tiles of one shape; into ``target`` where that can be."""
    op, fields, shape = site.op, site.op.fields, tiles[0].shape
    row, short = operation_rows()[op.name], op.name.partition(".")[2]
    if short == "compare":
        return combined(site, str(fields["predicate"]).strip("<>"), tiles, target)
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
    if FORMATS[element] != WORD:
        tiles = [converted(site, tile, element) for tile in tiles]
    if row.engine != "softplus":
        return combined(site, row.engine, tiles, target)
    keys = {"softplusBeta": "beta", "softplusThresh": "threshold"}
    bits = {name: int(np.float32(fields[key].value).view(np.int32)) for name, key in keys.items()}
    return site.pointwise(row.engine, tiles, shape, target, constants=bits)


def combined(site: Site, engine: str, tiles: Tiles, target: DataTile | None) -> DataTile:
    """An operation of the engine, a formula of them, or one on integers, over tiles."""
    element, shape = tiles[-1].element, tiles[0].shape
    if FORMATS[element] == WORD:
        return _on_integers(site, engine, tiles, target)
    if engine in FORMULAS:  # on float32, rounded once
        terms = [FormulaTerm(site, converted(site, tile, "f32")) for tile in tiles]
        return converted(site, FORMULAS[engine](*terms).tile, element, target, site.until)
    if engine not in OPS or OPS[engine].inputs != len(tiles):
        short = site.op.name.partition(".")[2]
        site.refuse(f"{short} of {element}", "operations of docs/operations.md")
    return site.pointwise(engine, tiles, shape, target)


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


def _compared(site: Site, predicate: str, tiles: Tiles, target: DataTile | None) -> DataTile:
    """cmpf and cmpi: 1 or 0, of floats in their element type, of integers in float32."""
    shape, kind = tiles[0].shape, site.op.fields["!T"].scalar
    if predicate in ("true", "false"):
        return site.filled(float(predicate == "true"), "f32", shape)
    if kind in FLOATS and predicate in UNORDERED:
        ordered = _compared(site, UNORDERED[predicate], tiles, None)
        one = site.filled(1.0, ordered.element, shape)
        return site.pointwise("notequal", [ordered, one], shape, target)
    if predicate in ORDER_TESTS:
        test, joined = ORDER_TESTS[predicate]
        pairs = [tiles, tiles[::-1]] if predicate == "one" else [[tile, tile] for tile in tiles]
        both = [site.pointwise(test, pair, shape, until=site.now) for pair in pairs]
        return site.pointwise(joined, both, shape, target)
    if kind in FORMATS and FORMATS[kind] == WORD:
        tiles = [_difference(site, tiles, predicate[0] == "u"), site.filled(0.0, "f32", shape)]
    elif kind == "i1" and predicate not in ("eq", "ne"):
        site.refuse(f"the predicate {predicate} of booleans", "eq or ne")
    return site.pointwise(COMPARISONS[predicate[-2:]], tiles, shape, target)


def _difference(site: Site, tiles: Tiles, is_unsigned: bool = False) -> DataTile:
    """A float32 with the sign of the first minus the second integer: that of their difference in
    float32 or, where they are equal in float32, of the difference of the integers, which is small.
    """
    shape = tiles[0].shape
    if is_unsigned:
        low = site.filled(-(2**31), "i32", shape)
        tiles = [_on_integers(site, "add", [tile, low], None) for tile in tiles]
    near = converted(site, _on_integers(site, "sub", tiles, None), "f32")
    far = site.pointwise("sub", [converted(site, tile, "f32") for tile in tiles], shape)
    return site.pointwise("where3", [far, far, near], shape)


def _on_integers(site: Site, name: str, tiles: Tiles, target: DataTile | None) -> DataTile:
    """Sums, differences, products and choices of 32-bit integers."""
    shape = tiles[0].shape
    if name[:3] in ("min", "max"):
        test = "lesserthan" if "min" in name else "greaterthan"
        sign = _difference(site, tiles, name.endswith("ui"))
        chosen = site.pointwise(test, [sign, site.filled(0.0, "f32", shape)], shape)
        name, tiles = "where3", [chosen, *tiles]
    if name == "where3":  # moves bits
        bits = [replace(tile, element="f32", value=None) for tile in tiles[1:]]
        own = None if target is None else replace(target, element="f32")
        chosen = site.pointwise(name, [converted(site, tiles[0], "f32"), *bits], shape, own)
        return target if chosen is own and target else replace(chosen, element=tiles[-1].element)
    if name not in ("add", "sub", "mul"):
        site.refuse("this arithmetic on tiles of integers", "addi, subi, muli, minsi or maxsi")
    first, second = tiles
    if name == "sub":
        minus = site.filled(-1, "i32", shape)
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
    source, result = FORMATS.get(tile.element, ""), FORMATS.get(wanted, "")
    if source == result:
        return tile
    if tile.value is not None:
        return site.filled(tile.value, wanted, tile.shape)
    if (source, result) not in CONVERSIONS:
        if "f32" in (tile.element, wanted):
            site.refuse(f"a conversion from {tile.element} to {wanted}", "f16, f32 and i32")
        return converted(site, converted(site, tile, "f32"), wanted, target, until)
    kept, name = site.now if until is None else until, CONVERSIONS[source, result]
    return site.pointwise(name, [tile], tile.shape, target, kept, wanted)


class FormulaTerm(msgspec.Struct, frozen=True):
    """A float32 tile in a formula."""

    site: Site
    tile: DataTile

    def of(self, name: str, *others: FormulaTerm | float) -> FormulaTerm:
        """An operation of the engine on this and others."""
        site, shape = self.site, self.tile.shape
        tiles = [
            other.tile if isinstance(other, FormulaTerm) else site.filled(other, "f32", shape)
            for other in others
        ]
        return FormulaTerm(site, site.pointwise(name, [self.tile, *tiles], shape))

    __add__ = partialmethod(of, "add")
    __sub__ = partialmethod(of, "sub")
    __mul__ = partialmethod(of, "mul")
    __neg__ = partialmethod(of, "neg")


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


def _layernormscale(mean: FormulaTerm, *squares: FormulaTerm) -> FormulaTerm:
    """The reciprocal of the standard deviation, by the means of x and of its square."""
    if not squares:
        mean.site.refuse("a pair of means in one value", "%mean squares %squares")
    return (squares[0] - mean * mean + 1e-5).of("rsqrt")


FORMULAS: Mapping[str, Callable[..., FormulaTerm]] = {
    "square": lambda x: x * x,
    "layernormscale": _layernormscale,
    "layernormnorm": lambda x, mean, scale, weight, bias: (x - mean) * scale * weight + bias,
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
