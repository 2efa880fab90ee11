"""Deliveries between tiles: partial values go through device memory, one place per tile.

A producer copies its parts there, a consumer reads the places of the tiles that it depends on:
statement k of all tiles runs before statement k + 1, so the places may be used again in the next
trip of a loop. A reduction folds the producers' parts in ascending order of tiles with the
operations of its region.
"""

from __future__ import annotations

import numpy as np

from spyre.errors import DeviceFault
from spyre.hw.tiles.control import in_places
from spyre.hw.tiles.data import reshaped
from spyre.hw.tiles.trace import Site
from spyre.hw.tiles.values import BoolArray, DataTile, Future, Level, Number, Value
from spyre.layout import Int64Array
from spyre.mlir.tiles import Members, groups_of, members, sources


def trace_produce(site: Site) -> None:
    """inter_tile_produce: the parts of every producer, in device memory."""
    tracer, region = site.tracer, site.op.regions[0]
    groups = groups_of(tracer.program.module, site.op.fields["!result"])
    producers = members(tracer.program.module, site.op.fields["producers"], groups)
    assert producers is not None
    branch = site.at(site.level.restricted(_mask(producers, site.level)[None]))
    of_tile = [producers.group_of(tile) for tile in range(site.n_tiles)]
    numbers = np.array([groups[g] if g is not None else 0 for g in of_tile], np.int64)
    group = Number(numbers[None], site.level)
    names: dict[str, Value] = {name: group for name, _ in region.arguments}
    made = tracer.run_body(region.body, branch.level, names)
    types = region.body[-1].fields["!values"]
    parts = tuple(
        _published(branch, branch.as_tile(v, type_.extents))
        for v, type_ in zip(made, types, strict=True)
    )
    site.bind(Future(parts, producers, site.level, branch.level.active))


def _mask(tiles: Members, level: Level) -> BoolArray:
    found = np.zeros(level.active.shape[1], np.bool_)
    found[[tile for group in tiles.groups for tile in group]] = True
    return found


def _published(site: Site, tile: DataTile) -> DataTile:
    """A copy of every tile's part in device memory, where other tiles can read it."""
    target = site.reserved(tile.shape, tile.element, tile.lane_dim)
    site.write(tile, target)
    return target


def trace_deliver(site: Site) -> None:
    """inter_tile_reduce and inter_tile_consume."""
    op, module = site.op, site.tracer.program.module
    future = site.one_of(Future, op.fields["future"])
    consumers = members(module, op.fields["consumers"], groups_of(module, op.fields["!future"]))
    assert consumers is not None
    wanted: list[tuple[int, ...]] = []
    for tile in range(site.n_tiles):
        group = consumers.group_of(tile)
        given = sources(module, op, tile) if group is not None else ()
        own = future.producers.groups[group] if group is not None else ()
        wanted.append(own if given is None else given)
    _check_arrival(site, future, consumers, wanted)
    branch = site.at(site.level.restricted(_mask(consumers, site.level)[None]))
    steps = max(map(len, wanted))
    order = np.array([[*w, *[0] * (steps - len(w))] for w in wanted], np.int64).T
    if op.name == "ktdp.inter_tile_consume":
        ends = [site.tracer.last_use(op, name) for name in op.results]
        parts = zip(_read(future, order[0]), ends, strict=True)
        tiles = [branch.copy(part, until) for part, until in parts]
    else:
        tiles = _folded(branch, future, order)
    for name, whole, type_ in zip(op.results, tiles, op.fields["!result"], strict=True):
        site.bind(reshaped(branch, whole, type_.extents), name)
        site.tracer.consumers[name] = _mask(consumers, site.level)


def _read(future: Future, producer: Int64Array) -> list[DataTile]:
    """The parts of tile ``producer[t]`` as tile t reads them."""
    return [part.of_tiles(producer) for part in future.parts]


def _check_arrival(
    site: Site, future: Future, consumers: Members, wanted: list[tuple[int, ...]]
) -> None:
    """All tiles of a group reach a delivery, after their producers, or none: DeviceFault SPY415."""
    level = site.level
    made = np.broadcast_to(level.lift(future.produced, future.level), level.active.shape)
    for group in consumers.groups:
        here = level.active[:, list(group)]
        needed = sorted({p for tile in group for p in wanted[tile]})
        late = ~here.all(axis=1) | ~made[:, needed].all(axis=1)
        if not (here.any(axis=1) & late).any():
            continue
        row = int(np.flatnonzero(here.any(axis=1) & late)[0])
        absent = {t for t in group if not level.active[row, t]} | {
            p for p in needed if not made[row, p]
        }
        raise DeviceFault(
            "SPY415", f"{site.op.name}: deadlock, some tiles of a group never arrive", site.place,
            expected=f"all of tiles {sorted({*group, *needed})}",
            found=f"tiles {sorted(absent)} take another branch",
        )  # fmt: skip


def _folded(site: Site, future: Future, order: Int64Array) -> list[DataTile]:
    """The identity folded with the parts of the producers ``order[k, tile]``, one after another."""
    tracer, op, region, totals = site.tracer, site.op, site.op.regions[0], []
    left, right = region.arguments[: len(future.parts)], region.arguments[len(future.parts) :]
    end = max(tracer.places[id(inner)] for inner in region.body)
    for result, name, part in zip(op.results, op.fields["identity"], future.parts, strict=True):
        until = max(end, tracer.last_use(op, result))
        totals.append(site.slot(part.shape, part.element, part.stick, until))
        site.write(site.tile(name, part.shape), totals[-1])
    for producer in order:
        parts: dict[str, Value] = {
            name: part for (name, _), part in zip(right, _read(future, producer), strict=True)
        }
        carried: dict[str, Value] = {n: t for (n, _), t in zip(left, totals, strict=True)}
        yields = region.body[-1].fields["values"]
        site.copy_back(in_places(site, region, carried, parts, yields), totals)
    return totals
