"""linalg.generic: the operations of its body in order, over tiles seen through the maps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spyre.hw.tiles.data import combiner_of, reduced
from spyre.hw.tiles.trace import ENGINE_NAMES, Pending, Tracer
from spyre.hw.tiles.values import DataTile, Level, Number, Value
from spyre.mlir.program import AffineMap
from spyre.mlir.tiles import TileOp, operation_rows

if TYPE_CHECKING:
    from collections.abc import Sequence


def trace_generic(tracer: Tracer, op: TileOp, level: Level) -> None:
    """State the body's operations, or the reduction that it is."""
    module, fields = tracer.program.module, op.fields
    entry, kinds = op.attribute("indexing_maps"), op.attribute("iterator_types")
    assert entry is not None
    assert kinds is not None
    maps = [module.resolved(value) for value in entry.value]
    iterators = [kind.text for kind in kinds.value]
    types = (*fields["!ins"], *fields["!outs"])
    if len(fields["!outs"]) != 1 or any(map_.permutation is None for map_ in maps):
        tracer.refuse(op, "a map that is no choice of dims, or several outputs", "one output")
    extents: dict[int, int] = {}
    for map_, type_ in zip(maps, types, strict=True):
        extents.update(zip(map_.permutation, type_.extents, strict=True))
    shape = tuple(extents.get(d, 1) for d in range(len(iterators)))
    names = [*fields["ins"], *fields["outs"]]
    seen = [_seen(tracer, name, map_, type_.element, shape)
            for name, map_, type_ in zip(names, maps, types, strict=True)]  # fmt: skip
    to_output = maps[-1].permutation
    if "reduction" in iterators:
        _reduction(tracer, op, iterators, seen, to_output, level)
        return
    until = tracer.uses.get((tracer.now, op.results[0]), tracer.now)
    order = (
        tuple(sorted(range(len(shape)), key=to_output.index))
        if len(to_output) == len(shape)
        else None
    )
    if order is None:
        tracer.refuse(op, "an output that lacks a parallel dim")

    def compute(target: DataTile | None) -> DataTile:
        inner = None if target is None else target.permuted(order)
        made = _body(tracer, op, seen, shape, level, inner, until)
        return target if made is inner and target is not None else made.permuted(to_output)

    if tracer._only_stored(op, op.results[0]):
        element = fields["!outs"][0].element
        tracer.bind(op, op.results[0], Pending(tracer.now, until, shape, element, compute))
    else:
        tracer.bind(op, op.results[0], compute(None))


def _seen(
    tracer: Tracer, name: str, map_: AffineMap, element: str, shape: tuple[int, ...]
) -> DataTile:
    """An operand over the iteration space: it does not vary along dims that its map leaves out."""
    tile = tracer.tile(name, tuple(shape[d] for d in map_.permutation or ()), element)
    pitches, stick = [0] * len(shape), None
    for own, dim in enumerate(map_.permutation or ()):
        pitches[dim] = tile.pitches[own]
        stick = dim if own == tile.stick else stick
    return replace(tile, shape=shape, pitches=tuple(pitches), stick=stick)


def _reduction(
    tracer: Tracer,
    op: TileOp,
    iterators: Sequence[str],
    seen: Sequence[DataTile],
    to_output: Sequence[int],
    level: Level,
) -> None:
    """One operation of the input's element and the output's, over the reduction iterators."""
    source, start = seen[0], seen[-1]
    dims = [d for d, kind in enumerate(iterators) if kind == "reduction"]
    combiner = combiner_of(tracer, op)
    absent = [d for d in range(len(iterators)) if not source.pitches[d] and source.shape[d] > 1]
    if len(seen) != 2 or any(d in dims for d in absent):
        tracer.refuse(op, "a reduction of several inputs, or of a value that does not vary")
    present = [d for d in range(len(iterators)) if d not in absent]
    narrow = replace(
        source,
        shape=tuple(source.shape[d] for d in present),
        pitches=tuple(source.pitches[d] for d in present),
        stick=None if source.stick is None else present.index(source.stick),
    )
    if start.varies:
        tracer.refuse(op, "a start value of a generic reduction", "tensor.empty or a constant")
    kept = [d for d in present if d not in dims]
    bare = replace(start, shape=tuple(source.shape[d] for d in kept), pitches=(0,) * len(kept))
    total = reduced(tracer, op, combiner, narrow, tuple(map(present.index, dims)), bare, level)
    shape = tuple(source.shape[d] for d in to_output)
    new = tuple(k for k, d in enumerate(to_output) if d not in kept)
    tracer.bind(op, op.results[0], total.broadcast(shape, new))


def _body(
    tracer: Tracer,
    op: TileOp,
    seen: Sequence[DataTile],
    shape: tuple[int, ...],
    level: Level,
    target: DataTile | None,
    until: int,
) -> DataTile:
    """The tile that the body yields; its last operation writes ``target``, if it can."""
    region = op.regions[0]
    *body, end = region.body
    values: dict[str, Value] = {
        name: tile for (name, _), tile in zip(region.arguments, seen, strict=True)
    }
    (yielded,) = end.fields["values"]
    for inner in body:
        (result,) = inner.results
        names = [*inner.uses()]
        given = [values[n] if n in values else tracer.value(n) for n in names]
        if inner.name == "arith.constant":
            type_ = inner.fields["!result"]
            values[result] = tracer._number(inner.fields["value"].value, type_.kind, level)
            continue
        if all(isinstance(v, Number) for v in given):
            values[result] = tracer._on_numbers(inner, given, level)
            continue
        element = next(v.element for v in reversed(given) if isinstance(v, DataTile))
        tiles = [tracer.constant(v, shape, element) if isinstance(v, Number) else v for v in given]
        row = operation_rows()[inner.name]
        own = target if result == yielded else None
        type_ = inner.fields.get("!T") or inner.fields.get("!result") or inner.fields["!types"][-1]
        engine = ENGINE_NAMES.get(row.engine, row.engine)
        operands = [t for t in tiles if isinstance(t, DataTile)]
        values[result] = tracer._computed(
            inner, engine, operands, shape, type_.scalar, level, own, until
        )
    found = values.get(yielded)
    if not isinstance(found, DataTile):
        tracer.refuse(op, "a body that yields a number", "a value of its arguments")
    return found
