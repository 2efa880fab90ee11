"""scf.for and scf.if: all iterations of a loop at once, branches under a mask.

A loop's carried tiles have one place each: the value of a trip is written there, at once where the
operation that computes it may overwrite its operands, else by a copy at the end of the trip.
Carried numbers make a loop's trips depend on each other; they are not traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spyre.errors import LaunchError
from spyre.hw.tiles.trace import MOST_INSTANCES, Site
from spyre.hw.tiles.values import DataTile, Level, Number, Value
from spyre.layout import Int64Array
from spyre.mlir.tiles import Region, Type

ELEMENTWISE = ("arith.", "math.", "linalg.add", "linalg.sub", "linalg.mul", "linalg.m")
Layouts = list[int | None]
"""The dims of carried tiles that are along lanes."""


def _trips_of(site: Site) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Lower bound, step and number of trips, [row, tile]; LaunchError SPY150 for a step below 1."""
    names = [site.op.fields[key] for key in ("lower", "upper", "step")]
    active = site.level.active
    lower, upper, step = (np.broadcast_to(x, active.shape) for x in site.numbers(names))
    if (bad := active & (step <= 0)).any():
        row, tile = (int(k) for k in np.argwhere(bad)[0])
        raise LaunchError(
            "SPY150", "the step of a loop is not positive", site.place,
            expected="a step above 0", found=f"{int(step[row, tile])} on tile {tile}",
        )  # fmt: skip
    trips = np.maximum(-((lower - upper) // np.maximum(step, 1)), 0)
    return lower, step, np.where(active, trips, 0)


def _inner(site: Site) -> tuple[Level, Number]:
    """The level of a loop's body, and its induction variable."""
    lower, step, trips = _trips_of(site)
    most = trips.max(axis=1)
    if int(most.sum()) > MOST_INSTANCES:
        raise LaunchError(
            "SPY175", "too many iterations", site.place,
            expected=f"at most {MOST_INSTANCES}", found=str(int(most.sum())),
        )  # fmt: skip
    inner, trip = site.tracer.repeated(site.level, most)
    rows = inner.parent_rows
    values = lower[rows] + trip[:, None] * step[rows]
    active = inner.active & (trip[:, None] < trips[rows])
    first = values[np.arange(len(values)), active.argmax(axis=1)] if len(values) else trip
    indices = np.column_stack((site.level.indices[rows], first))
    inner = replace(inner, active=active, indices=indices)
    return inner, Number(values, inner)


def trace_for(site: Site) -> None:
    """scf.for: traced again if the tiles it yields have other dims along lanes than its first."""
    fields = site.op.fields
    types: tuple[Type, ...] = fields.get("!types", ())
    if not all(type_.is_shaped for type_ in types):
        site.refuse("a number carried from trip to trip", "carried tiles")
    pairs = zip(fields.get("inits", ()), types, strict=True)
    begun = [site.tile(name, type_.extents, type_.element) for name, type_ in pairs]
    layouts = [tile.lane_dim for tile in begun]
    tracer = site.tracer
    state = len(tracer.statements), tracer.sequence, dict(tracer.scratchpad.taken)
    places, made, inner = _trips(site, begun, layouts)
    wanted = [t.stick if t.varies else old for t, old in zip(made, layouts, strict=True)]
    if wanted != layouts:
        del tracer.statements[state[0] :]
        tracer.sequence, tracer.scratchpad.taken = state[1:]
        places, made, inner = _trips(site, begun, wanted)
    site.at(inner).copy_back(made, places)
    for name, tile in zip(site.op.results, places, strict=True):
        site.bind(tile, name)


def _trips(
    site: Site, begun: Sequence[DataTile], layouts: Layouts
) -> tuple[list[DataTile], list[DataTile], Level]:
    """Trace a loop's body: the places of the carried tiles, the tiles it yields, and its level."""
    tracer, region, places = site.tracer, site.op.regions[0], []
    end = _end(site)
    for name, tile, stick in zip(site.op.results, begun, layouts, strict=True):
        until = max(end, tracer.last_use(site.op, name))
        places.append(site.slot(tile.shape, tile.element, stick, until))
        site.write(tile, places[-1])
    inner, variable = _inner(site)
    (induction, _), *arguments = region.arguments
    names: dict[str, Value] = {
        name: tile for (name, _), tile in zip(arguments, places, strict=True)
    }
    made = in_places(site.at(inner), region, names, {induction: variable})
    return places, made, inner


def _end(site: Site) -> int:
    """Number of the last operation inside."""
    return max([site.now, *(site.tracer.places[id(o)] for o in site.op.inside())])


def in_places(
    site: Site, region: Region, carried: dict[str, Value], others: dict[str, Value]
) -> list[DataTile]:
    """Trace a region whose yielded tiles replace those in ``carried``."""
    tracer, places = site.tracer, [t for t in carried.values() if isinstance(t, DataTile)]
    yields = region.body[-1].fields.get("values", ()) if carried else ()
    outer, own = tracer.targets, _direct_targets(region, carried, yields)
    tracer.targets = {**outer, **own}
    made = tracer.run_body(region.body, site.level, {**others, **carried})
    tracer.targets = outer
    pairs = zip(made, places, strict=False)
    return [site.as_tile(value, place.shape, place.element) for value, place in pairs]


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
            if not type_.is_shaped:
                assert isinstance(value, Number)
                found[name] = value if not isinstance(kept, Number) else _merged(
                    site, ~mask, kept, value
                )  # fmt: skip
                continue
            tile = site.as_tile(value, type_.extents, type_.element)
            if kept is None:
                until = max(_end(site), tracer.last_use(site.op, name))
                kept = found[name] = site.slot(tile.shape, tile.element, tile.lane_dim, until)
            assert isinstance(kept, DataTile)
            branch.write(tile, kept)
    for result, merged in found.items():
        site.bind(merged, result)


def _merged(site: Site, first: np.ndarray, yes: Number, no: Number) -> Number:
    """``yes`` on the tiles of ``first``, else ``no``."""
    values = np.where(first, yes.at(yes.level), no.at(no.level))
    return Number(np.atleast_2d(values), site.level, yes.origin)
