"""Operations on whole tiles of data, while a function is traced: views, reductions, products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from msgspec.structs import replace

from spyre.hw.tiles.lowering import PRODUCT
from spyre.hw.tiles.trace import Site, dims_of
from spyre.hw.tiles.values import PAIR, DataTile, Number, Shape
from spyre.mlir.operation import MASK_CONSTANT
from spyre.mlir.tiles import FLOATS, integers

IDENTITIES = {
    "add": 0.0, "mul": 1.0, "maximum": -np.inf, "minimum": np.inf,
    "maxsi": -(2**31), "minsi": 2**31 - 1, "maxui": 0, "minui": -1,
}  # fmt: skip
REDUCTIONS = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}


def trace_splat(site: Site) -> None:
    """linalg.fill, tensor.splat, linalg.broadcast: a tile that does not vary along its new dims."""
    fields = site.op.fields
    (name,) = fields.get("ins", (fields.get("value"),))
    type_ = fields["!outs"][0] if "!outs" in fields else fields["!result"]
    rank = len(type_.extents)
    new = integers(fields["dimensions"]) if "dimensions" in fields else range(rank)
    kept = [d for d in range(rank) if d not in (new or ())]
    value = site.value(name)
    if not isinstance(value, Number) or type_.element in FLOATS:
        value = site.as_tile(value, tuple(type_.extents[d] for d in kept))
    site.bind(value.over(type_.extents, kept))


def trace_empty(site: Site) -> None:
    """A shape: as a constant it is never read."""
    type_, nowhere = site.op.fields["!result"], np.zeros((1, 1), np.int64)
    pitches, owner = (0,) * len(type_.extents), len(site.tracer.pointers)
    tile = DataTile(type_.extents, type_.element, owner, nowhere, site.level, pitches, None)
    site.bind(replace(tile, is_empty=True))


def trace_transpose(site: Site) -> None:
    """A view with its dims in another order."""
    order = integers(site.op.fields["permutation"]) or ()
    site.bind(site.tile(site.op.fields["ins"][0]).permuted(order))


def trace_reshape(site: Site) -> None:
    """The elements in another shape."""
    tile = site.tile(site.op.fields["value"])
    site.bind(reshaped(site, tile, site.op.fields["!result"].extents))


def reshaped(site: Site, tile: DataTile, shape: Shape) -> DataTile:
    """The elements in another shape: a view, or a copy by way of a row of all of them."""
    found = tile.reshaped(shape)
    if found is not None:
        return found
    row = site.slot((prod(shape),), tile.element, 0)
    site.move(tile, row.in_rows(tile.shape))
    found = row.in_rows(shape)
    return found if found.stick is not None else site.copied(found)


def trace_extract(site: Site) -> None:
    """One element, where it is, or of a table of numbers."""
    value = site.value(site.op.fields["value"])
    at = _positions(site, site.op.fields["indices"], site.op.fields["!value"].extents)
    if isinstance(value, Number):
        tiles = np.arange(site.n_tiles)[None]
        rows = np.arange(site.level.rows)[:, None]
        whole = np.broadcast_to(value.at(site.level), (*site.level.active.shape, *value.shape))
        site.bind(Number(whole[(rows, tiles, *at)], site.level, kind=value.kind))
        return
    tile = site.as_tile(value, ())
    moves = any(np.any(x) for x in at)
    element = tile.part(at, (), site.level) if moves else tile
    element = replace(element, shape=(), pitches=(), stick=None)
    # A statement reads a whole stick, and begins at one.
    site.bind(site.copied(element) if moves else element)


def trace_slice(site: Site) -> None:
    """A copy of elements at distances."""
    tile = site.copied(_slice(site, site.tile(site.op.fields["value"])))
    site.bind(reshaped(site, tile, site.op.fields["!result"].extents))


def _slice(site: Site, tile: DataTile) -> DataTile:
    """The elements of a tile at the operation's offsets, sizes and strides."""
    offsets, sizes, strides = (site.op.fields[key] for key in ("offsets", "sizes", "strides"))
    if not all(isinstance(stride, int) for stride in strides):
        site.refuse("a stride of a slice that is a value", "strides that are written")
    spans = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
    at = _positions(site, offsets, tile.shape, spans)
    return tile.part(at, sizes, site.level, strides)


def _positions(
    site: Site, items: Sequence[str | int], shape: Sequence[int], spans: Sequence[int] = ()
) -> tuple[Any, ...]:
    """Positions in a tile of ``shape``, and ``spans`` behind them. DeviceFault SPY414 outside."""
    at = site.numbers(items)
    for dim, (first, size) in enumerate(zip(at, shape, strict=True)):
        site.require_inside(dim, first, first + (spans[dim] if spans else 0), size, "tensor")
    return at


def trace_insert(site: Site) -> None:
    """tensor.insert and insert_slice: a copy of a tile with a part of it replaced."""
    fields = site.op.fields
    whole = site.copied(site.tile(fields.get("into", fields["value"])))
    if "element" in fields:
        at = _positions(site, fields["indices"], whole.shape)
        target = whole.part(at, (), site.level)
        tile = site.tile(fields["element"])
    else:
        target = _slice(site, whole)
        tile = reshaped(site, site.tile(fields["value"]), target.shape)
    site.move(tile, target)
    site.bind(whole)


def trace_elements(site: Site) -> None:
    """tensor.from_elements: a tile of single values, row by row."""
    type_ = site.op.fields["!result"]
    whole = site.rows(type_.extents, type_.element)
    for at, name in zip(np.ndindex(type_.extents), site.op.fields["values"], strict=True):
        site.move(site.tile(name), whole.part(site.numbers(at), (), site.level))
    site.bind(whole)


def reduced(
    site: Site, combiner: str, tile: DataTile, dims: Shape, place: DataTile | None = None
) -> DataTile:
    """``tile`` without ``dims``, folded; in ``place`` if it can be written there."""
    is_whole = all(p or n == 1 for p, n in zip(tile.pitches, tile.shape, strict=True))
    if tile.stick is None or not is_whole:
        tile = site.copied(tile, site.now)
    stick, names = tile.stick or 0, dims_of(tile.shape)
    size = tile.shape[stick]
    padded = -(-size // tile.lanes) * tile.lanes
    kept = [d for d in range(len(tile.shape)) if d not in dims]
    shape = tuple(tile.shape[d] for d in kept)
    own = kept.index(stick) if stick in kept else None
    fits = place is not None and place.stick == own and site.is_apart(place, [tile])
    target = place if place and fits else site.slot(shape, tile.element, own)
    further: dict[str, Any] = {}
    if stick in dims and padded > size:
        bits = int(np.float32(IDENTITIES[combiner]).view(np.int32))
        further = {"masks": {names[stick]: ((size, padded - size),)},
                   "constants": {MASK_CONSTANT: bits}}  # fmt: skip
    extents = dict(zip(names, tile.shape, strict=True)) | {names[stick]: padded}
    operands = [(tile, names), (target, tuple(names[d] for d in kept))]
    site.emit(REDUCTIONS[combiner], operands, extents, names[stick], **further)
    return target


def _filled_up(site: Site, tile: DataTile, shape: Shape) -> DataTile:
    """The tile with zeros behind it, in ``shape``."""
    if tile.shape == shape:
        return tile
    whole = site.zeroed(site.slot(shape, tile.element, len(shape) - 1, site.now))
    site.move(tile, whole.part(site.numbers([0] * len(shape)), tile.shape, site.level))
    return whole


def trace_product(site: Site) -> None:
    """linalg.matmul and batch_matmul: ``outs`` plus the product of ``ins``."""
    left, right = (site.tile(name) for name in site.op.fields["ins"])
    start, type_ = site.tile(site.op.fields["outs"][0]), site.op.fields["!outs"][0]
    rank = len(type_.extents)
    batch = tuple(f"b{k}" for k in range(rank - 2))
    single, is_wide = {left.element, right.element} != {"f16"}, type_.element == "f32"
    if site.tracer.numerics.chunked and not single and not is_wide:  # chunks are whole sticks
        *others, depth, width = right.shape
        depth, width = (-(-size // PAIR) * PAIR for size in (depth, width))
        left = _filled_up(site, left, (*left.shape[:-1], depth))
        right = _filled_up(site, right, (*others, depth, width))
    single = single or any(tile.shape[-1] % PAIR for tile in (left, right))
    single = single or (is_wide and site.tracer.numerics.chunked)
    if not single:
        left, right = (
            tile if tile.stick == rank - 1 else site.resticked(tile, rank - 1)
            for tile in (left, right)
        )
    names = ((*batch, "m", "k"), (*batch, "k", "n"), (*batch, "m", "n"))
    extents = {**dict(zip(names[0], left.shape, strict=True)), "n": right.shape[-1]}
    for tile in (left, right, start):
        site.keep(tile, site.until)

    def compute(target: DataTile | None) -> DataTile:
        is_whole = start.is_empty or start.value == 0.0
        fits = target is not None and site.is_apart(target, (left, right))
        if target is None or not (is_whole and fits and target.lane_dim == rank - 1):
            target = site.rows(type_.extents, type_.element)
        operands = [*zip((left, right, target), names, strict=True)]
        site.emit(PRODUCT, operands, extents, "n", single=single)
        return target if is_whole else site.pointwise("add", [start, target], target.shape, target)

    site.bind_computed(compute)
