"""linalg.generic and linalg.reduce: the operations of the body over the whole space of iterations,
whose operands are seen through the maps, and then the reduction of its results.

A body that folds in another way than by one operation of the engine is traced once for all steps
of the fold, like the body of a loop that carries its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from spyre.hw.tiles.control import copy_back, in_places, placed
from spyre.hw.tiles.data import IDENTITIES, REDUCTIONS, reduced
from spyre.hw.tiles.elementwise import combined
from spyre.hw.tiles.trace import Site
from spyre.hw.tiles.values import DataTile, Number, Shape, Tiles, Value
from spyre.mlir.program import INTEGERS, AffineDim, AffineMap, fold, slope_along
from spyre.mlir.tiles import FLOATS, Region, TileOp, operation_rows

Fold = tuple[str, str]
"""An output's fold: the engine's name of the operation, and the value that it folds."""


def trace_generic(site: Site) -> None:
    """linalg.generic."""
    kinds, fields = site.resolved("iterator_types"), {"ins": (), "!ins": (), **site.op.fields}
    maps = [site.tracer.program.module.resolved(map_) for map_ in site.resolved("indexing_maps")]
    extents: dict[int, int] = {}
    for map_, type_ in zip(maps, (*fields["!ins"], *fields["!outs"]), strict=True):
        for result, extent in zip(map_.results, type_.extents, strict=True):
            if isinstance(result, AffineDim):
                extents[result.index] = extent
    if len(extents) != len(kinds):
        site.refuse("an iterator that is no dim of an operand", "a dim of each")
    shape, n_inputs = tuple(extents[d] for d in range(len(kinds))), len(fields["ins"])
    values = [site.value(name) for name in (*fields["ins"], *fields["outs"])]
    seen = [_seen(site, value, map_, shape) for value, map_ in zip(values, maps, strict=True)]
    outputs = maps[n_inputs:]
    summed = [d for d, kind in enumerate(kinds) if kind.text == "reduction"]
    if summed:
        orders = [_order(site, map_) for map_ in outputs]
        _reduction(site, seen[:n_inputs], shape, summed, orders)
    elif len(outputs) == 1 and outputs[0].permutation is not None:
        order = _order(site, outputs[0])
        if len(order) != len(shape):
            site.refuse("an output that lacks a parallel dim", "all parallel dims")
        site.bind_computed(lambda target: _body(site, seen, shape, order, target))
    else:
        made = _run(site, seen, shape, site.op.regions[0].body)
        for name, value, map_, type_ in zip(
            site.op.results, made, outputs, fields["!outs"], strict=True
        ):
            whole = site.rows(type_.extents, type_.element)
            first, slopes = _linear(site, map_)
            if not _covers(first, slopes, shape, type_.extents):
                site.refuse("an output whose elements are not written once each", found=str(map_))
            target = whole.viewed(shape, first, slopes)
            tile = site.as_tile(value, shape)
            (site.move if target.stick is None else site.write)(tile, target)
            site.bind(whole, name)


def trace_map(site: Site) -> None:
    """linalg.map: an operation of the elements, by its name or as a body."""
    fields, shape = site.op.fields, site.op.fields["!outs"][0].extents
    seen, order = [site.value(name) for name in fields["ins"]], tuple(range(len(shape)))
    if site.op.regions:
        every = [*seen, site.value(fields["outs"][0])]
        site.bind_computed(lambda target: _body(site, every, shape, order, target))
    else:
        tiles = [site.as_tile(value, shape) for value in seen]
        site.bind_computed(lambda target: combined(site, _combiner(site), tiles, target))


def _combiner(site: Site) -> str:
    """The engine's name of the operation that is named in braces."""
    name = site.op.fields["combiner"].text
    return operation_rows()[name if "." in name else f"arith.{name}"].engine


def trace_reduce(site: Site) -> None:
    """linalg.reduce."""
    fields = site.op.fields
    shape, dims = fields["!ins"][0].extents, [int(n.value) for n in fields["dimensions"]]
    kept = tuple(d for d in range(len(shape)) if d not in dims)
    seen = [site.value(name) for name in fields["ins"]]
    _reduction(site, seen, shape, dims, [kept] * len(fields["outs"]))


def _order(site: Site, map_: AffineMap) -> Shape:
    order = map_.permutation
    if order is None:
        site.refuse("a map of an output that is no choice of dims", "distinct dims", str(map_))
    return order


def _linear(site: Site, map_: AffineMap) -> tuple[list[int], list[list[int]]]:
    """First position and steps along the iterators, per result."""
    slopes = [[slope_along(result, d) for d in range(map_.n_dims)] for result in map_.results]
    if any(slope is None for row in slopes for slope in row) or map_.n_symbols:
        site.refuse("a map that is not linear", "sums of dims and multiples of dims", str(map_))
    first = [fold(result, [0] * map_.n_dims, (), INTEGERS) for result in map_.results]
    return first, [[slope or 0 for slope in row] for row in slopes]


def _covers(
    first: Sequence[int], slopes: Sequence[Sequence[int]], shape: Shape, extents: Shape
) -> bool:
    """True if a linear map takes the space to each element of an operand once."""
    wide = [d for d, size in enumerate(shape) if size > 1]
    for start, row, extent in zip(first, slopes, extents, strict=True):
        reach = 1
        for d in sorted((d for d in wide if row[d]), key=row.__getitem__):
            reach = reach * shape[d] if row[d] == reach else 0
        if start or reach != extent:
            return False
    return all(sum(row[d] != 0 for row in slopes) == 1 for d in wide)


def _seen(site: Site, value: Value, map_: AffineMap, shape: Shape) -> Value:
    """An operand over the space of iterations."""
    if map_.permutation is not None and isinstance(value, DataTile | Number):
        is_alone = isinstance(value, Number) and not value.shape
        return value if is_alone else value.over(shape, map_.permutation)
    extents = tuple(1 for _ in map_.results)
    tile = site.as_tile(value, extents).viewed(shape, *_linear(site, map_))
    return tile if tile.stick is not None or not tile.varies else site.copied(tile)


def _iterators(site: Site, shape: Shape) -> list[Number]:
    """The number of the iteration along each dim, over the space."""
    grids = np.ogrid[tuple(slice(n) for n in shape)]
    return [Number(np.asarray(grid)[None, None], site.level, shape=shape) for grid in grids]


def _run(site: Site, seen: Sequence[Value], shape: Shape, body: tuple[TileOp, ...]) -> list[Value]:
    """The values that ``body`` yields over the space of iterations."""
    tracer, region = site.tracer, site.op.regions[0]
    tracer.iterators = _iterators(site, shape)
    names = {str(own): value for (own, _), value in zip(region.arguments, seen, strict=False)}
    return tracer.run_body(body, site.level, names)


def _body(
    site: Site, seen: Sequence[Value], shape: Shape, to_output: Shape, target: DataTile | None
) -> DataTile:
    """The tile that the body yields; its last operation writes ``target``, if it can."""
    body, inner = site.op.regions[0].body, None
    if target is not None:
        inner = target.permuted(tuple(sorted(range(len(shape)), key=to_output.index)))
        makers = (op for op in body if body[-1].fields["values"][0] in op.results)
        site.tracer.targets |= {id(op): inner for op in makers}
    (made,) = _run(site, seen, shape, body)
    tile = site.as_tile(made, shape)
    return target if tile is inner and target is not None else tile.permuted(to_output)


def _reduction(
    site: Site, seen: Sequence[Value], shape: Shape, summed: Sequence[int], orders: Sequence[Shape]
) -> None:
    """Fold the dims ``summed`` of the space; ``orders``: the dims of each output."""
    fields, regions = site.op.fields, site.op.regions
    is_float = all(type_.element in FLOATS for type_ in fields["!outs"])
    folds: list[Fold] = []
    made = list(seen)
    if not regions:
        folds = [(_combiner(site), "")] * len(seen)
    elif is_float and (found := _folds(regions[0], len(seen))) is not None:
        folds, before = found
        end = TileOp("linalg.yield", fields={"values": tuple(n for _, n in folds)})
        made = _run(site, seen, shape, (*before, end))
    if not folds or not is_float or any(engine not in REDUCTIONS for engine, _ in folds):
        _stepwise(site, seen, shape, summed, orders, folds if not regions else [])
        return
    _totals(site, folds, [site.as_tile(value, shape) for value in made], summed, orders)


def _totals(
    site: Site,
    folds: Sequence[Fold],
    sources: Tiles,
    summed: Sequence[int],
    orders: Sequence[Shape],
) -> None:
    """Fold the dims ``summed`` of each of ``sources`` by an operation of the engine."""
    shape, outs = sources[0].shape, zip(site.op.fields["outs"], orders, strict=True)
    starts = [site.tile(name, tuple(shape[d] for d in order)) for name, order in outs]

    def total(number: int, target: DataTile | None = None) -> DataTile:
        """An output, in ``target`` if it can be written there: a total fills one stick of it."""
        engine, source, order = folds[number][0], sources[number], orders[number]
        present = [  # the total does not vary with dims that the source does not
            d for d, size in enumerate(shape) if source.pitches[d] or size == 1 or d in summed
        ]
        places = [order.index(d) for d in present if d not in summed]
        extents, start, place = tuple(shape[d] for d in order), starts[number], None
        is_whole = start.is_empty or start.value == IDENTITIES[engine]
        others = [k for k in range(len(order)) if k not in places]
        if target is not None and is_whole and others in ([], [target.stick]):
            is_filled = all(extents[k] == target.lanes for k in others)
            kept = [d for d in range(len(order)) if d not in others]
            place = target.permuted(kept) if is_filled else None
        axes = tuple(map(present.index, summed))
        own = reduced(site, engine, source.permuted(present), axes, place)
        if target is not None and own is place:
            return target
        whole = own.over(extents, places)
        if is_whole:
            return whole
        return site.pointwise(engine, [start, whole], extents, None if others else whole)

    if len(folds) == 1:
        for tile in (*sources, *starts):
            site.keep(tile, site.until)
        site.bind_computed(lambda target: total(0, target))
        return
    for k, name in enumerate(site.op.results):
        site.bind(total(k), name)


def _folds(region: Region, n_inputs: int) -> tuple[list[Fold], list[TileOp]] | None:
    """Per output the fold by one operation, and the operations before; None for other bodies."""
    *body, end = region.body
    yielded, folds, used = end.fields.get("values", ()), [], []
    for (own, _), name in zip(region.arguments[n_inputs:], yielded, strict=True):
        users = [op for op in body if own in op.all_uses()]
        fold = _fold(users, own, name)
        if fold is None or any(name in op.all_uses() for op in body):
            return None
        folds.append(fold)
        used += users
    return folds, [op for op in body if op not in used]


def _fold(users: Sequence[TileOp], own: str, result: str) -> Fold | None:
    """The fold of ``own`` by its users, whose last one gives ``result``."""
    if not users or result not in users[-1].results:
        return None
    names = [op.name for op in users]
    pair = [str(name) for name in users[0].uses()]
    if len(pair) != 2 or pair.count(own) != 1:
        return None
    other = pair[1 - pair.index(own)]
    if len(users) == 1:
        return operation_rows()[names[0]].engine, other
    chosen = [str(name) for name in users[-1].uses()]
    kind = users[0].fields["predicate"].text[1:2] if names[0] == "arith.cmpf" else ""
    is_choice = chosen[:1] == [*users[0].results] and chosen[1:] in (pair, pair[::-1])
    if names != ["arith.cmpf", "arith.select"] or kind not in ("g", "l") or not is_choice:
        return None
    return "maximum" if (kind == "g") == (chosen[1:] == pair) else "minimum", other


def _stepwise(
    site: Site,
    seen: Sequence[Value],
    shape: Shape,
    summed: Sequence[int],
    orders: Sequence[Shape],
    folds: Sequence[Fold],
) -> None:
    """Fold one point of the dims ``summed`` after another, the last dim fastest: an iteration each
    of the body, or of the one operation of ``folds``.
    """
    tracer, op = site.tracer, site.op
    kept = tuple(d for d in range(len(shape)) if d not in summed)
    inner_shape, stick = tuple(shape[d] for d in kept), len(kept) - 1 if kept else None
    if any(sorted(order) != list(kept) for order in orders):
        site.refuse("an output that lacks a parallel dim", "all parallel dims")
    sources = [site.as_tile(value, shape) for value in seen]
    for k, tile in enumerate(sources):
        if tile.varies and tile.stick in summed:  # along lanes
            place = site.slot(tile.shape, tile.element, kept[-1] if kept else None)
            sources[k] = site.padded(place)
            site.move(tile, place)
    totals = []
    for k, (name, order) in enumerate(zip(op.results, orders, strict=True)):
        begun = _start(site, k, folds).over(inner_shape, [kept.index(d) for d in order])
        totals.append(placed(site, name, begun, stick))
    counts = np.full(site.level.rows, prod(shape[d] for d in summed), np.int64)
    inner, trip = tracer.repeated(site.level, counts)
    at: Any = np.unravel_index(trip, [shape[d] for d in summed])
    points = {d: rows[:, None] for d, rows in zip(summed, at, strict=True)}
    first = [points.get(d, 0) for d in range(len(shape))]
    slopes = [[int(d == k) for d in kept] for k in range(len(shape))]
    slices = [source.viewed(inner_shape, first, slopes, inner) for source in sources]
    branch = site.at(inner)
    if folds:
        for (engine, _), own, total in zip(folds, slices, totals, strict=True):
            made = combined(branch, engine, [own, total], total)
            copy_back(branch, [(made, total)])
    else:
        iterators = iter(_iterators(branch, inner_shape))
        tracer.iterators = [
            Number(points[d], inner) if d in points else next(iterators) for d in range(len(shape))
        ]
        names = [str(name) for name, _ in op.regions[0].arguments]
        others: dict[str, Value] = dict(zip(names, slices, strict=False))
        carried = dict(zip(names[len(slices) :], totals, strict=True))
        yields = op.regions[0].body[-1].fields["values"]
        in_places(branch, op.regions[0], carried, others, yields)
    for name, total, order in zip(op.results, totals, orders, strict=True):
        site.bind(total.permuted(tuple(map(kept.index, order))), name)


def _start(site: Site, number: int, folds: Sequence[Fold]) -> DataTile:
    """The start value of an output: of tensor.empty the identity of the operation."""
    name, type_ = site.op.fields["outs"][number], site.op.fields["!outs"][number]
    start = site.tile(name, type_.extents)
    if not start.is_empty:
        return start
    engine = folds[number][0] if folds else ""
    if engine not in IDENTITIES:
        site.refuse("a start of this reduction without a value", "linalg.fill")
    return site.filled(IDENTITIES[engine], type_.element, type_.extents)
