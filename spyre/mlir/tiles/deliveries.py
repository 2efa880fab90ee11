"""Deliveries between tiles: who produces, who consumes, by groups (KTIR reference, M9).

Sets of tiles are enumerated: the grid has at most 32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spyre.mlir.program import AffineSet
from spyre.mlir.tiles.reading import affine
from spyre.mlir.tiles.syntax import Alias, TileModule, TileOp, Type
from spyre.rules import Fault

if TYPE_CHECKING:
    from spyre.mlir.tiles.rules import Context

Faults = Iterator[Fault[int]]
Members = tuple[tuple[int, ...], ...]
"""The tiles of each group, in ascending order; groups in ascending order of their number."""
_RANGE = np.arange(-64, 128)


def groups_of(module: TileModule, future: Type) -> tuple[int, ...]:
    """Numbers of the groups of a future."""
    text = future.details[1]
    found = module.resolved(Alias(text[1:])) if text[0] == "#" else affine(text, 0)
    return () if found is None else _points(found, ())


def members(module: TileModule, value: Any, future: Type) -> Members | None:
    """The tiles in ``value``, a set of tiles per group; None if it is no such set."""
    points = module.resolved(value)
    if not isinstance(points, AffineSet) or points.n_dims != 1 or points.n_symbols > 1:
        return None
    groups = groups_of(module, future)
    return tuple(_points(points, (group,)[: points.n_symbols]) for group in groups)


def sources(
    module: TileModule, op: TileOp, producers: Members, consumers: Members
) -> dict[int, tuple[int, ...]]:
    """The tiles that each consumer depends on: those named, else all producers of its group."""
    points = module.resolved(op.fields.get("dependency"))
    return {
        tile: made if points is None else _points(points, (tile,) * points.n_symbols)
        for made, wanted in zip(producers, consumers, strict=True)
        for tile in wanted
    }


def _points(points: Any, symbols: Sequence[int]) -> tuple[int, ...]:
    inside = np.broadcast_to(points.contains((_RANGE,), symbols), _RANGE.shape)
    return tuple(_RANGE[inside].tolist())


def _group_faults(context: Context, key: str, future: Type) -> Faults:
    """Sets of tiles: there are some, in the grid, and no tile is in two groups (R1)."""
    from spyre.mlir.tiles.rules import grid_of

    n_tiles = int(np.prod(grid_of(context.function)[0]))
    found = members(context.module, context.op.fields[key], future)
    if found is None:
        yield context.fault("SPY190", f"{key} are no set of tiles", "affine_set<(i)[g] : (…)>")
        return
    tiles = [tile for group in found for tile in group]
    if outside := [tile for tile in tiles if not 0 <= tile < n_tiles]:
        message = f"{key} are outside of the grid"
        yield context.fault("SPY190", message, f"tiles 0 … {n_tiles - 1}", outside)
    if repeated := sorted({tile for tile in tiles if tiles.count(tile) > 1}):
        message = f"tiles are in several groups of {key}"
        yield context.fault("SPY190", message, "each tile in one group", repeated)
    if not tiles:
        yield context.fault("SPY190", f"there are no {key}", "at least one tile")


def produce(context: Context) -> Faults:
    """inter_tile_produce."""
    future = context.type("result")
    if future.kind != "tile_future":
        expected = "!ktdp.tile_future<(…), groups = …>"
        yield context.fault("SPY182", "the result is no future", expected, future)
        return
    yield from _group_faults(context, "producers", future)


def deliver(context: Context) -> Faults:
    """inter_tile_reduce and inter_tile_consume."""
    module, op, future = context.module, context.op, context.type("future")
    if future.kind != "tile_future":
        yield context.fault("SPY182", "the operand is no future", "!ktdp.tile_future<…>", future)
        return
    parts, starts = future.details[0], op.fields.get("!identity", ())
    for key, types in (("result", context.type("result")), ("identity", starts)):
        if key == "result" or op.name == "ktdp.inter_tile_reduce":
            message = f"number of parts of the future and of {key}"
            yield from context.equal("SPY183", message, len(parts), len(types))
        for part, type_ in zip(parts, types, strict=False):
            if (part.element, part.count) != (type_.element, type_.count):
                message = f"{key} and the future's part differ in type"
                yield context.fault("SPY181", message, part, type_)
    faults = list(_group_faults(context, "consumers", future))
    yield from faults
    made = context.maker(op.fields["future"])
    if faults or made is None or "producers" not in made.fields:
        return
    producers = members(module, made.fields["producers"], future)
    consumers = members(module, op.fields["consumers"], future)
    if producers is not None and consumers is not None:
        yield from _dependencies(context, producers, consumers)


def _dependencies(context: Context, producers: Members, consumers: Members) -> Faults:
    """Each consumer depends on producers of its group only (R3), on equally many (R6), and every
    producer is named (R4); consume has one source.
    """
    needed = sources(context.module, context.op, producers, consumers)
    for made, wanted in zip(producers, consumers, strict=True):
        for consumer in wanted:
            if strangers := [tile for tile in needed[consumer] if tile not in made]:
                message = f"tile {consumer} depends on tiles {strangers}, which do not produce"
                yield context.fault("SPY190", message, f"producers {list(made)}", strangers)
                return
        named = {tile for consumer in wanted for tile in needed[consumer]}
        if unused := sorted({*made} - named) if wanted else []:
            message = f"producers {unused} are named by no consumer"
            yield context.fault("SPY190", message, "a consumer for each producer", unused)
    counts = {len(tiles) for tiles in needed.values()}
    if len(counts) > 1:
        message = "consumers depend on different numbers of producers"
        yield context.fault("SPY190", message, "equally many", sorted(counts))
    elif context.op.name == "ktdp.inter_tile_consume" and counts != {1}:
        yield context.fault("SPY190", "a consumer has several producers", 1, max(counts))
