"""Kernels in the form the coarse-tiling document prints: `OpSpec`, `LoopSpec` and `TensorArg`.

Coordinates are sums of one symbol per dim of the operation, as every pitch is the step of one
device dim. Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from spyre.torch_backend.inductor.bundles.kernel_op import (
    LX,
    DeviceDim,
    KernelLoop,
    KernelOp,
)
from spyre.torch_backend.inductor.bundles.op_spec import (
    AnySpec,
    DataFormats,
    LoopSpec,
    OpSpec,
    Spec,
    TensorArg,
)
from spyre.torch_backend.program import OpKind

SEGMENT_BYTES = 1 << 34
INDIRECT = "indirect"
ROW = sympy.Symbol("i0")
"""What an index says, in the coordinates of a gather's table."""


def documented(kernel: Sequence[AnySpec]) -> tuple[Spec, ...]:
    """Operations and loops as the document has them; those that are in its form already stay."""
    return tuple(map(_spec, kernel))


def _spec(op: AnySpec) -> Spec:
    if isinstance(op, KernelLoop):
        return LoopSpec(sympy.sympify(op.count), list(documented(op.body)))
    return _op_spec(op) if isinstance(op, KernelOp) else op


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
    """A tensor. What a loop writes of a whole one is a tile of it; tiles alone do not move."""
    tensor, dims = op.tensors[number], op.device_dims(number)
    is_input = number < len(op.tensors) - 1
    lane = sympy.Symbol(op.symbols[tensor.lane]) if tensor.lane >= 0 else None
    whole = [*(dim.size for dim in dims), tensor.lanes]
    is_part = bool(op.loop_dims) and not tensor.is_tile and not is_input
    tile = [*(_steps_within(op, dim) for dim in dims), tensor.lanes] if is_part else whole
    start = tensor.start_bytes + SEGMENT_BYTES * max(tensor.argument, 0)
    return TensorArg(
        is_input,
        tensor.argument,
        DataFormats(tensor.format),
        tile,
        [
            *(_coordinate(op, number, dim) for dim in dims),
            sympy.Integer(0) if lane is None else sympy.Mod(lane, tensor.lanes),
        ],
        {tensor.memory: start},
        per_tile_fixed=tensor.is_tile and tensor.memory != LX,
        within=whole if tile != whole else (),
    )


def _steps_within(op: KernelOp, dim: DeviceDim) -> int:
    """Steps of a device dim that an operation takes within one iteration of the loops."""
    return 1 + sum((op.extents[k] - 1) // unit for k, unit in dim.walked)


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
