"""Elementwise operations: on numbers at once, on tiles as operations of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spyre.hw.ops import OPS
from spyre.hw.tiles.formulas import FORMULAS, FormulaTerm
from spyre.hw.tiles.numbers import (
    comparison,
    float_operation,
    integer_operation,
    is_integer_operation,
)
from spyre.hw.tiles.trace import Site, result_type
from spyre.hw.tiles.values import FORMATS, DataTile, Number
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
ADDRESS_ARITHMETIC = ("addi", "subi", "index_cast", "index_castui", "select")


def trace_elementwise(site: Site) -> None:
    """An operation of its operands in order: on numbers, or stated over tiles."""
    values = [site.value(name) for name in site.op.fields.get("ins", site.op.uses())]
    given = [value for value in values if isinstance(value, DataTile)]
    if not given:
        site.bind(on_numbers(site, values))
        return
    shape, element = given[-1].shape, given[-1].element
    tiles = [site.as_tile(value, shape, element) for value in values]
    for tile in given:
        site.keep(tile, site.until)
    site.bind_computed(lambda target: on_tiles(site, tiles, target))


def on_numbers(site: Site, values: Sequence[Any]) -> Number:
    """The operation on numbers of all iterations and tiles."""
    fields, name, level = site.op.fields, site.op.name.partition(".")[2], site.level
    arrays = [value.at(level) for value in values]
    origins = {value.origin for value in values if value.origin is not None}
    found = fields.get("!T") or fields.get("!a") or fields.get("!types", (None,))[-1]
    kind = found.kind if found is not None else "index"
    if name == "select":
        result = np.where(*arrays)
    elif name in ("cmpi", "cmpf"):
        result = comparison(fields["predicate"].text, arrays[0], arrays[1], kind)
    elif "!result" in fields:
        result = site.rounded(arrays[0], fields["!result"].kind)
    elif is_integer_operation(name):
        result = integer_operation(name, arrays[0], arrays[1], kind, level.active, site.place)
    else:
        computed = float_operation(name, *arrays)
        if computed is None:
            site.refuse("this function of a number", "arithmetic, exp, sqrt")
        result = site.rounded(computed, kind)
    if origins and name not in ADDRESS_ARITHMETIC:
        site.refuse("this arithmetic on an address", "addition")
    return Number(np.atleast_2d(result), level, origins.pop() if origins else None)


def on_tiles(site: Site, tiles: Sequence[DataTile], target: DataTile | None) -> DataTile:
    """The operation over tiles of one shape; into ``target`` where that can be."""
    op, fields, shape = site.op, site.op.fields, tiles[0].shape
    row, short = operation_rows()[op.name], op.name.partition(".")[2]
    if "!a" in fields:  # a cast
        return converted(site, tiles[0], fields["!result"].scalar, target, site.until)
    if short in ("cmpf", "cmpi"):
        predicate = fields["predicate"].text
        name = COMPARISONS.get(predicate[1:] if short == "cmpf" else predicate[-2:], "")
        if not name or tiles[0].element in ("i32", "si32"):
            site.refuse(f"the predicate {predicate} on tiles", "ordered comparisons of floats")
        return site.pointwise(name, tiles, shape, target)
    element = result_type(op).scalar
    if element not in FORMATS:
        site.refuse(f"arithmetic on tiles of {element}", f"one of {', '.join(FORMATS)}")
    tiles = [converted(site, tile, element) for tile in tiles]
    if FORMATS[element] == WORD:
        return _on_integers(site, row.engine, tiles, target)
    if row.engine in FORMULAS:
        return _formula(site, row.engine, tiles, target)
    if row.engine not in OPS:
        site.refuse(f"{short} of {element}", "operations of docs/operations.md")
    further: dict[str, Any] = {}
    if row.engine == "softplus":
        keys = {"softplusBeta": "beta", "softplusThresh": "threshold"}
        further["constants"] = {
            constant: int(np.float32(fields[key].value).view(np.int32))
            for constant, key in keys.items()
        }
    return site.pointwise(row.engine, tiles, shape, target, **further)


def _formula(site: Site, name: str, tiles: Sequence[DataTile], target: DataTile | None) -> DataTile:
    """A function as operations on float32, rounded once."""
    shape = tiles[0].shape

    def apply(name: str, *operands: DataTile | float) -> DataTile:
        own = [
            o if isinstance(o, DataTile)
            else site.constant(Number(np.array([[o]], np.float32), site.level), shape, "f32")
            for o in operands
        ]  # fmt: skip
        return site.pointwise(name, own, shape)

    wide = [converted(site, tile, "f32") for tile in tiles]
    found = FORMULAS[name](*(FormulaTerm(tile, apply) for tile in wide)).tile
    assert isinstance(found, DataTile)
    return converted(site, found, tiles[0].element, target, site.until)


def _on_integers(
    site: Site, name: str, tiles: Sequence[DataTile], target: DataTile | None
) -> DataTile:
    """Sums, differences and products of 32-bit integers."""
    if name not in ("add", "sub", "mul"):
        site.refuse("this arithmetic on tiles of integers", "addi, subi or muli")
    (first, second), shape = tiles, tiles[0].shape
    if name == "sub":
        minus = site.constant(Number(np.array([[-1]]), site.level), shape, "i32")
        second = site.pointwise("muli32toi32", [second, minus], shape, None, site.now)
    own = "muli32toi32" if name == "mul" else "addi32toi32"
    return site.pointwise(own, [first, second], shape, target)


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
        number = site.rounded(np.array([[tile.value]]), wanted)
        return site.constant(Number(number, tile.level), tile.shape, wanted)
    name = CONVERSIONS.get((FORMATS.get(tile.element, ""), FORMATS.get(wanted, "")))
    if name is None and "f32" not in (tile.element, wanted):
        wide = converted(site, tile, "f32")
        return converted(site, wide, wanted, target, until)
    if name is None:
        site.refuse(f"a conversion from {tile.element} to {wanted}", "f16, f32 and i32")
    kept = site.now if until is None else until
    return site.pointwise(name, [tile], tile.shape, target, kept, wanted)
