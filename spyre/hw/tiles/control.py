"""scf.for and scf.if: all iterations of a loop at once, branches under a mask.

A loop's carried tiles have one place each: the value of a trip is written there, at once where the
operation that computes it may overwrite what it reads, else by a copy at the end of the trip.
Carried numbers make a loop's trips depend on each other; they are traced trip by trip.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from spyre.errors import LaunchError, UnsupportedError
from spyre.hw.tiles.trace import MOST_INSTANCES, Pending, Tracer
from spyre.hw.tiles.values import DataTile, Level, Number, Value
from spyre.mlir.tiles import Region, TileOp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre.layout import Int64Array


ELEMENTWISE = ("arith.", "math.", "linalg.add", "linalg.sub", "linalg.mul", "linalg.m")


def trips_of(tracer: Tracer, op: TileOp, level: Level) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Lower bound, step and number of trips, [row, tile]; LaunchError SPY150 for a step below 1."""
    lower, upper, step = (
        np.broadcast_to(tracer.number(op.fields[key]).at(level), level.active.shape)
        for key in ("lower", "upper", "step")
    )
    bad = level.active & (step <= 0)
    if bad.any():
        row, tile = (int(k) for k in np.argwhere(bad)[0])
        raise LaunchError(
            "SPY150", "the step of a loop is not positive", tracer.place(op),
            expected="a step above 0", found=f"{int(step[row, tile])} on tile {tile}",
        )  # fmt: skip
    trips = np.maximum(-((lower - upper) // np.maximum(step, 1)), 0)
    return lower, step, np.where(level.active, trips, 0)


def _inner(tracer: Tracer, op: TileOp, level: Level) -> tuple[Level, Number]:
    """The level of a loop's body, and its induction variable."""
    lower, step, trips = trips_of(tracer, op, level)
    most = trips.max(axis=1)
    if int(most.sum()) > MOST_INSTANCES:
        raise LaunchError(
            "SPY175", "too many iterations", tracer.place(op),
            expected=f"at most {MOST_INSTANCES}", found=str(int(most.sum())),
        )  # fmt: skip
    parents = np.repeat(np.arange(level.rows), most)
    trip = np.arange(len(parents)) - np.repeat(np.cumsum(most) - most, most)
    values = lower[parents] + trip[:, None] * step[parents]
    active = level.active[parents] & (trip[:, None] < trips[parents])
    tracer.sequence += 1
    place = np.full(len(parents), tracer.sequence)
    first = values[np.arange(len(values)), active.argmax(axis=1)] if len(values) else trip
    inner = Level(
        level, parents, active,
        np.column_stack((level.indices[parents], first)),
        np.column_stack((level.key[parents], place, trip)),
    )  # fmt: skip
    return inner, Number(values, inner)


def trace_for(tracer: Tracer, op: TileOp, level: Level) -> None:
    """scf.for."""
    number, inits = tracer.places[id(op)], op.fields.get("inits", ())
    if any(
        isinstance(tracer.value(name), Number) and not _is_tile(op, k)
        for k, name in enumerate(inits)
    ):
        tracer.refuse(op, "a number carried from trip to trip", "carried tiles")
    end = max([number, *(tracer.places[id(o)] for o in _inside(op))])
    carried = _first_layouts(tracer, op, inits)
    state = _State.of(tracer)
    while True:
        try:
            places, yielded, inner = _trips(tracer, op, carried, level, end)
        except UnsupportedError:
            others = _other_layouts(tracer, op, inits, carried)
            if others == carried:
                raise
            layouts = others
        else:
            layouts = [_layout(t, old) for t, old in zip(yielded, carried, strict=True)]
            if layouts == carried:
                break
        state.restore(tracer)
        carried = layouts
    tracer.copy_back(op, yielded, places, inner)
    for name, tile in zip(op.results, places, strict=True):
        tracer.bind(op, name, tile)


def _trips(
    tracer: Tracer, op: TileOp, carried: Sequence[Layout], level: Level, end: int
) -> tuple[list[DataTile], list[DataTile], Level]:
    """Trace a loop's body: the places of the carried tiles, the tiles it yields, and its level."""
    region, number = op.regions[0], tracer.places[id(op)]
    (induction, _), *arguments = region.arguments
    places = _placed(tracer, op, op.fields.get("inits", ()), carried, level, end)
    inner, variable = _inner(tracer, op, level)
    scope: dict[str, tuple[Value | Pending, int]] = {induction: (variable, number)}
    scope.update({n: (tile, number) for (n, _), tile in zip(arguments, places, strict=True)})
    depth, outer = len(tracer.scopes), tracer.targets
    tracer.scopes.append(scope)
    names = [name for name, _ in arguments]
    tracer.targets = {**outer, **direct_targets(region, names, _yields(op), places)}
    try:
        tracer.run_body(region.body, inner)
        pairs = zip(_yields(op), places, strict=True)
        yielded = [tracer.tile(name, t.shape, t.element) for name, t in pairs]
        return places, yielded, inner
    finally:
        del tracer.scopes[depth:]
        tracer.targets = outer


def _other_layouts(
    tracer: Tracer, op: TileOp, inits: Sequence[str], carried: Sequence[Layout]
) -> list[Layout]:
    """One element per stick for the carried tiles that begin as constants."""
    types = op.fields.get("!types", ())
    begun = [tracer.tile(n, t.extents, t.element) for n, t in zip(inits, types, strict=True)]
    return [
        old if t.varies or len(t.shape) > 1 else None for t, old in zip(begun, carried, strict=True)
    ]


def _is_tile(op: TileOp, k: int) -> bool:
    return bool(op.fields["!types"][k].is_shaped)


def _inside(op: TileOp) -> list[TileOp]:
    found = []
    for region in op.regions:
        for inner in region.body:
            found += [inner, *_inside(inner)]
    return found


def _yields(op: TileOp) -> tuple[str, ...]:
    return tuple(op.regions[0].body[-1].fields.get("values", ())) if op.fields.get("inits") else ()


class _State:
    """What tracing a body changes, to trace it again with another layout of a carried tile."""

    def __init__(self, statements: int, sequence: int, taken: dict[int, tuple[int, int]]) -> None:
        self.statements, self.sequence, self.taken = statements, sequence, taken

    @classmethod
    def of(cls, tracer: Tracer) -> _State:
        """The state now."""
        return cls(len(tracer.statements), tracer.sequence, dict(tracer.scratchpad.taken))

    def restore(self, tracer: Tracer) -> None:
        """Remove the statements that were traced since then."""
        del tracer.statements[self.statements :]
        tracer.sequence, tracer.scratchpad.taken = self.sequence, dict(self.taken)


Layout = int | None
"""The dim of a carried tile that is along lanes."""


def _first_layouts(tracer: Tracer, op: TileOp, inits: Sequence[str]) -> list[Layout]:
    found: list[Layout] = []
    for name, type_ in zip(inits, op.fields.get("!types", ()), strict=True):
        tile = tracer.tile(name, type_.extents, type_.element)
        last = len(type_.extents) - 1 if type_.extents else None
        found.append(tile.stick if tile.varies else last)
    return found


def _layout(tile: DataTile, old: Layout) -> Layout:
    """The layout that a yielded tile has; of a constant, any."""
    return tile.stick if tile.varies else old


def _placed(
    tracer: Tracer,
    op: TileOp,
    inits: Sequence[str],
    layouts: Sequence[Layout],
    level: Level,
    end: int,
) -> list[DataTile]:
    """Places of the carried tiles, with their values before the first trip."""
    places = []
    number = tracer.places[id(op)]
    for k, (name, stick) in enumerate(zip(inits, layouts, strict=True)):
        type_ = op.fields["!types"][k]
        until = max(end, tracer.uses.get((number, op.results[k]), end))
        place = tracer.slot(type_.extents, type_.element, stick, level, until)
        tile = tracer.tile(name, type_.extents, type_.element)
        places.append(tracer.pointwise(op, "identity", [tile], type_.extents, level, place, until))
    return places


def direct_targets(
    region: Region, arguments: Sequence[str], yields: Sequence[str], places: Sequence[DataTile]
) -> dict[str, DataTile]:
    """Yielded values whose operation may write the place of the old value: it is elementwise, and
    nothing reads the old value afterwards.
    """
    found = {}
    for argument, name, place in zip(arguments, yields, places, strict=True):
        maker = next((k for k, o in enumerate(region.body) if name in o.results), None)
        if maker is None or not region.body[maker].name.startswith(ELEMENTWISE):
            continue
        later = region.body[maker + 1 :]
        if not any(argument in [*o.uses(), *_used_inside(o)] for o in later):
            found[name] = place
    return found


def _used_inside(op: TileOp) -> list[str]:
    return [name for inner in _inside(op) for name in inner.uses()]


def trace_if(tracer: Tracer, op: TileOp, level: Level) -> None:
    """scf.if: both branches, each on its tiles."""
    condition = np.broadcast_to(tracer.number(op.fields["condition"]).at(level), level.active.shape)
    types = op.fields.get("!result", ())
    number = tracer.places[id(op)]
    found: list[list[DataTile | Number]] = []
    places: list[DataTile] = []
    for k, region in enumerate(op.regions):
        branch = level.restricted(
            condition.astype(np.bool_) if not k else ~condition.astype(np.bool_)
        )
        tracer.scopes.append({})
        tracer.run_body(region.body, branch)
        names = region.body[-1].fields.get("values", ()) if types else ()
        values = [tracer.value(name) for name in names]
        tracer.scopes.pop()
        kept: list[DataTile | Number] = []
        for n, value in enumerate(values):
            if isinstance(value, Number) and not types[n].is_shaped:
                kept.append(value)
                continue
            tile = (
                value
                if isinstance(value, DataTile)
                else tracer.tile(names[n], types[n].extents, types[n].element)
            )
            if k == 0:
                until = max(tracer.uses.get((number, op.results[n]), number), number)
                end = max([until, *(tracer.places[id(o)] for o in _inside(op))])
                places.append(tracer.slot(tile.shape, tile.element, tile.stick, level, end))
            place = places[sum(t.is_shaped for t in types[:n])]
            kept.append(
                tracer.pointwise(op, "identity", [tile], tile.shape, branch, place, tracer.now)
            )
        found.append(kept)
    for n, name in enumerate(op.results):
        first, other = found[0][n], found[1][n]
        if isinstance(first, Number) and isinstance(other, Number):
            merged = np.where(condition, first.at(first.level), other.at(other.level))
            tracer.bind(op, name, Number(np.atleast_2d(merged), level, first.origin))
        else:
            assert isinstance(first, DataTile)
            tracer.bind(op, name, replace(first, level=first.level))
