"""Operations on whole tiles of data, while a function is traced: views, reductions, products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from spyre.hw.tiles.lowering import PRODUCT, Operand
from spyre.hw.tiles.trace import Pending, Tracer, dims_of
from spyre.hw.tiles.values import PAIR, DataTile, Level, Number
from spyre.mlir.tiles import TileOp, Type, operation_rows

IDENTITIES = {"add": 0.0, "mul": 1.0, "maximum": -np.inf, "minimum": np.inf}
REDUCTIONS = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}
LOWEST = 4.0e9
"""Numbers beyond it, of either sign, are starts of maxima and minima."""


def trace_fill(tracer: Tracer, op: TileOp, level: Level) -> None:
    type_ = op.fields["!outs"][0]
    _splat_of(tracer, op, op.fields["ins"][0], type_)


def trace_splat(tracer: Tracer, op: TileOp, level: Level) -> None:
    _splat_of(tracer, op, op.fields["value"], op.fields["!result"])


def _splat_of(tracer: Tracer, op: TileOp, name: str, type_: Type) -> None:
    value = tracer.value(name)
    if isinstance(value, Number):
        tile = tracer.constant(value, type_.extents, type_.element)
    else:
        assert isinstance(value, DataTile)
        tile = value.broadcast(type_.extents, tuple(range(len(type_.extents))))
    tracer.bind(op, op.results[0], tile)


def trace_empty(tracer: Tracer, op: TileOp, level: Level) -> None:
    """A shape: as a constant it is never read."""
    type_ = op.fields["!result"]
    shape, nowhere = type_.extents, np.zeros((1, 1), np.int64)
    pitches = (0,) * len(shape)
    tile = DataTile(shape, type_.element, len(tracer.pointers), nowhere, level, pitches, None)
    tracer.bind(op, op.results[0], tile)


def trace_broadcast(tracer: Tracer, op: TileOp, level: Level) -> None:
    type_ = op.fields["!outs"][0]
    dims = tuple(int(n.value) for n in op.fields["dimensions"])
    tile = tracer.tile(op.fields["ins"][0])
    tracer.bind(op, op.results[0], tile.broadcast(type_.extents, dims))


def trace_transpose(tracer: Tracer, op: TileOp, level: Level) -> None:
    order = tuple(int(n.value) for n in op.fields["permutation"])
    tracer.bind(op, op.results[0], tracer.tile(op.fields["ins"][0]).permuted(order))


def trace_reshape(tracer: Tracer, op: TileOp, level: Level) -> None:
    tile, shape = tracer.tile(op.fields["value"]), op.fields["!result"].extents
    found = tile.reshaped(shape)
    if found is None:
        tracer.refuse(
            op, "a reshape that moves elements within sticks", found=f"{tile.shape} to {shape}"
        )
    tracer.bind(op, op.results[0], found)


def trace_extract(tracer: Tracer, op: TileOp, level: Level) -> None:
    tile = tracer.tile(op.fields["value"])
    offsets = tile.offsets
    for d, name in enumerate(op.fields["indices"]):
        index = name if isinstance(name, int) else tracer.number(name).at(level)
        if np.any(index):
            if d == tile.stick:
                tracer.refuse(op, "an element that is not first in its stick")
            offsets = level.lift(offsets, tile.level) + np.asarray(index) * tile.pitches[d]
    kind = replace(
        tile, shape=(), pitches=(), stick=None, offsets=np.atleast_2d(offsets), level=level
    )
    if offsets is tile.offsets:
        kind = replace(kind, level=tile.level)
    tracer.bind(op, op.results[0], kind)


def trace_reduce(tracer: Tracer, op: TileOp, level: Level) -> None:
    fields = op.fields
    dims = tuple(int(n.value) for n in fields["dimensions"])
    combiner = combiner_of(tracer, op)
    tile = tracer.tile(fields["ins"][0])
    start = tracer.tile(fields["outs"][0])
    tracer.bind(op, op.results[0], reduced(tracer, op, combiner, tile, dims, start, level))


def reduced(
    tracer: Tracer,
    op: TileOp,
    combiner: str,
    tile: DataTile,
    dims: tuple[int, ...],
    start: DataTile,
    level: Level,
) -> DataTile:
    """``tile`` without ``dims``, folded from ``start`` on."""
    until = tracer.uses.get((tracer.now, op.results[0]), tracer.now)
    kept = [d for d in range(len(tile.shape)) if d not in dims]
    if not all(tile.pitches[d] or tile.shape[d] == 1 for d in dims) or tile.stick is None:
        tracer.refuse(op, "a reduction of a broadcast value")
    if tile.shape[tile.stick] % tile.lanes:
        tracer.refuse(op, "a reduction of ragged rows", found=str(tile.shape))
    shape = tuple(tile.shape[d] for d in kept)
    stick = kept.index(tile.stick) if tile.stick in kept else None
    target = tracer.slot(shape, tile.element, stick, level, until)
    names = dims_of(tile.shape)
    extents = dict(zip(names, tile.shape, strict=True))
    output = Operand(target, tuple(names[d] for d in kept))
    tracer.emit(
        op, REDUCTIONS[combiner], [Operand(tile, names)], output, extents, names[tile.stick], level
    )
    has_start = start.varies or (
        start.value is not None and not _is_identity(start.value, combiner)
    )
    if has_start:
        return tracer.pointwise(op, combiner, [start, target], shape, level, target, until)
    return target


def _is_identity(value: float, combiner: str) -> bool:
    return value == IDENTITIES[combiner] or (
        combiner in ("maximum", "minimum")
        and abs(value) >= LOWEST
        and (value < 0) == (combiner == "maximum")
    )


def combiner_of(tracer: Tracer, op: TileOp) -> str:
    """The engine's name of the operation that a reduction folds with."""
    if "combiner" in op.fields:
        name = op.fields["combiner"].text
        engine = operation_rows()[name if "." in name else f"arith.{name}"].engine
    else:
        region = op.regions[0]
        *body, end = region.body
        names = [name for name, _ in region.arguments]
        simple = len(body) == 1 and end.fields.get("values") == body[0].results
        if not simple or len(names) != 2 or {*body[0].uses()} != {*names}:
            found = _maximum_by_comparison(body, end)
            if found is None:
                tracer.refuse(op, "this combiner", "one operation of both arguments")
            return found
        engine = operation_rows()[body[0].name].engine
    if engine not in REDUCTIONS:
        tracer.refuse(op, f"the combiner {engine}", ", ".join(REDUCTIONS))
    return engine


def _maximum_by_comparison(body: Sequence[TileOp], end: TileOp) -> str | None:
    """``select(cmpf ogt a, b), a, b`` is a maximum."""
    if [op.name for op in body] != ["arith.cmpf", "arith.select"]:
        return None
    compare, choose = body
    pair, chosen = [*compare.uses()], [*choose.uses()]
    kind = compare.fields["predicate"].text[1:2]
    if (
        chosen[1:] not in (pair, pair[::-1])
        or kind not in "gl"
        or end.fields["values"] != choose.results
    ):
        return None
    return "maximum" if (kind == "g") == (chosen[1:] == pair) else "minimum"


def trace_matmul(tracer: Tracer, op: TileOp, level: Level) -> None:
    left, right = (tracer.tile(name) for name in op.fields["ins"])
    start, type_ = tracer.tile(op.fields["outs"][0]), op.fields["!outs"][0]
    tracer.bind(op, op.results[0], product(tracer, op, left, right, start, type_, level))


def product(
    tracer: Tracer,
    op: TileOp,
    left: DataTile,
    right: DataTile,
    start: DataTile,
    type_: Type,
    level: Level,
) -> DataTile:
    """``start`` plus the matrix product of ``left`` and ``right``."""
    until = tracer.uses.get((tracer.now, op.results[0]), tracer.now)
    batch = tuple(f"b{k}" for k in range(len(type_.extents) - 2))
    rank = len(type_.extents)
    if left.stick != rank - 1:
        left = tracer.restick(op, left, rank - 1, level) if left.stick is not None else left
    if right.stick != rank - 1:
        right = tracer.restick(op, right, rank - 1, level) if right.stick is not None else right
    if {left.element, right.element} != {"f16"} or type_.element not in ("f16", "f32"):
        found = f"{left.element}, {right.element} into {type_.element}"
        tracer.refuse(op, "a product of other operands than f16", "f16 into f16 or f32", found)
    if (
        left.stick != rank - 1
        or right.stick != rank - 1
        or left.shape[-1] % PAIR
        or right.shape[-1] % PAIR
    ):
        tracer.refuse(op, "a product of ragged tiles", found=f"{left.shape}, {right.shape}")
    names = ((*batch, "m", "k"), (*batch, "k", "n"), (*batch, "m", "n"))
    target = tracer.slot(type_.extents, type_.element, rank - 1, level, until)
    operands = [Operand(tile, dims) for tile, dims in zip((left, right), names, strict=False)]
    extents = {**dict(zip(names[0], left.shape, strict=True)), "n": right.shape[-1]}
    tracer.emit(op, PRODUCT, operands, Operand(target, names[2]), extents, "n", level)
    if start.varies or start.value not in (None, 0.0):
        return tracer.pointwise(op, "add", [start, target], type_.extents, level, target, until)
    return target


def trace_named(tracer: Tracer, op: TileOp, level: Level) -> None:
    row, type_ = operation_rows()[op.name], op.fields["!outs"][0]
    op_ = replace(op, fields={**op.fields, "!T": type_})
    engine = "identity" if row.engine == "copy" else row.engine
    tiles = [tracer.tile(n, type_.extents, type_.element) for n in op.fields["ins"]]
    if all(t.value is not None for t in tiles):
        tracer.refuse(op, "arithmetic on constant tiles alone")
    until = tracer.uses.get((tracer.now, op.results[0]), tracer.now)

    def compute(target: DataTile | None) -> DataTile:
        return tracer._computed(
            op_, engine, tiles, type_.extents, type_.element, level, target, until
        )

    if tracer._only_stored(op, op.results[0]):
        pending = Pending(tracer.now, until, type_.extents, type_.element, compute)
        tracer.bind(op, op.results[0], pending)
    else:
        tracer.bind(op, op.results[0], compute(tracer.targets.get(op.results[0])))
