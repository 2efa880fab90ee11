"""Deliveries between tiles: partial values go through device memory, one place per tile.

A producer copies its parts there, a consumer reads the places of the tiles that it depends on:
statement k of all tiles runs before statement k + 1, so the places may be used again in the next
trip of a loop. A reduction folds the producers' parts in ascending order of tiles with the
operations of its region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spyre.errors import DeviceFault
from spyre.hw.tiles.control import direct_targets
from spyre.hw.tiles.trace import Tracer
from spyre.hw.tiles.values import BoolArray, DataTile, Future, Level, Number, slot_pitches
from spyre.mlir.tiles import Members, TileOp, groups_of, members, sources

if TYPE_CHECKING:
    from spyre.layout import Int64Array


def trace_produce(tracer: Tracer, op: TileOp, level: Level) -> None:
    """inter_tile_produce: the parts of every producer, in device memory."""
    module, future = tracer.program.module, op.fields["!result"]
    groups = groups_of(module, future)
    producers = members(module, op.fields["producers"], groups)
    assert producers is not None
    own = _mask(producers, level)
    branch = level.restricted(own[None])
    region = op.regions[0]
    of_tile = [producers.group_of(tile) for tile in range(len(own))]
    numbers = np.array([groups[g] if g is not None else 0 for g in of_tile], np.int64)
    group = Number(numbers[None], level)
    tracer.scopes.append({name: (group, tracer.now) for name, _ in region.arguments})
    tracer.run_body(region.body, branch)
    names = region.body[-1].fields["values"]
    given = [
        tracer.tile(name, type_.extents, type_.element)
        for name, type_ in zip(names, region.body[-1].fields["!values"], strict=True)
    ]
    tracer.scopes.pop()
    parts = tuple(_published(tracer, op, tile, branch) for tile in given)
    value = Future(parts, producers, level, branch.active)
    tracer.scopes[-1][op.results[0]] = value, tracer.places[id(op)]


def _mask(tiles: Members, level: Level) -> BoolArray:
    found = np.zeros(level.active.shape[1], np.bool_)
    found[[tile for group in tiles.groups for tile in group]] = True
    return found


def _published(tracer: Tracer, op: TileOp, tile: DataTile, level: Level) -> DataTile:
    """A copy of every tile's part in device memory, where other tiles can read it."""
    stick = tile.stick if tile.varies else (len(tile.shape) - 1 if tile.shape else None)
    pitches, size = slot_pitches(tile.shape, tile.element, stick)
    area = tracer.reserve(size * level.active.shape[1])
    offsets = area + size * np.arange(level.active.shape[1])[None]
    target = DataTile(
        tile.shape, tile.element, tracer.reserved_owner, offsets, level, tuple(pitches), stick
    )
    return tracer.pointwise(op, "identity", [tile], tile.shape, level, target, tracer.now)


def trace_deliver(tracer: Tracer, op: TileOp, level: Level) -> None:
    """inter_tile_reduce and inter_tile_consume."""
    future = tracer.value(op.fields["future"])
    assert isinstance(future, Future)
    module = tracer.program.module
    groups = groups_of(module, op.fields["!future"])
    consumers = members(module, op.fields["consumers"], groups)
    assert consumers is not None
    wanted: list[tuple[int, ...]] = []
    for tile in range(level.active.shape[1]):
        group = consumers.group_of(tile)
        given = sources(module, op, tile) if group is not None else ()
        own = future.producers.groups[group] if group is not None else ()
        wanted.append(own if given is None else given)
    _check_arrival(tracer, op, future, consumers, wanted, level)
    branch = level.restricted(_mask(consumers, level)[None])
    steps = max(map(len, wanted))
    order = np.array([[*w, *[0] * (steps - len(w))] for w in wanted], np.int64).T
    if op.name == "ktdp.inter_tile_consume":
        number = tracer.places[id(op)]
        tiles = []
        for k, part in enumerate(_read(future, order[0])):
            until = tracer.uses.get((number, op.results[k]), number)
            tiles.append(tracer.pointwise(op, "identity", [part], part.shape, branch, None, until))
    else:
        tiles = _folded(tracer, op, future, order, branch)
    for name, whole, type_ in zip(op.results, tiles, op.fields["!result"], strict=True):
        shaped = whole.reshaped(type_.extents)
        if shaped is None:
            tracer.refuse(op, "a result of another shape than the parts", found=str(type_))
        tracer.bind(op, name, shaped)


def _read(future: Future, producer: Int64Array) -> list[DataTile]:
    """The parts of tile ``producer[t]`` as tile t reads them."""
    return [part.of_tiles(producer) for part in future.parts]


def _check_arrival(
    tracer: Tracer,
    op: TileOp,
    future: Future,
    consumers: Members,
    wanted: list[tuple[int, ...]],
    level: Level,
) -> None:
    """All tiles of a group reach a delivery, after their producers, or none: DeviceFault SPY415."""
    made = level.lift(future.produced, future.level)
    made = np.broadcast_to(made, level.active.shape)
    for group in consumers.groups:
        here = level.active[:, list(group)]
        partly = here.any(axis=1) & ~here.all(axis=1)
        needed = sorted({p for tile in group for p in wanted[tile]})
        unmade = here.any(axis=1) & ~made[:, needed].all(axis=1)
        if not (partly | unmade).any():
            continue
        row = int(np.flatnonzero(partly | unmade)[0])
        absent = {t for t in group if not level.active[row, t]} | {
            p for p in needed if not made[row, p]
        }
        raise DeviceFault(
            "SPY415", f"{op.name}: deadlock, some tiles of a group never arrive", tracer.place(op),
            expected=f"all of tiles {sorted({*group, *needed})}",
            found=f"tiles {sorted(absent)} take another branch",
        )  # fmt: skip


def _folded(
    tracer: Tracer, op: TileOp, future: Future, order: Int64Array, level: Level
) -> list[DataTile]:
    """The identity folded with the parts of the producers ``order[k, tile]``, one after another."""
    region, number = op.regions[0], tracer.places[id(op)]
    count = len(future.parts)
    left, right = region.arguments[:count], region.arguments[count:]
    end = max(tracer.places[id(inner)] for inner in region.body)
    totals = []
    for k, (name, part) in enumerate(zip(op.fields["identity"], future.parts, strict=True)):
        until = max(end, tracer.uses.get((number, op.results[k]), end))
        total = tracer.slot(part.shape, part.element, part.stick, level, until)
        start = tracer.tile(name, part.shape, part.element)
        totals.append(tracer.pointwise(op, "identity", [start], part.shape, level, total, until))
    yields = region.body[-1].fields["values"]
    for producer in order:
        pairs = zip((*left, *right), (*totals, *_read(future, producer)), strict=True)
        outer = tracer.targets
        tracer.scopes.append({name: (tile, number) for (name, _), tile in pairs})
        tracer.targets = direct_targets(region, [n for n, _ in left], yields, totals)
        tracer.run_body(region.body, level)
        made = [tracer.tile(n, t.shape, t.element) for n, t in zip(yields, totals, strict=True)]
        tracer.scopes.pop()
        tracer.targets = outer
        tracer.copy_back(op, made, totals, level)
    return totals
