"""One bundle for any number of rows, made of kernels for tiles of rows.

It has a loop over whole tiles of 64 rows, one over tiles of 8 and one over single rows. Each
iteration copies a tile's rows from the arguments to the pool, one column of sticks after the other,
since their distance depends on the launch. In the pool they have the layout of a tensor with that
many rows, on which the operations of the tile's kernel run.

While a graph is compiled for a tile, `SpyreScheduling` collects its kernel as a `RowTile`, and
nothing is cached. `row_strides` finds the buffers whose rows follow each other in memory and depend
only on the same row of the operands: such rows may be computed in groups of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any

import msgspec
import sympy
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.layout import contiguous_strides
from spyre.mlir.builder import POOL
from spyre.torch_backend.inductor.base.layouts import HostBuffer, HostExtents
from spyre.torch_backend.inductor.base.notes import SIZES_FILE
from spyre.torch_backend.inductor.base.settings import settings
from spyre.torch_backend.inductor.bundles.generation import KernelMemory
from spyre.torch_backend.inductor.bundles.kernel_op import (
    HBM,
    KernelLoop,
    KernelOp,
    KernelTensor,
    SizeSpec,
)
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel
from spyre.torch_backend.inductor.kernel.passes import PlannedKernel
from spyre.torch_backend.inductor.lowering.device_ir import Body, Load
from spyre.torch_backend.program import ConstantArgument, Ints, OpKind, core_split
from spyre.torch_backend.tensors import default_base

# --- kernels of tiles -----------------------------------------------------------------------------


class NotRowwise(Exception):
    """A graph is not a function of single rows, or its kernel cannot work on groups of rows."""


class RowTile(msgspec.Struct, frozen=True):
    """A kernel of a graph compiled for a number of rows: the only one, if there are no ``others``.

    ``arguments``: names of buffers by arg_index. ``inputs``, ``outputs``: names in the graph's
    order. ``views``: host sizes, strides and offset (elements) of the outputs in those buffers.
    ``bodies``: with the buffer each writes. ``others``: operations of the graph outside of it.
    """

    name: str
    kernel: PlannedKernel
    arguments: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    views: tuple[tuple[Ints, Ints, int], ...]
    buffers: Mapping[str, HostBuffer]
    bodies: tuple[tuple[str, Body], ...]
    others: tuple[str, ...]


_collection: ContextVar[list[RowTile] | None] = ContextVar("collection", default=None)


collecting: Callable[[], list[RowTile] | None] = _collection.get
"""The collection of this thread's kernels, or None."""


@contextmanager
def collected() -> Iterator[list[RowTile]]:
    """Collect the kernels that this thread compiles in this block."""
    row_tiles: list[RowTile] = []
    token = _collection.set(row_tiles)
    try:
        yield row_tiles
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
        buffer = small.buffers.get(target)
        elements = 0 if buffer is None else prod(buffer.sizes)
        if target not in strides and prod(body.ranges) != elements:
            raise NotRowwise(f"{body.operation.name} makes rows of nothing")


def _signature(row_tile: RowTile) -> list[Any]:
    """Operations with their numbers, without copies, which depend on layouts."""
    signature: list[Any] = []
    for _, body in row_tile.bodies:
        operation = body.operation
        if operation.kind is OpKind.RESTICKIFY or operation.name == "identity":
            continue
        numbers = tuple(o for o in body.operands if isinstance(o, ConstantArgument))
        constants = tuple(sorted(operation.constants.items()))
        signature.append((operation.kind, operation.name, operation.dims, constants, numbers))
    return signature


# --- one kernel for any number of rows ------------------------------------------------------------

TILE_ROWS = (64, 8, 1)
"""Rows of the tiles; each divides the one before."""
ROWS = sympy.Symbol("s0")
Operation = KernelOp | KernelLoop


class RowTensor(msgspec.Struct, frozen=True):
    """An argument with rows. ``inner``: elements of its first dim per row. ``columns``: of sticks,
    the product of the outer device dims.
    """

    name: str
    inner: int
    sizes: Ints
    dtype: str
    device_format: str
    columns: int
    lanes: int

    def bytes_of(self, rows: int) -> int:
        """Memory of a tile."""
        return self.columns * self.inner * rows * STICK_BYTES


class RowwiseKernel(msgspec.Struct, frozen=True):
    """A kernel for any number of rows. ``arguments``: (whether it is an input, its position among
    the graph's inputs or outputs) by arg_index. ``outputs``: buffers of the graph's outputs, their
    first dim in elements per row.
    """

    kernel: InductorKernel
    arguments: tuple[tuple[bool, int], ...]
    outputs: tuple[HostBuffer, ...]


def rowwise_kernel(row_tiles: Mapping[int, RowTile], row_inputs: Sequence[int]) -> RowwiseKernel:
    """The kernel made of ``row_tiles``, by their number of rows. NotRowwise if there is none.

    ``row_inputs``: positions of the inputs whose first dim counts rows.
    """
    large, small = row_tiles[TILE_ROWS[0]], row_tiles[TILE_ROWS[1]]
    strides = rows_of(large, row_inputs, TILE_ROWS[0])
    for rows in TILE_ROWS[1:]:
        check_alike(large, row_tiles[rows], strides, TILE_ROWS[0])
    tensors = {name: _row_tensor(large, small, name, strides) for name in _outside(large, strides)}
    if missing := [name for name in large.outputs if name not in tensors]:
        raise NotRowwise(f"output {missing[0]} has no rows")
    positions = {name: k for k, name in enumerate(large.arguments)}
    constants = list(dict.fromkeys(c for g in row_tiles.values() for c in g.kernel.constants))
    loops: list[Operation] = []
    for k, rows in enumerate(TILE_ROWS):
        row_tile = _TileLoop(
            row_tiles[rows], rows, _renamed(large, row_tiles[rows], tensors), positions
        )
        above = TILE_ROWS[k - 1] if k else 0
        loops.append(row_tile.loop(above, constants))
    numbers = ", ".join(f"arg_{positions[name]}" for name in tensors)
    note = (
        f"one bundle for any number of rows s0: loops over tiles of "
        f"{', '.join(map(str, TILE_ROWS))} rows\narguments with rows: {numbers}\n"
    )
    kernel = InductorKernel(
        large.name,
        loops,
        [_extents(large, name, tensors) for name in large.arguments],
        constants,
        {**large.kernel.notes, SIZES_FILE: note},
        [SizeSpec("s0", [(positions[large.inputs[k]], 0) for k in row_inputs])],
    )
    outputs = [tensors[name] for name in large.outputs]
    return RowwiseKernel(
        kernel,
        tuple(_source(large, name) for name in large.arguments),
        tuple(HostBuffer((t.inner, *t.sizes[1:]), (), t.dtype) for t in outputs),
    )


def rows_of(row_tile: RowTile, row_inputs: Sequence[int], rows: int) -> dict[str, int]:
    """`row_strides` of a tile of ``rows`` rows. NotRowwise also if arguments share memory."""
    named = [row_tile.inputs[k] for k in row_inputs]
    if written := sorted({target for target, _ in row_tile.bodies} & set(row_tile.inputs)):
        raise NotRowwise(f"input {written[0]} is written")
    if len(set(row_tile.outputs)) != len(row_tile.outputs) or set(row_tile.outputs) & set(
        row_tile.inputs
    ):
        raise NotRowwise("outputs share memory")
    return row_strides(row_tile, {n: prod(row_tile.buffers[n].sizes[1:]) for n in named}, rows)


def _outside(row_tile: RowTile, strides: Mapping[str, int]) -> list[str]:
    """Arguments with rows."""
    known = {*row_tile.inputs, *row_tile.outputs}
    if unknown := [name for name in row_tile.arguments if name not in known]:
        raise NotRowwise(f"argument {unknown[0]} is neither input nor output")
    return [name for name in row_tile.arguments if name in strides]


def _row_tensor(large: RowTile, small: RowTile, name: str, strides: Mapping[str, int]) -> RowTensor:
    """NotRowwise unless consecutive sticks of every column of sticks are rows."""
    buffer, rows = large.buffers[name], TILE_ROWS[0]
    sizes = buffer.sizes
    inner = sizes[0] // rows if sizes and sizes[0] % rows == 0 else 0
    expected = contiguous_strides(sizes)
    if not inner or buffer.strides != expected or strides[name] != inner * prod(sizes[1:]):
        raise NotRowwise(f"{name} is {list(sizes)}, strides {list(buffer.strides)}")
    layout = default_base(sizes, buffer.strides, buffer.dtype).layout
    less = (inner * TILE_ROWS[1], *sizes[1:])
    other = default_base(less, contiguous_strides(less), buffer.dtype).layout
    *outer, walked, lanes = layout.device_size
    is_innermost = walked == sizes[0] and other.device_size == (*outer, less[0], lanes)
    if not is_innermost or lanes != layout.elements_per_stick:
        raise NotRowwise(f"rows of {name} are not the innermost of its sticks")
    return RowTensor(name, inner, sizes, buffer.dtype, layout.device_dtype, prod(outer), lanes)


def _source(row_tile: RowTile, name: str) -> tuple[bool, int]:
    is_input = name in row_tile.inputs
    return is_input, (row_tile.inputs if is_input else row_tile.outputs).index(name)


def _renamed(
    large: RowTile, row_tile: RowTile, tensors: Mapping[str, RowTensor]
) -> dict[int, tuple[str, RowTensor | None]]:
    """Return the argument's name in ``large`` and its rows, by arg_index of a row tile."""
    renamed = {}
    for k, name in enumerate(row_tile.arguments):
        is_input, position = _source(row_tile, name)
        other = (large.inputs if is_input else large.outputs)[position]
        renamed[k] = (other, tensors.get(other))
    return renamed


def _extents(row_tile: RowTile, name: str, tensors: Mapping[str, RowTensor]) -> HostExtents:
    buffer = row_tile.buffers[name]
    if name not in tensors:
        return buffer.extents
    tensor = tensors[name]
    first = str(ROWS) if tensor.inner == 1 else f"{tensor.inner}*{ROWS}"
    return (first, *tensor.sizes[1:]), buffer.strides, buffer.dtype


class _TileLoop(msgspec.Struct):
    """The loop over tiles of one row tile.

    ``known``: by arg_index of the row tile, the argument's name in the kernel and its rows.
    ``positions``: arg_index in the kernel, by name.
    """

    row_tile: RowTile
    rows: int
    known: Mapping[int, tuple[str, RowTensor | None]]
    positions: Mapping[str, int]

    def loop(self, above: int, constants: Sequence[tuple[float, str]]) -> KernelLoop:
        """All whole tiles behind those of ``above`` rows (0: from the first row on).

        ``constants``: of the dynamic kernel.
        """
        begin = sympy.Integer(0) if not above else above * sympy.floor(ROWS / above)
        left = ROWS if not above else sympy.Mod(ROWS, above)
        kernel = self.row_tile.kernel
        offsets, at = {}, KernelMemory.of(kernel.kernel).pool_bytes
        for number, (_, tensor) in self.known.items():
            if tensor is not None:
                at = -(-at // STICK_BYTES) * STICK_BYTES
                offsets[number] = at
                at += tensor.bytes_of(self.rows)
        inputs = [k for k in offsets if self.row_tile.arguments[k] in self.row_tile.inputs]
        body: list[Operation] = [self._copy(k, offsets[k], begin, to_tile=True) for k in inputs]
        body += [self._moved(op, offsets, constants) for op in kernel.kernel]
        outputs = (k for k in offsets if k not in inputs)
        body += [self._copy(k, offsets[k], begin, to_tile=False) for k in outputs]
        return KernelLoop(sympy.floor(left / self.rows), tuple(body))

    def _copy(self, number: int, offset: int, begin: sympy.Expr, to_tile: bool) -> KernelLoop:
        """Copy a tile's rows to ``offset`` (bytes) in the pool or from there, a stick column in
        each iteration. The last dim, of one element, is the one that the loop over tiles follows.
        """
        name, tensor = self.known[number]
        assert tensor is not None
        lanes, count = tensor.lanes, tensor.inner * self.rows
        column_bytes = STICK_BYTES * tensor.inner * ROWS
        tile_bytes = STICK_BYTES * count
        rows = KernelTensor(
            tensor.device_format,
            (STICK_BYTES, STICK_BYTES, tile_bytes),
            1,
            self.positions[name],
            HBM,
            size_bytes=tensor.columns * column_bytes,
            strides=(tile_bytes, column_bytes),
            shift=STICK_BYTES * tensor.inner * begin,
            device_size=(tensor.columns, tensor.inner * ROWS, lanes),
        )
        tile = KernelTensor(
            tensor.device_format,
            (STICK_BYTES, tile_bytes, 0),
            1,
            start_bytes=offset,
            size_bytes=tensor.columns * tile_bytes,
            strides=(0, tile_bytes),
        )
        cores = core_split(count, settings().sencores)
        copy = KernelOp(
            "identity",
            OpKind.POINTWISE,
            (count, lanes, 1),
            (rows, tile) if to_tile else (tile, rows),
            (0, 0, 0),
            (cores, 1, 1),
            loop_dims=(2, 1),
        )
        return KernelLoop(tensor.columns, (copy,))

    def _moved(
        self, op: Operation, offsets: Mapping[int, int], constants: Sequence[tuple[float, str]]
    ) -> Operation:
        """An operation of the tile's kernel inside the loop over tiles, its arguments with rows in
        the pool at ``offsets`` (bytes, by arg_index).
        """
        if isinstance(op, KernelLoop):
            return replace(op, body=tuple(self._moved(o, offsets, constants) for o in op.body))
        tensors = []
        for tensor in op.tensors:
            strides = (0, *tensor.strides) if tensor.strides else ()
            if tensor.argument in offsets:
                start, memory, argument = offsets[tensor.argument], POOL, -1
            else:
                start, memory = tensor.start_bytes, tensor.memory
                argument = self._argument(tensor.argument, constants)
            tensors.append(
                replace(
                    tensor, argument=argument, memory=memory, start_bytes=start, strides=strides
                )
            )
        loop_dims = (-1, *op.loop_dims) if op.loop_dims else ()
        return replace(op, tensors=tuple(tensors), loop_dims=loop_dims)

    def _argument(self, number: int, constants: Sequence[tuple[float, str]]) -> int:
        """The arg_index in the dynamic kernel of one in the tile's."""
        tensors = len(self.row_tile.arguments)
        if number < 0:
            return number
        if number < tensors:
            return self.positions[self.known[number][0]]
        constant = self.row_tile.kernel.constants[number - tensors]
        return len(self.positions) + list(constants).index(constant)
