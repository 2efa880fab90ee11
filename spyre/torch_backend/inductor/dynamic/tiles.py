"""Row tiles: kernels of a graph for a fixed number of rows, the parts of a kernel for any number.

While a graph is compiled for a tile, `SpyreScheduling` collects its kernel here, and nothing is
cached. `row_strides` finds the buffers whose rows follow each other in memory and depend only on
the same row of the operands: such rows may be computed in groups of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from typing import Any

from spyre.torch_backend.inductor.kernel.operands import HostBuffer
from spyre.torch_backend.inductor.kernel.planning import PlannedKernel
from spyre.torch_backend.inductor.lowering.device_ir import Body, ConstantLoad, Load
from spyre.torch_backend.program import Ints, OpKind


class NotRowwise(Exception):
    """A graph is not a function of single rows, or its kernel cannot work on groups of rows."""


@dataclass(frozen=True, slots=True)
class RowTile:
    """The only kernel of a graph compiled for a number of rows.

    ``arguments``: names of buffers by arg_index. ``inputs``, ``outputs``: names in the graph's
    order. ``views``: host sizes, strides and offset (elements) of the outputs in those buffers.
    ``bodies``: with the buffer each writes.
    """

    name: str
    kernel: PlannedKernel
    arguments: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    views: tuple[tuple[Ints, Ints, int], ...]
    buffers: Mapping[str, HostBuffer]
    bodies: tuple[tuple[str, Body], ...]


@dataclass(slots=True)
class CollectedKernels:
    """The kernels of a graph, and operations that are in none of them."""

    row_tiles: list[RowTile] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


_collection: ContextVar[CollectedKernels | None] = ContextVar("collection", default=None)


def collecting() -> CollectedKernels | None:
    """The collection of this thread's kernels, or None."""
    return _collection.get()


@contextmanager
def collected() -> Iterator[CollectedKernels]:
    """Collect the kernels that this thread compiles in this block."""
    kernels = CollectedKernels()
    token = _collection.set(kernels)
    try:
        yield kernels
    finally:
        _collection.reset(token)


# --- rows ----------------------------------------------------------------------------------------


def row_strides(row_tile: RowTile, inputs: Mapping[str, int], rows: int) -> dict[str, int]:
    """The distance of rows in elements, for every buffer that has rows as its outermost dim.

    ``inputs``: the same for the inputs with rows. NotRowwise if an operation mixes rows.
    """
    all_strides = dict(inputs)
    for target, body in row_tile.bodies:
        if body.operation.program is not None:
            raise NotRowwise(f"{body.operation.name} depends on layouts")
        digit = _row_digit(body, all_strides, rows)
        if digit is None:
            continue
        symbol, inner = digit
        if symbol >= len(body.ranges):
            raise NotRowwise(f"{body.operation.name} reduces rows")
        strides = row_tile.buffers[target].strides
        all_strides[target] = _outermost(strides, body.ranges, symbol, inner, f"rows of {target}")
    return all_strides


def _row_digit(body: Body, known: Mapping[str, int], rows: int) -> tuple[int, int] | None:
    """(iteration symbol, steps per row) that counts rows in all operands with rows, or None."""
    extents = (*body.ranges, *body.reduced)
    digits = set()
    for load in body.loads:
        if load.buffer in known:
            digits.add(_digit_of(load, extents, known[load.buffer], rows))
    if len(digits) > 1:
        raise NotRowwise(f"{body.operation.name} takes rows of operands in different orders")
    return next(iter(digits), None)


def _digit_of(load: Load, extents: Ints, row: int, rows: int) -> tuple[int, int]:
    for symbol, (stride, extent) in enumerate(zip(load.strides, extents, strict=True)):
        if not stride or extent % rows or row != stride * (extent // rows):
            continue
        inner = extent // rows
        reach = load.offset + (inner - 1) * stride + _reach(load.strides, extents, symbol)
        if load.offset >= 0 and reach < row:
            return symbol, inner
    raise NotRowwise(f"elements of {load.buffer} are read in another order than by rows")


def _reach(strides: Sequence[int], extents: Sequence[int], without: int) -> int:
    pairs = enumerate(zip(strides, extents, strict=True))
    return sum(stride * (n - 1) for k, (stride, n) in pairs if k != without)


def _outermost(strides: Ints, ranges: Ints, symbol: int, inner: int, what: str) -> int:
    row = strides[symbol] * inner
    if _reach(strides, ranges, symbol) + strides[symbol] * (inner - 1) >= row:
        raise NotRowwise(f"{what} are not outermost")
    return row


# --- the same function ---------------------------------------------------------------------------


def check_alike(large: RowTile, small: RowTile, strides: Mapping[str, int], rows: int) -> None:
    """NotRowwise unless both compute the same function of a row, without numbers that depend on the
    number of rows.

    ``strides``: of rows in ``large``, which has ``rows`` rows.
    """
    if _signature(large) != _signature(small):
        raise NotRowwise("the computation depends on the number of rows")
    for target, body in large.bodies:
        if target not in strides and prod(body.ranges) != prod(_ranges(small, target)):
            raise NotRowwise(f"{body.operation.name} makes rows of nothing")


def _ranges(row_tile: RowTile, target: str) -> Ints:
    buffer = row_tile.buffers.get(target)
    return (0,) if buffer is None else buffer.sizes


def _signature(row_tile: RowTile) -> list[Any]:
    """Operations with their numbers, without copies, which depend on layouts."""
    signature: list[Any] = []
    for _, body in row_tile.bodies:
        operation = body.operation
        if operation.kind is OpKind.RESTICKIFY or operation.name == "identity":
            continue
        numbers = tuple(o for o in body.operands if isinstance(o, ConstantLoad))
        constants = tuple(sorted(operation.constants.items()))
        signature.append((operation.kind, operation.name, operation.dims, constants, numbers))
    return signature
