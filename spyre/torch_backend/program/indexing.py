"""Operations along one dim that are not elementwise: joins, gathers, top-k, running sums.

All of them need the dim outside the sticks; these functions change the layout of their operands
accordingly, with `Lowering`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec.structs import replace

from spyre.dtypes import find_stored_format
from spyre.torch_backend.program.emit import INDEX_STICK
from spyre.torch_backend.program.op_spec import (
    DeviceOp,
    Ints,
    OpKind,
    Value,
    device_format,
    narrowed,
    range_constants,
)
from spyre.torch_backend.program.operations import INTEGER, WIDE, Lowering, wide_multiple

MAX_ROWS = 1 << 24
"""Rows whose numbers float32 holds exactly."""


def other_lane(sizes: Sequence[int], dim: int) -> int:
    """The longest dim other than ``dim``, as a lane dim; -1 if none has several elements."""
    free = (k for k, n in enumerate(sizes) if k != dim and n > 1)
    return max(free, key=lambda k: (sizes[k], k), default=-1)


def off_lanes(low: Lowering, value: Value, dim: int) -> Value:
    """``value`` with sticks along a dim other than ``dim``, and memory for every element."""
    value = low.materialized(value)
    if value.lane_dim != dim or value.sizes[dim] == 1:
        return value
    return low.with_lane(value, other_lane(value.sizes, dim))


def cut_lanes(low: Lowering, value: Value, dim: int, start: int, length: int) -> Value:
    """``length`` elements of lane dim ``dim`` from ``start`` on, which may be within a stick.

    The result has sticks along ``dim`` too.
    """
    part = narrowed(off_lanes(low, value, dim), dim, start, length)
    return low.with_lane(part, dim if length > 1 else -1)


def stored_elements(sizes: Sequence[int], lane: int, lanes: int = 64) -> int:
    """Elements in memory of a tensor with ``lanes`` per stick along dim ``lane`` (-1: none)."""
    if lane < 0:
        return prod(sizes) * lanes
    return prod(sizes) // sizes[lane] * (-(-sizes[lane] // lanes) * lanes)


def join_lane(sizes: Sequence[int], starts: Sequence[int], dim: int, lanes: int) -> int:
    """The lane dim to join pieces in: the last one, unless pieces begin within its sticks."""
    last = len(sizes) - 1
    wanted = last if sizes[last] > 1 else -1
    if wanted != dim or all(start % lanes == 0 for start in starts):
        return wanted
    return other_lane(sizes, dim)


def joined(low: Lowering, pieces: Sequence[Value], dim: int, dtype: str) -> Value:
    """``pieces`` of one dtype, concatenated along ``dim``."""
    starts = [sum(p.sizes[dim] for p in pieces[:k]) for k in range(len(pieces))]
    sizes = list(pieces[0].sizes)
    sizes[dim] = starts[-1] + pieces[-1].sizes[dim]
    lanes = find_stored_format(device_format(dtype)).elements_per_stick
    lane = join_lane(sizes, starts, dim, lanes)
    into = low.scratch(sizes, dtype, lane)
    for start, piece in zip(starts, pieces, strict=True):
        wanted = lane if lane >= 0 and piece.sizes[lane] > 1 else -1
        low.copy_to(low.with_lane(piece, wanted), into, part=(dim, start, piece.sizes[dim]))
    return into


def gathered(low: Lowering, table: Value, dim: int, index: Value, sizes: Ints) -> Value:
    """``output[…, i, …] = table[…, index[…], …]`` along ``dim``, with ``sizes``.

    ``index``: of the output's rank, size 1 along dims it does not depend on. Indices out of range
    are a fault of the launch.
    """
    index = index.collapsed()
    if index.sizes[dim] == 1 < sizes[dim]:
        once = tuple(1 if k == dim else n for k, n in enumerate(sizes))
        return gathered(low, table, dim, index, once).expanded(sizes)
    table = off_lanes(low, table, dim)
    index = _words(low, index, table, dim)
    lane, split = table.lane_dim, index.lane_dim
    into = low.scratch(sizes, table.dtype, lane)
    if split < 0 or split == lane or sizes[split] <= INDEX_STICK or not sizes[split] % INDEX_STICK:
        return low.add(DeviceOp(OpKind.GATHER, "identity", (table, index), into, (dim,)))
    full_sticks = sizes[split] // INDEX_STICK * INDEX_STICK
    for start, length in ((0, full_sticks), (full_sticks, sizes[split] - full_sticks)):
        part = (split, start, length)
        rows = table if split == dim or table.sizes[split] == 1 else narrowed(table, *part)
        inputs = (rows, narrowed(index, *part))
        low.add(DeviceOp(OpKind.GATHER, "identity", inputs, into, (dim,), part=part))
    return into


def _words(low: Lowering, index: Value, table: Value, dim: int) -> Value:
    """``index`` in a layout that gathers read: sticks along the table's lane dim if the index has
    it, else along any dim of the index.
    """
    lane = table.lane_dim
    if lane >= 0 and index.sizes[lane] > 1:
        numbers = low.convert(low.with_lane(index, lane), "float32")
        return _padded_words(low, numbers, lane, table.view.elements_per_stick)
    if index.lane_dim < 0 and index.numel > 1:
        free = [k for k, n in enumerate(index.sizes) if n > 1]
        index = low.with_lane(index, dim if dim in free else free[-1])
    return low.convert(low.convert(index, "float32"), "int32")


def wrapped_positions(low: Lowering, index: Value, rows: int) -> Value:
    """Indices as float32, with negative ones counted from the end; below -``rows`` unchanged."""
    numbers = low.convert(index, "float32")
    zero, count = low.constant(0.0, "float32"), low.constant(rows, "float32")
    negative = low.pointwise("lesserthan", numbers, zero)
    wrapped = low.pointwise("add", numbers, low.pointwise("mul", negative, count))
    return low.pointwise("where3", low.pointwise("lesserthan", wrapped, zero), numbers, wrapped)


def _padded_words(low: Lowering, numbers: Value, lane: int, multiple: int) -> Value:
    """float32 indices as words, with zeros up to ``multiple`` along ``lane``."""
    extent = numbers.sizes[lane]
    padded, sticks = -(-extent // multiple) * multiple, -(-extent // INDEX_STICK) * INDEX_STICK
    sizes = tuple(padded if k == lane else n for k, n in enumerate(numbers.sizes))
    into = low.scratch(sizes, "float32", lane)
    factors = (numbers, low.constant(1.0, "float32"))
    low.write("mul", factors, into, mask_from=extent, part=(lane, 0, extent))
    if padded > sticks:
        zero = low.constant(0.0, "float32")
        low.copy_to(zero, into, part=(lane, sticks, padded - sticks))
    return narrowed(low.convert(into, "int32"), lane, 0, extent)


def largest(low: Lowering, value: Value, dim: int, count: int, indices: bool) -> Value:
    """The ``count`` largest elements along ``dim`` in falling order, or their indices (int64)."""
    value = off_lanes(low, value, dim)
    if len(value.view.dims[dim]) > 1:
        # positions count the steps of one pitch
        value = low.broadcast(value, value.sizes)
    sizes = tuple(count if k == dim else n for k, n in enumerate(value.sizes))
    lane = value.lane_dim
    if not indices:
        into = low.scratch(sizes, value.dtype, lane)
        return low.add(DeviceOp(OpKind.TOPK, "topkvalue", (value,), into, (dim,)))
    half = value.view.elements_per_stick == WIDE
    multiple = wide_multiple(value) if half else 0
    into = low.scratch(sizes, "int64", lane, multiple)
    positions = low.add(DeviceOp(OpKind.TOPK, "topkindex", (value,), into, (dim,)))
    return replace(positions, order=None) if multiple else positions


def running_sum(low: Lowering, value: Value, dim: int) -> Value:
    """Sums of all elements up to each one along ``dim``, in log2(extent) steps."""
    value = off_lanes(low, value, dim)
    name = "addi32toi32" if value.format == INTEGER else "add"
    constants = range_constants(name, value.dtype)
    extent, step = value.sizes[dim], 1
    while step < extent:
        remaining = extent - step
        into = low.scratch(value.sizes, value.dtype, value.lane_dim)
        head, tail = narrowed(value, dim, 0, step), narrowed(value, dim, step, remaining)
        before = narrowed(value, dim, 0, remaining)
        low.copy_to(head, into, part=(dim, 0, step))
        part = (dim, step, remaining)
        low.write(name, (before, tail), into, constants=constants, part=part)
        value, step = into, 2 * step
    return value
