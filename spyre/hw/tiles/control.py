"""scf.for and scf.if: all iterations of a loop at once, branches under a mask.

A loop's carried tiles have one place each: the value of a trip is written there, at once where the
operation that computes it may overwrite its operands, else by a copy at the end of the trip.
Carried numbers are computed trip by trip before the body is traced, by the operations that they
depend on.
Deliveries between tiles: partial values go through device memory, one place per tile. A producer
copies its parts there, a consumer reads the places of the tiles that it depends on: statement k of
all tiles runs before statement k + 1, so the places may be used again in the next trip of a loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.tiles.data import reshaped
from spyre.hw.tiles.numbers import as_unsigned, wrapped
from spyre.hw.tiles.trace import MOST_INSTANCES, Site, computes_numbers
from spyre.hw.tiles.values import BoolArray, DataTile, Future, Level, Number, Shape, Value
from spyre.layout import Int64Array
from spyre.mlir.tiles import TERMINATORS, Members, Region, TileOp, groups_of, members, sources

ELEMENTWISE = ("arith.", "math.", "linalg.add", "linalg.sub", "linalg.mul", "linalg.m")
Trips = tuple[Int64Array, Int64Array, Int64Array]
"""A loop's lower bound, step and number of trips, [row, tile]."""


def _trips_of(site: Site) -> Trips:
    """LaunchError SPY150 for a step below 1, SPY175 for too many trips."""
    names = [site.op.fields[key] for key in ("lower", "upper", "step")]
    active, bounds = site.level.active, site.numbers(names)
    if "sign" in site.op.fields:
        bounds = tuple(as_unsigned(x, _kind_of(site)) for x in bounds)
    lower, upper, step = (np.broadcast_to(x, active.shape) for x in bounds)
    if (bad := active & (step <= 0)).any():
        row, tile = np.argwhere(bad)[0]
        message, found = "the step of a loop is not positive", f"{step[row, tile]} on tile {tile}"
        site.fail(LaunchError, "SPY150", message, "a step above 0", found)
    count = np.where(active, np.maximum(-((lower - upper) // np.maximum(step, 1)), 0), 0)
    if (total := int(count.max(axis=1).sum())) > MOST_INSTANCES:
        most = f"at most {MOST_INSTANCES}"
        site.fail(LaunchError, "SPY175", "too many iterations", most, total)
    return lower, step, count


def _variable(site: Site, values: Int64Array, level: Level) -> Number:
    """A loop's induction variable."""
    return Number(wrapped(values, _kind_of(site)), level, kind=_kind_of(site))


def _kind_of(site: Site) -> str:
    return site.op.fields["!T"].kind if "!T" in site.op.fields else "index"


def trace_for(site: Site) -> None:
    """scf.for: its body once, for all trips; the tiles it yields replace those that it carries."""
    fields, region = site.op.fields, site.op.regions[0]
    trips, numbers = _trips_of(site), _carried_numbers(site)
    finals, history = _counted(site, trips, numbers)
    (induction, _), *arguments = region.arguments
    inits, types = fields.get("inits", ()), fields.get("!types", ())
    names = [str(name) for name, _ in arguments]
    rows = list(zip(site.op.results, names, inits, types, _yields(region), strict=True))
    places: dict[str, DataTile] = {}
    for name, own, init, type_, _ in rows:
        if own not in numbers:
            tile = site.tile(init, type_.extents)
            places[own] = placed(site, name, tile, tile.lane_dim)
    inner, trip, values = _inner(site, trips)
    known: dict[str, Value] = {str(induction): _variable(site, values, inner)}
    for own, every in history.items():
        known[own] = replace(every, values=every.values[trip, inner.parent_rows], level=inner)
    yields = [value for _, own, _, _, value in rows if own in places]
    in_places(site.at(inner), region, places, known, yields)
    for name, own, *_ in rows:
        site.bind(places[own] if own in places else finals[own], name)


def _inner(site: Site, trips: Trips) -> tuple[Level, Int64Array, Int64Array]:
    """The level of a loop's body, its trip per row, and the values of its induction variable."""
    lower, step, count = trips
    inner, trip = site.tracer.repeated(site.level, count.max(axis=1))
    rows = inner.parent_rows
    values = lower[rows] + trip[:, None] * step[rows]
    active = inner.active & (trip[:, None] < count[rows])
    first = values[np.arange(len(values)), active.argmax(axis=1)] if len(values) else trip
    indices = np.column_stack((site.level.indices[rows], first))
    return replace(inner, active=active, indices=indices), trip, values


def _yields(region: Region) -> tuple[str, ...]:
    ends = (op for op in region.body[-1:] if op.name in TERMINATORS)
    return next((op.fields.get("values", ()) for op in ends), ())


def _carried_numbers(site: Site) -> dict[str, str]:
    """Arguments of a loop whose numbers are known before it runs, with the values in their place:
    those computed from the induction variable, each other, and numbers from outside the loop.
    """
    region, scope = site.op.regions[0], site.tracer.scope.get
    induction, *names = (str(name) for name, _ in region.arguments)
    triples = zip(names, _yields(region), site.op.fields.get("inits", ()), strict=False)
    found = {own: new for own, new, init in triples if isinstance(scope(init), Number)}

    def is_known(value: str) -> bool:
        ops, used = _slice(region, [value])
        every = [o for op in ops for o in (op, *op.inside())]
        inside = {induction, *found, *(str(name) for o in every for name in o.results)}
        inside |= {str(name) for o in every for own in o.regions for name, _ in own.arguments}
        outside = (scope(name) for name in used if name not in inside)
        return all(map(computes_numbers, every)) and all(isinstance(x, Number) for x in outside)

    while lost := [own for own, new in found.items() if not is_known(new)]:
        found = {own: new for own, new in found.items() if own not in lost}
    return found


def _slice(region: Region, names: Sequence[str]) -> tuple[list[TileOp], set[str]]:
    """The operations that values depend on, in order, and every value used."""
    used, ops = {str(name) for name in names}, []
    for op in reversed(region.body[:-1]):
        if used & {*map(str, op.results)}:
            ops.append(op)
            used |= {*map(str, op.all_uses())}
    return ops[::-1], used


def _counted(
    site: Site, trips: Trips, numbers: Mapping[str, str]
) -> tuple[dict[str, Number], dict[str, Number]]:
    """Carried numbers after the loop and, one trip after another, in each: [trip, row, tile]."""
    region, level, (lower, step, count) = site.op.regions[0], site.level, trips
    (induction, _), *arguments = region.arguments
    now: dict[str, Number] = {}
    for (own, _), init in zip(arguments, site.op.fields.get("inits", ()), strict=True):
        if own in numbers:
            begun = site.number(init, True)
            values = np.broadcast_to(begun.at(level), level.active.shape)
            now[own] = replace(begun, values=values, level=level)
    ops, _ = _slice(region, [*numbers.values()])
    body = (*ops, TileOp("scf.yield", fields={"values": tuple(numbers.values())}))
    history: dict[str, list[Any]] = {own: [value.values] for own, value in now.items()}
    for number in range(int(count.max(initial=0)) if numbers else 0):
        running = count > number
        variable = _variable(site, lower + number * step, level)
        made = site.tracer.run_body(body, level.restricted(running), {induction: variable, **now})
        for name, value in zip(numbers, made, strict=True):
            now[name] = _merged(site, running, value, now[name])
            history[name].append(now[name].values)
    every = {own: replace(now[own], values=np.stack(rows)) for own, rows in history.items()}
    return now, every


def _merged(site: Site, mask: Any, yes: Value, no: Value) -> Number:
    """The number ``yes`` on the tiles of ``mask``, else ``no``."""
    assert isinstance(yes, Number)
    assert isinstance(no, Number)
    if yes.origin != no.origin:
        site.refuse("a choice between addresses of two arguments", "an address of one")
    arrays = (x.values if x.level.parent is site.level else x.at(site.level) for x in (yes, no))
    return replace(yes, values=np.where(mask, *arrays), level=site.level)


def placed(site: Site, name: str, tile: DataTile, stick: int | None) -> DataTile:
    """A place for the result ``name``, which holds ``tile`` at first."""
    until = max(site.until, site.tracer.last_use(site.op, name))
    place = site.slot(tile.shape, tile.element, stick, until)
    site.write(tile, place)
    return place


def in_places(
    site: Site,
    region: Region,
    carried: Mapping[str, DataTile],
    others: Mapping[str, Value],
    yields: Sequence[str],
) -> None:
    """Trace a region whose values ``yields`` replace the tiles in ``carried``.

    The operation of a value writes the place of the old one if it is elementwise, and nothing reads
    the old value afterwards.
    """
    for (argument, place), name in zip(carried.items(), yields, strict=True):
        maker = next((k for k, o in enumerate(region.body) if name in o.results), None)
        if maker is None or not region.body[maker].name.startswith(ELEMENTWISE):
            continue
        if not any(argument in o.all_uses() for o in region.body[maker + 1 :]):
            site.tracer.targets[id(region.body[maker])] = place
    body = tuple(op for op in region.body if op.name not in TERMINATORS)
    end = TileOp("scf.yield", fields={"values": tuple(yields)})
    made = site.tracer.run_body((*body, end), site.level, {**others, **carried})
    pairs = zip(made, carried.values(), strict=True)
    copy_back(site, [(site.as_tile(value, place.shape), place) for value, place in pairs])


def copy_back(site: Site, pairs: Sequence[tuple[DataTile, DataTile]]) -> None:
    """Copy values to the places of those they replace, through another place where they are one of
    those themselves.
    """
    moved = []
    for tile, place in pairs:
        if not tile.begins_as(place) or tile.differs(place):
            through = any(tile.begins_as(other) for _, other in pairs)
            moved.append((site.copy(tile, site.now) if through else tile, place))
    for tile, place in moved:
        site.write(tile, place)


def trace_if(site: Site) -> None:
    """scf.if: both branches, each on its tiles; tiles get one place, numbers are merged."""
    condition = np.broadcast_to(
        site.number(site.op.fields["condition"]).at(site.level), site.level.active.shape
    ).astype(np.bool_)
    masks = zip((condition, ~condition), site.op.regions, strict=False)
    branches = [(site.at(site.level.restricted(mask)), region) for mask, region in masks]
    made = [site.tracer.run_body(region.body, branch.level) for branch, region in branches]
    types, pairs = site.op.fields.get("!result", ()), zip(*made, strict=False)
    for name, type_, (yes, no) in zip(site.op.results, types, pairs, strict=False):
        if isinstance(yes, Number) and isinstance(no, Number) and not type_.is_shaped:
            site.bind(_merged(site, condition, yes, no), name)
            continue
        tiles = [b.as_tile(x, type_.extents) for (b, _), x in zip(branches, (yes, no), strict=True)]
        place = placed(branches[0][0], name, tiles[0], tiles[0].lane_dim)
        branches[1][0].write(tiles[1], place)
        site.bind(place, name)


def _on_members(site: Site, tiles: Members) -> Site:
    """The operation on the tiles of groups."""
    mask = np.isin(np.arange(site.n_tiles), [tile for group in tiles for tile in group])
    return site.at(site.level.restricted(mask[None]))


def trace_produce(site: Site) -> None:
    """inter_tile_produce: the parts of every producer, in device memory, where others read them."""
    module, region, future = site.tracer.program.module, site.op.regions[0], site.op.fields
    producers = members(module, future["producers"], future["!result"])
    assert producers is not None
    branch, numbers = _on_members(site, producers), np.zeros(site.n_tiles, np.int64)
    for number, tiles in zip(groups_of(module, future["!result"]), producers, strict=True):
        numbers[[*tiles]] = number
    names: dict[str, Value] = dict.fromkeys(
        (name for name, _ in region.arguments), Number(numbers[None], site.level)
    )
    made, parts = site.tracer.run_body(region.body, branch.level, names), []
    for value, type_ in zip(made, region.body[-1].fields["!values"], strict=True):
        tile = branch.as_tile(value, type_.extents)
        parts.append(branch.slot(tile.shape, tile.element, tile.lane_dim, is_local=False))
        branch.write(tile, parts[-1])
    site.bind(Future(tuple(parts), producers, branch.level))


def trace_deliver(site: Site) -> None:
    """inter_tile_reduce and inter_tile_consume."""
    op, module = site.op, site.tracer.program.module
    future = site.one_of(Future, op.fields["future"])
    consumers = members(module, op.fields["consumers"], op.fields["!future"])
    assert consumers is not None
    needed = sources(module, op, future.producers, consumers)
    _check_arrival(site, future, consumers, needed)
    branch, steps = _on_members(site, consumers), max(map(len, needed.values()))
    order = np.zeros((steps, site.n_tiles), np.int64)
    for tile, own in needed.items():
        order[: len(own), tile] = own
    if op.name == "ktdp.inter_tile_consume":
        ends = [site.tracer.last_use(op, name) for name in op.results]
        parts = zip(_read(future, order[0]), ends, strict=True)
        tiles = [branch.copy(part, until) for part, until in parts]
    else:
        tiles = _folded(branch, future, order)
    for name, whole, type_ in zip(op.results, tiles, op.fields["!result"], strict=True):
        value = reshaped(branch, whole, type_.extents)
        site.bind(value, name)
        mask = np.isin(np.arange(site.n_tiles), [*needed])
        site.tracer.delivered[id(value)] = value, mask


def _read(future: Future, producer: Int64Array) -> list[DataTile]:
    """The parts of tile ``producer[t]`` as tile t reads them."""
    return [replace(part, offsets=part.offsets[:, producer]) for part in future.parts]


def _check_arrival(
    site: Site, future: Future, consumers: Members, wanted: Mapping[int, Shape]
) -> None:
    """All tiles of a group reach a delivery, after their producers, or none: DeviceFault SPY415."""
    level, produced = site.level, future.level
    made = np.broadcast_to(level.lift(produced.active, produced.parent), level.active.shape)
    for group in consumers:
        needed = sorted({p for tile in group for p in wanted[tile]})
        here: BoolArray = level.active[:, [*group]]
        late = here.any(axis=1) & ~(here.all(axis=1) & made[:, needed].all(axis=1))
        if late.any():
            row = int(np.flatnonzero(late)[0])
            absent = {t for t in group if not level.active[row, t]}
            absent |= {p for p in needed if not made[row, p]}
            message = f"{site.op.name}: deadlock, some tiles of a group never arrive"
            expected = f"all of tiles {sorted({*group, *needed})}"
            found = f"tiles {sorted(absent)} take another branch"
            site.fail(DeviceFault, "SPY415", message, expected, found)


def _folded(site: Site, future: Future, order: Int64Array) -> list[DataTile]:
    """The identity folded with the parts of the producers ``order[k, tile]``, one after another."""
    op, region, count = site.op, site.op.regions[0], len(future.parts)
    names = [str(name) for name, _ in region.arguments]
    triples = zip(op.results, op.fields["identity"], future.parts, strict=True)
    totals = [
        placed(site, result, site.tile(begun, part.shape), part.stick)
        for result, begun, part in triples
    ]
    for producer in order:
        parts: dict[str, Value] = dict(zip(names[count:], _read(future, producer), strict=True))
        carried = dict(zip(names[:count], totals, strict=True))
        in_places(site, region, carried, parts, _yields(region))
    return totals
