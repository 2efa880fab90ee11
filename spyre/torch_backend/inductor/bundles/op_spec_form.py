"""Kernels in the form of the coarse-tiling document: `OpSpec`, `LoopSpec` and `TensorArg`.

An operation has an iteration space of symbols, and every tensor one coordinate expression per
device dim. The form is for reading only: `to_op_specs` makes it of a kernel and `spec_text` prints
it, where SPYRE_KEEP, a pass dump or `spyre.explain` asks for it. The text is Python that makes the
same objects, with ``sympify``, the classes of this module and an enumeration ``DataFormats`` of
format names in its namespace. Symbols are plain
ones, and Inductor's floor divisions and remainders become those of sympy. Pure functions, for any
thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import indent
from typing import Any

import msgspec
import sympy

from spyre.dtypes import STICK_BYTES
from spyre.torch_backend.inductor.bundles.kernel_op import (
    LX,
    DeviceDim,
    Kernel,
    KernelLoop,
    KernelOp,
    KernelTensor,
    plain_expression,
)
from spyre.torch_backend.program import OpKind

SEGMENT_BYTES = 1 << 34
INDIRECT = "indirect"
ROW = sympy.Symbol("i0")
"""The row that an index names, in the coordinates of a gather's table."""


class TensorArg(msgspec.Struct, frozen=True):
    """One tensor of an operation.

    ``arg_index``: number among the kernel's arguments, -1 for LX and the pool. ``device_size``:
    elements per device dim, the stick last. ``device_coordinates``: one expression of the
    iteration's symbols per device dim. ``allocation``: in bytes, ``{"hbm": address}`` of element 0
    (argument k is in segment k, or in k + 1 if there is a pool), ``{"pool": offset}`` or
    ``{"lx": offset}``. ``per_tile_fixed``: loops do not advance it. ``within``: device size of the
    larger buffer that this is a tile of, which determines the pitches.
    """

    is_input: bool
    arg_index: int
    device_dtype: str
    device_size: Sequence[int]
    device_coordinates: Sequence[sympy.Expr]
    allocation: Mapping[str, int]
    per_tile_fixed: bool = False
    within: Sequence[int] = ()


class OpSpec(msgspec.Struct, frozen=True):
    """One operation of the card.

    ``op``: opFuncName. ``iteration_space``: symbol → (elements, cores that share them).
    ``tiled_symbols``: one per enclosing loop, the outermost first: the symbol that each iteration
    of that loop advances by its extent; 0 if the loop does not move the operation. A loop over
    tiles of one element has a separate symbol of extent 1. ``op_info``: constants, masks and the
    like.
    """

    op: str
    is_reduction: bool
    iteration_space: Mapping[sympy.Symbol, tuple[sympy.Expr, int]]
    args: Sequence[TensorArg]
    op_info: Mapping[str, Any] = msgspec.field(default_factory=dict)
    tiled_symbols: Sequence[sympy.Symbol] = ()


class LoopSpec(msgspec.Struct, frozen=True):
    """``body``, ``count`` times."""

    count: sympy.Expr
    body: Sequence[OpSpec | LoopSpec]


Spec = OpSpec | LoopSpec
INDENT = "    "


def to_op_specs(kernel: Kernel) -> tuple[Spec, ...]:
    """The operations and loops of ``kernel`` in the document's form."""
    return tuple(
        LoopSpec(sympy.sympify(op.count), list(to_op_specs(op.body)))
        if isinstance(op, KernelLoop)
        else _op_spec(op)
        for op in kernel
    )


def _op_spec(op: KernelOp) -> OpSpec:
    symbols = [sympy.Symbol(name) for name in op.symbols]
    rows = zip(symbols, op.extents, op.splits, strict=True)
    info: dict[str, Any] = {"constants": dict(op.constants)} if op.constants else {}
    if op.mask_from:
        info["mask_from"] = op.mask_from
    if op.rows:
        info[INDIRECT] = (str(ROW), op.symbols[op.indirect_dim(0)], op.rows)
    if not op.k_fast and op.kind is OpKind.MATMUL:
        info["k_fast"] = False
    return OpSpec(
        op.name,
        op.kind in (OpKind.REDUCTION, OpKind.MATMUL),
        {symbol: (sympy.Integer(extent), cores) for symbol, extent, cores in rows},
        [_argument(op, number) for number in range(len(op.tensors))],
        info,
        [symbols[dim] if dim >= 0 else sympy.Integer(0) for dim in op.loop_dims],
    )


def _argument(op: KernelOp, number: int) -> TensorArg:
    """A tensor. An output that loops move through is a tile ``within`` its buffer."""
    tensor = op.tensors[number]
    if not isinstance(tensor.size_bytes, int):
        return _sized_argument(op, number)
    dims = op.device_dims[number]
    is_input = not op.is_output(number)
    lane = sympy.Symbol(op.symbols[tensor.lane]) if tensor.lane >= 0 else None
    whole = [*(dim.size for dim in dims), tensor.lanes]
    is_part = bool(op.loop_dims) and not tensor.is_tile and not is_input
    # steps that the operation takes along each dim within one iteration of the loops
    steps = (1 + sum((op.extents[k] - 1) // unit for k, unit in dim.walked) for dim in dims)
    tile = [*steps, tensor.lanes] if is_part else whole
    coordinates = [_coordinate(op, number, dim) for dim in dims]
    coordinates.append(sympy.Integer(0) if lane is None else sympy.Mod(lane, tensor.lanes))
    form = (is_input, tensor.argument, tensor.format, tile, coordinates, _allocation(tensor))
    is_fixed = tensor.is_tile and tensor.memory != LX
    return TensorArg(*form, per_tile_fixed=is_fixed, within=whole if tile != whole else ())


def _allocation(tensor: KernelTensor) -> dict[str, int]:
    return {tensor.memory: tensor.start_bytes + SEGMENT_BYTES * max(tensor.argument, 0)}


def _sized_argument(op: KernelOp, number: int) -> TensorArg:
    """A tile of a tensor whose pitches and start depend on sizes that only a launch knows."""
    tensor, size, coordinates = op.tensors[number], [], []
    rest = sympy.expand(tensor.shift + tensor.offset_bytes)
    steps = dict(enumerate(tensor.pitches))
    steps |= {k: tensor.stride(loop) for loop, k in enumerate(op.loop_dims) if k == tensor.lane}
    pitch = STICK_BYTES * sympy.prod(tensor.device_size[:-1])
    for extent in tensor.device_size[:-1]:
        pitch = sympy.cancel(pitch / extent)
        coordinate, tile = sympy.Integer(0), 1
        for k in [k for k, step in steps.items() if _divides(pitch, step)]:
            factor = sympy.cancel(steps.pop(k) / pitch)
            lanes = tensor.lanes if k == tensor.lane else 1
            coordinate += factor * sympy.floor(sympy.Symbol(op.symbols[k], integer=True) / lanes)
            tile += factor * ((op.extents[k] - 1) // lanes)
        if _divides(pitch, rest):
            coordinate, rest = coordinate + sympy.cancel(rest / pitch), sympy.Integer(0)
        coordinates.append(plain_expression(coordinate))
        size.append(int(tile))
    size.append(tensor.lanes)
    coordinates.append(sympy.Mod(sympy.Symbol(op.symbols[tensor.lane]), tensor.lanes))
    form = (not op.is_output(number), tensor.argument, tensor.format, size, coordinates)
    return TensorArg(*form, _allocation(tensor), within=tensor.device_size)


def _divides(pitch: sympy.Expr, step: Any) -> bool:
    """Return True if ``step`` bytes are a whole multiple of ``pitch`` for all sizes."""
    quotient = sympy.cancel(step / pitch)
    return bool(step != 0 and sympy.denom(quotient) == 1)


def _coordinate(op: KernelOp, number: int, dim: DeviceDim) -> sympy.Expr:
    steps = [sympy.Symbol(op.symbols[k]) for k, _ in dim.walked]
    units = [unit for _, unit in dim.walked]
    coordinate = sum(
        (s if unit == 1 else sympy.floor(s / unit) for s, unit in zip(steps, units, strict=True)),
        sympy.Integer(dim.first),
    )
    indirect = op.indirect_dim(number)
    is_row = indirect >= 0 and op.tensors[number].pitches[indirect] == dim.pitch_bytes
    return coordinate + ROW if is_row else coordinate


# --- text ---------------------------------------------------------------------------------------


def operations_of(specs: Sequence[Spec]) -> Iterator[OpSpec]:
    """All operations of ``specs``, those in loops once."""
    for spec in specs:
        if isinstance(spec, LoopSpec):
            yield from operations_of(spec.body)
        else:
            yield spec


def spec_text(specs: Sequence[Spec]) -> str:
    """``specs`` as a Python list expression, without keywords that have their default."""
    return _block("[", map(_spec, specs), "]")


def expression_text(expression: Any) -> str:
    """``sympify('…')`` of an expression or a number."""
    if isinstance(expression, (int, sympy.Integer)):  # as most are; sympy's printer is slow
        return f"sympify({str(int(expression))!r})"
    return f"sympify({str(plain_expression(expression))!r})"


def _block(head: str, entries: Iterable[str], tail: str) -> str:
    return "\n".join([head, *(f"{indent(entry, INDENT)}," for entry in entries), tail])


def _spec(spec: Spec) -> str:
    if isinstance(spec, LoopSpec):
        body = _block("body=[", map(_spec, spec.body), "]")
        return _block("LoopSpec(", [f"count={expression_text(spec.count)}", body], ")")
    space = (
        f"{expression_text(symbol)}: ({expression_text(extent)}, {cores})"
        for symbol, (extent, cores) in spec.iteration_space.items()
    )
    entries = [
        f"op={spec.op!r}",
        f"is_reduction={bool(spec.is_reduction)}",
        _block("iteration_space={", space, "}"),
        f"op_info={dict(spec.op_info)!r}",
    ]
    if spec.tiled_symbols:
        entries.append(f"tiled_symbols=[{', '.join(map(expression_text, spec.tiled_symbols))}]")
    entries.append(_block("args=[", map(_arg, spec.args), "]"))
    return _block("OpSpec(", entries, ")")


def _arg(arg: TensorArg) -> str:
    allocation = {kind: int(number) for kind, number in arg.allocation.items()}
    entries = [
        f"is_input={bool(arg.is_input)}, arg_index={arg.arg_index}",
        f"device_dtype=DataFormats.{arg.device_dtype}",
        f"device_size={_numbers(arg.device_size)}",
        _block("device_coordinates=[", map(expression_text, arg.device_coordinates), "]"),
        f"allocation={allocation!r}",
    ]
    if arg.per_tile_fixed:
        entries.append("per_tile_fixed=True")
    if arg.within:
        entries.append(f"within={_numbers(arg.within)}")
    return _block("TensorArg(", entries, ")")


def _numbers(numbers: Sequence[Any]) -> str:
    plain = [sympy.sympify(n) for n in numbers]
    texts = (str(n) if n.is_Integer else expression_text(n) for n in plain)
    return f"[{', '.join(texts)}]"
