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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.tiles.data import reshaped
from spyre.hw.tiles.trace import MOST_INSTANCES, Site, computes_numbers
from spyre.hw.tiles.values import BoolArray, DataTile, Future, Level, Number, Value
from spyre.layout import Int64Array
from spyre.mlir.tiles import TERMINATORS, Members, Region, TileOp, groups_of, members, sources

ELEMENTWISE = ("arith.", "math.", "linalg.add", "linalg.sub", "linalg.mul", "linalg.m")


@dataclass(frozen=True, eq=False)
class Trips:
    """A loop's lower bound, step and number of trips, [row, tile]."""

    lower: Int64Array
    step: Int64Array
    count: Int64Array


def _trips_of(site: Site) -> Trips:
    """LaunchError SPY150 for a step below 1, SPY175 for too many trips."""
    names = [site.op.fields[key] for key in ("lower", "upper", "step")]
    active = site.level.active
    lower, upper, step = (np.broadcast_to(x, active.shape) for x in site.numbers(names))
    if (bad := active & (step <= 0)).any():
        row, tile = (int(k) for k in np.argwhere(bad)[0])
        message, found = "the step of a loop is not positive", f"{step[row, tile]} on tile {tile}"
        site.fail(LaunchError, "SPY150", message, "a step above 0", found)
    count = np.where(active, np.maximum(-((lower - upper) // np.maximum(step, 1)), 0), 0)
    if (total := int(count.max(axis=1).sum())) > MOST_INSTANCES:
        most = f"at most {MOST_INSTANCES}"
        site.fail(LaunchError, "SPY175", "too many iterations", most, total)
    return Trips(lower, step, count)


def _kind(site: Site) -> str:
    """Type of a loop's induction variable."""
    type_ = site.op.fields.get("!T")
    return "index" if type_ is None else type_.kind


def _inner(site: Site, trips: Trips) -> tuple[Level, Int64Array, Number]:
    """The level of a loop's body, its trip per row, and its induction variable."""
    inner, trip = site.tracer.repeated(site.level, trips.count.max(axis=1))
    rows = inner.parent_rows
    values = trips.lower[rows] + trip[:, None] * trips.step[rows]
    active = inner.active & (trip[:, None] < trips.count[rows])
    first = values[np.arange(len(values)), active.argmax(axis=1)] if len(values) else trip
    indices = np.column_stack((site.level.indices[rows], first))
    inner = replace(inner, active=active, indices=indices)
    return inner, trip, Number(values, inner, kind=_kind(site))


def trace_for(site: Site) -> None:
    """scf.for: traced again if the tiles it yields have other dims along lanes than its first."""
    fields, region, tracer = site.op.fields, site.op.regions[0], site.tracer
    trips, numbers = _trips_of(site), _carried_numbers(site)
    finals, history = _counted(site, trips, numbers)
    arguments = [str(name) for name, _ in region.arguments[1:]]
    inits, types = fields.get("inits", ()), fields.get("!types", ())
    carried = list(zip(site.op.results, arguments, inits, types, strict=True))
    kept = {str(name): own for name, own, _, _ in carried if own not in numbers}
    begun = [site.tile(init, type_.extents) for name, _, init, type_ in carried if name in kept]
    layouts = [tile.lane_dim for tile in begun]
    state = len(tracer.statements), tracer.sequence, dict(tracer.scratchpad.taken)
    places, made, inner = _trips(site, trips, history, kept, begun, layouts)
    wanted = [t.stick if t.varies else old for t, old in zip(made, layouts, strict=True)]
    if wanted != layouts:
        del tracer.statements[state[0] :]
        tracer.sequence, tracer.scratchpad.taken = state[1:]
        places, made, inner = _trips(site, trips, history, kept, begun, wanted)
    site.at(inner).copy_back(made, places)
    for name, tile in zip(kept, places, strict=True):
        site.bind(tile, name)
    for name, own, _, _ in carried:
        if own in finals:
            site.bind(finals[own], name)


def _trips(
    site: Site,
    trips: Trips,
    history: Mapping[str, Number],
    kept: Mapping[str, str],
    begun: Sequence[DataTile],
    layouts: Sequence[int | None],
) -> tuple[list[DataTile], list[DataTile], Level]:
    """Trace a loop's body: the places of the carried tiles, the tiles it yields, and its level.

    ``kept``: results that are tiles, with their arguments; ``layouts``: the dims along lanes.
    """
    region = site.op.regions[0]
    places = [placed(site, *three) for three in zip(kept, begun, layouts, strict=True)]
    inner, trip, variable = _inner(site, trips)
    (induction, _), *arguments = region.arguments
    known: dict[str, Value] = {induction: variable}
    for own, every in history.items():
        known[own] = replace(every, values=every.values[trip, inner.parent_rows], level=inner)
    carried: dict[str, Value] = dict(zip(kept.values(), places, strict=True))
    yielded = dict(zip([str(name) for name, _ in arguments], _yields(region), strict=False))
    yields = [yielded[own] for own in kept.values()]
    made = in_places(site.at(inner), region, carried, known, yields)
    return places, made, inner


def _yields(region: Region) -> tuple[str, ...]:
    found: tuple[str, ...] = region.body[-1].fields.get("values", ())
    return found


# --- numbers that a loop carries ------------------------------------------------------------------


def _carried_numbers(site: Site) -> dict[str, str]:
    """Arguments of a loop whose numbers are known before it runs, with the values in their place:
    those computed from the induction variable, each other, and numbers from outside the loop.
    """
    region, scope = site.op.regions[0], site.tracer.scope.get
    induction, *names = (str(name) for name, _ in region.arguments)
    inits = site.op.fields.get("inits", ())
    pairs = zip(names, _yields(region), inits, strict=False)
    found = {own: new for own, new, init in pairs if isinstance(scope(init), Number)}

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
    region, level = site.op.regions[0], site.level
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
    for number in range(int(trips.count.max(initial=0)) if numbers else 0):
        running = trips.count > number
        variable = Number(trips.lower + number * trips.step, level, kind=_kind(site))
        made = site.tracer.run_body(body, level.restricted(running), {induction: variable, **now})
        for name, value in zip(numbers, made, strict=True):
            assert isinstance(value, Number)
            now[name] = _merged(site, running, value, now[name])
            history[name].append(now[name].values)
    every = {own: replace(now[own], values=np.stack(rows)) for own, rows in history.items()}
    return now, every


def placed(site: Site, name: str, tile: DataTile, stick: int | None) -> DataTile:
    """A place for the result ``name``, which holds ``tile`` at first."""
    tracer, inside = site.tracer, site.op.inside()
    end = max(tracer.places[id(op)] for op in (site.op, *inside))
    until = max(end, tracer.last_use(site.op, name))
    place = site.slot(tile.shape, tile.element, stick, until)
    site.write(tile, place)
    return place


def in_places(
    site: Site,
    region: Region,
    carried: dict[str, Value],
    others: Mapping[str, Value],
    yields: Sequence[str],
) -> list[DataTile]:
    """Trace a region whose values ``yields`` replace the tiles in ``carried``."""
    tracer, places = site.tracer, [t for t in carried.values() if isinstance(t, DataTile)]
    outer, own = tracer.targets, _direct_targets(region, carried, yields)
    tracer.targets = {**outer, **own}
    body = tuple(op for op in region.body if op.name not in TERMINATORS)
    end = TileOp("scf.yield", fields={"values": tuple(yields)})
    made = tracer.run_body((*body, end), site.level, {**others, **carried})
    tracer.targets = outer
    return [site.as_tile(value, place.shape) for value, place in zip(made, places, strict=True)]


def _direct_targets(
    region: Region, carried: dict[str, Value], yields: Sequence[str]
) -> dict[str, DataTile]:
    """Yielded values whose operation may write the place of the old value: it is elementwise, and
    nothing reads the old value afterwards.
    """
    found = {}
    for (argument, place), name in zip(carried.items(), yields, strict=True):
        maker = next((k for k, o in enumerate(region.body) if name in o.results), None)
        if maker is None or not region.body[maker].name.startswith(ELEMENTWISE):
            continue
        later = region.body[maker + 1 :]
        if isinstance(place, DataTile) and not any(argument in o.all_uses() for o in later):
            found[name] = place
    return found


def trace_if(site: Site) -> None:
    """scf.if: both branches, each on its tiles; tiles get one place, numbers are merged."""
    tracer, results = site.tracer, site.op.results
    condition = np.broadcast_to(
        site.number(site.op.fields["condition"]).at(site.level), site.level.active.shape
    ).astype(np.bool_)
    found: dict[str, Value] = {}
    for mask, region in zip((condition, ~condition), site.op.regions, strict=False):
        branch = site.at(site.level.restricted(mask))
        for name, value in zip(results, tracer.run_body(region.body, branch.level), strict=False):
            type_, kept = site.op.fields["!result"][results.index(name)], found.get(name)
            is_known = isinstance(value, Number) and not isinstance(kept, DataTile)
            if is_known and not type_.is_shaped:
                assert isinstance(value, Number)
                found[name] = value if kept is None else _merged(site, mask, value, kept)
                continue
            tile = branch.as_tile(value, type_.extents)
            if not isinstance(kept, DataTile):
                first = branch if kept is None else site.at(site.level.restricted(condition))
                begun = tile if kept is None else first.as_tile(kept, type_.extents)
                found[name] = kept = placed(first, name, begun, tile.lane_dim)
                if begun is tile:
                    continue
            branch.write(tile, kept)
    for result, merged in found.items():
        site.bind(merged, result)


def _merged(site: Site, mask: Any, yes: Number, no: Value) -> Number:
    """``yes`` on the tiles of ``mask``, else ``no``."""
    assert isinstance(no, Number)
    if yes.origin != no.origin:
        site.refuse("a choice between addresses of two arguments", "an address of one")
    arrays = (x.values if x.level.parent is site.level else x.at(site.level) for x in (yes, no))
    return replace(yes, values=np.where(mask, *arrays), level=site.level)


# --- deliveries -----------------------------------------------------------------------------------


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
        message = f"{site.op.name}: deadlock, some tiles of a group never arrive"
        expected = f"all of tiles {sorted({*group, *needed})}"
        found = f"tiles {sorted(absent)} take another branch"
        site.fail(DeviceFault, "SPY415", message, expected, found)


def _folded(site: Site, future: Future, order: Int64Array) -> list[DataTile]:
    """The identity folded with the parts of the producers ``order[k, tile]``, one after another."""
    op, region = site.op, site.op.regions[0]
    left, right = region.arguments[: len(future.parts)], region.arguments[len(future.parts) :]
    begun = [
        site.tile(name, part.shape)
        for name, part in zip(op.fields["identity"], future.parts, strict=True)
    ]
    sticks = [part.stick for part in future.parts]
    totals = [placed(site, *three) for three in zip(op.results, begun, sticks, strict=True)]
    for producer in order:
        parts: dict[str, Value] = {
            name: part for (name, _), part in zip(right, _read(future, producer), strict=True)
        }
        carried: dict[str, Value] = {n: t for (n, _), t in zip(left, totals, strict=True)}
        yields = region.body[-1].fields["values"]
        site.copy_back(in_places(site, region, carried, parts, yields), totals)
    return totals
