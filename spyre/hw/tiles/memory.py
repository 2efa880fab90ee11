"""Numbers of a text, memory views, access tiles, loads and stores, while a function is traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.spec import STICK_BYTES
from spyre.hw.tiles.trace import Pending, Tracer, all_uses
from spyre.hw.tiles.values import ELEMENT_BYTES, FORMATS, Access, DataTile, Level, Number, View
from spyre.mlir.program import INTEGERS, fold
from spyre.mlir.tiles import Expression, TileOp, memory_space

Array = npt.NDArray[Any]
SHAPES = ("index", "i64")
"""Element types of constant tensors that give shapes, which are in types too."""
VIEWING = (
    "linalg.transpose", "linalg.broadcast", "tensor.expand_shape", "tensor.collapse_shape",
    "tensor.reshape", "tensor.extract_slice",
)  # fmt: skip
"""Operations whose result is another view of their operand."""


def trace_tile_id(tracer: Tracer, op: TileOp, level: Level) -> None:
    rest = np.arange(level.active.shape[1])[None]
    for k, name in enumerate(op.results):
        if len(op.results) == 1:
            ids = rest
        else:
            extent = tracer.grid[k] if k < len(tracer.grid) else 1
            ids, rest = rest % extent, rest // extent
        tracer.bind(op, name, Number(ids.astype(np.int64), level))


def trace_constant(tracer: Tracer, op: TileOp, level: Level) -> None:
    type_, value = op.fields.get("!result"), op.fields["value"]
    if type_ is None:
        tracer.bind(op, op.results[0], Number(np.array([[value.text == "true"]]), level))
        return
    text = str(value).removeprefix("dense<").removesuffix(">") if type_.is_shaped else value.text
    numbers = [_literal(t, type_.scalar) for t in text.replace("[", "").replace("]", "").split(",")]
    if type_.scalar in SHAPES and type_.is_shaped:  # the shape of a reshape, in its type too
        tracer.bind(op, op.results[0], tracer._number(numbers[0], type_.scalar, level))
        return
    if len({*numbers}) > 1:
        tracer.refuse(op, "a constant of several numbers", "dense<number>")
    number = tracer._number(numbers[0], type_.scalar, level)
    if not type_.is_shaped:
        tracer.bind(op, op.results[0], number)
    else:
        tracer.bind(op, op.results[0], tracer.constant(number, type_.extents, type_.element))


def _literal(text: str, kind: str) -> float:
    """A number's value; hexadecimal digits are the bits of a float."""
    text = text.strip()
    if text in ("true", "false"):
        return float(text == "true")
    if "x" in text and kind in ("f16", "f32", "!spyreop.df16"):
        bits = int(text, 16)
        return float(
            np.uint32(bits).view(np.float32) if kind == "f32" else np.uint16(bits).view(np.float16)
        )
    return float(text) if "." in text else int(text, 0)


def trace_extract_argument(tracer: Tracer, op: TileOp, level: Level) -> None:
    field_ = op.fields["field"].text
    if field_ == "value":
        tracer.bind(op, op.results[0], tracer.value(op.fields["argument"]))
    else:
        number = dict(op.fields["!argument"].details)[field_]
        tracer.bind(op, op.results[0], Number(np.array([[number]]), level))


def _mixed(tracer: Tracer, item: Any, level: Level) -> Number:
    return Number(np.array([[item]]), level) if isinstance(item, int) else tracer.number(item)


def trace_view(tracer: Tracer, op: TileOp, level: Level) -> None:
    fields, type_ = op.fields, op.fields["!result"]
    space = op.attribute("memory_space")
    where = memory_space(str(space.value)) if space is not None else None
    base = tracer.number(fields["base"])
    if base.origin is None and not (where and where.is_local):
        tracer.refuse(op, "an address of the program's own", "an argument")
    if where is not None and where.is_local:
        tracer.refuse(op, "a view of a scratchpad", "memory_space = #ktdp.memory_space<global>")
    sizes = tuple(_mixed(tracer, item, level) for item in fields["sizes"])
    strides = tuple(_mixed(tracer, item, level) for item in fields["strides"])
    view = View(base, sizes, strides, type_.element, None in type_.shape, False, op.position)
    if not view.is_clipped:
        _check_argument(tracer, op, view, level)
    tracer.bind(op, op.results[0], view)


def _check_argument(tracer: Tracer, op: TileOp, view: View, level: Level) -> None:
    """The elements of a view are in its argument: SPY343, SPY344."""
    argument = [*tracer.pointers.values()][view.base.origin or 0]
    stored, wanted = FORMATS.get(argument.element), FORMATS.get(view.element)
    if stored != wanted:
        raise LaunchError(
            "SPY344", f"argument {argument.name} has other elements than its view",
            tracer.place(op),
            expected=view.element, found=argument.element,
        )  # fmt: skip
    first = view.base.at(level)
    pairs = list(zip(view.sizes, view.strides, strict=True))
    reach = sum((s.at(level) - 1) * np.maximum(t.at(level), 0) for s, t in pairs)
    below = sum((s.at(level) - 1) * np.minimum(t.at(level), 0) for s, t in pairs)
    low, high = np.broadcast_arrays(first + below, first + reach + 1)
    outside = (
        np.broadcast_to((low < 0) | (high > argument.elements), level.active.shape) & level.active
    )
    if outside.any():
        row, tile = (int(k) for k in np.argwhere(outside)[0])
        low, high = (np.broadcast_to(x, level.active.shape)[row, tile] for x in (low, high))
        raise LaunchError(
            "SPY343", f"argument {argument.name} is too small for its view", tracer.place(op),
            expected=f"{int(high)} elements", found=f"{argument.elements} elements",
        )  # fmt: skip


def _expression(tracer: Tracer, expression: Expression, level: Level) -> Number:
    numbers = [tracer.number(name) for name in expression.names]
    found = fold(expression.expr, [n.at(level) for n in numbers], (), INTEGERS)
    return Number(np.atleast_2d(np.asarray(found, np.int64)), level)


def trace_access_tile(tracer: Tracer, op: TileOp, level: Level) -> None:
    module, view = tracer.program.module, tracer.value(op.fields["view"])
    if not isinstance(view, View):
        tracer.refuse(op, "a tile of a distributed view")
    corner = [_expression(tracer, e, level) for e in op.fields["indices"]]
    base_map = op.attribute("base_map")
    if base_map is not None:
        map_ = module.resolved(base_map.value)
        values = [n.at(level) for n in corner]
        corner = [
            Number(np.atleast_2d(np.asarray(fold(r, values, (), INTEGERS), np.int64)), level)
            for r in map_.results
        ]
    entry = op.attribute("access_tile_set")
    assert entry is not None
    points = module.resolved(entry.value)
    symbols = [tracer.number(name).at(level) for name in op.fields.get("symbols", ())]
    box = points.box(symbols)
    if box is None or any(np.ndim(x) and np.size(x) > 1 for pair in box for x in pair):
        tracer.refuse(op, "a set that is no box")
    lows = [int(np.ravel(low)[0]) for low, _ in box]
    extents = tuple(
        int(np.ravel(high)[0]) - low + 1 for low, (_, high) in zip(lows, box, strict=True)
    )
    shifted = tuple(Number(n.at(level) + low, level) for n, low in zip(corner, lows, strict=True))
    order = op.attribute("access_tile_order")
    permutation = tuple(range(len(extents)))
    if order is not None:
        permutation = module.resolved(order.value).permutation
    access = Access(view, shifted, extents, permutation, op.position)
    if not view.is_clipped:
        _check_inside(tracer, op, access, level)
    tracer.bind(op, op.results[0], access)


def _first_outside(access: Access, level: Level) -> tuple[int, int, int, int] | None:
    """Dim, compute tile, coordinate and size of the view where an access tile leaves it."""
    sizes = access.view.sizes
    for dim, (corner, extent, size) in enumerate(
        zip(access.corner, access.extents, sizes, strict=True)
    ):
        low = np.broadcast_to(corner.at(level), level.active.shape)
        last, most = low + extent - 1, np.broadcast_to(size.at(level), level.active.shape)
        outside = level.active & ((low < 0) | (last >= most))
        if outside.any():
            row, tile = (int(k) for k in np.argwhere(outside)[0])
            wrong = low[row, tile] if low[row, tile] < 0 else last[row, tile]
            return dim, tile, int(wrong), int(most[row, tile])
    return None


def _check_inside(tracer: Tracer, op: TileOp, access: Access, level: Level) -> None:
    """A tile stays in its static view: DeviceFault SPY414 with tile, dim and coordinate."""
    if (found := _first_outside(access, level)) is None:
        return
    dim, tile, wrong, most = found
    raise DeviceFault(
        "SPY414", f"a tile of data leaves its view on compute tile {tile}", tracer.place(op),
        expected=f"coordinates from 0, below {most}, along dim {dim}", found=f"{wrong}",
    )  # fmt: skip


def memory_tile(tracer: Tracer, op: TileOp, access: Access, level: Level) -> DataTile:
    """The memory of an access tile as an operand: whole sticks along the dim of stride 1."""
    view = access.view
    if view.is_clipped and _first_outside(access, level) is not None:
        tracer.refuse(op, "a tile that leaves a view of unknown sizes", "a tile inside of the view")
    _check_argument(tracer, op, view, level)
    if view.element not in FORMATS:
        tracer.refuse(op, f"a tile of {view.element}", f"one of {', '.join(FORMATS)}")
    bytes_ = ELEMENT_BYTES[view.element]
    strides = [_same(tracer, op, s.at(level)) for s in view.strides]
    offset = view.base.at(level)
    for corner, stride in zip(access.corner, strides, strict=True):
        offset = offset + corner.at(level) * stride
    lanes = STICK_BYTES // bytes_
    wide = [d for d, extent in enumerate(access.extents) if extent > 1]
    sticks = [d for d in wide if strides[d] == 1 and access.extents[d] % lanes == 0]
    others = [strides[d] for d in wide if d not in sticks]
    starts = offset * bytes_
    if len(sticks) != 1 or any(s % lanes for s in others) or (starts % STICK_BYTES).any():
        tracer.refuse(
            op,
            "a tile of memory that is no whole sticks",
            found=f"extents {access.extents}, strides {strides}",
        )
    pitches = [
        STICK_BYTES if d in sticks else strides[d] * bytes_ if access.extents[d] > 1 else 0
        for d in range(len(strides))
    ]
    return DataTile(
        access.shape, view.element, view.base.origin or 0, np.atleast_2d(starts), level,
        tuple(pitches[d] for d in access.order), access.order.index(sticks[0]),
    )  # fmt: skip


def _same(tracer: Tracer, op: TileOp, values: Array) -> int:
    if values.size > 1 and (values != values.flat[0]).any():
        tracer.refuse(op, "strides that differ between tiles")
    return int(values.flat[0])


def trace_load(tracer: Tracer, op: TileOp, level: Level) -> None:
    access = tracer.value(op.fields["tile"])
    if not isinstance(access, Access):
        tracer.refuse(op, "an indirect or distributed load")
    result = op.results[0]
    tile = memory_tile(tracer, op, access, level)
    until = tracer.uses.get((tracer.now, result), tracer.now)
    if not _is_folded(tracer, op, result):
        tile = tracer.pointwise(op, "identity", [tile], tile.shape, level, None, until)
    tracer.bind(op, result, tile)


def _is_folded(tracer: Tracer, op: TileOp, result: str) -> bool:
    """True if the one use of a load is in its block, with no store between."""
    block = tracer.block_of(op)
    users = [k for k, other in enumerate(block) for name in all_uses(other) if name == result]
    start = block.index(op)
    if len(users) != 1 or (block[users[0]].regions and block[users[0]].name.startswith("scf.")):
        return False
    between = block[start + 1 : users[0]]
    follow = block[users[0]]
    if follow.name in VIEWING:
        return False
    return not any(
        other.regions or other.name.startswith(("ktdp.store", "ktdp.inter")) for other in between
    )


def trace_store(tracer: Tracer, op: TileOp, level: Level) -> None:
    access = tracer.value(op.fields["tile"])
    if not isinstance(access, Access):
        tracer.refuse(op, "an indirect or distributed store")
    target = memory_tile(tracer, op, access, level)
    found, _ = tracer._lookup(op.fields["value"])
    if isinstance(found, Pending):
        made = found.emit(target)
        if made is target:
            return
        value = made
    else:
        value = tracer.tile(op.fields["value"], target.shape, target.element)
    tracer.pointwise(op, "identity", [value], target.shape, level, target, tracer.now)
