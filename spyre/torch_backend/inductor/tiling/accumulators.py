"""Accumulators: reductions, and K of matmuls, that a tiling loop splits.

Beyond the coarse-tiling document. An iteration reduces its tile of the reduced dim; a buffer of the
result's full size, filled with the neutral element before the loops, takes up one partial result
after the other. Who reads the reduction, outside of the loop that splits it, reads that buffer.
The sum over tiles is rounded once per tile, as a launch in tiles rounds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.compat import V, ir, ops
from spyre.torch_backend.inductor.graph_to_ir import ATTRIBUTE, DeviceOperation
from spyre.torch_backend.inductor.tiling.accesses import is_loop_operation, names_read
from spyre.torch_backend.inductor.tiling.full_buffers import (
    Redirect,
    redirect_loads,
    redirect_storage,
    register,
)
from spyre.torch_backend.inductor.tiling.groups import TileGroup
from spyre.torch_backend.program.op_spec import OpKind

COMBINED = {
    "sum": ("add", 0.0),
    "mean": ("add", 0.0),
    "batchmatmul": ("add", 0.0),
    "max": ("maximum", float("-inf")),
    "min": ("minimum", float("inf")),
    "prod": ("mul", 1.0),
}
"""By reduction type: the operation that joins two partial results, and its neutral element. A mean
is a sum of elements that are divided by the count of all of them."""


def splits_reduction(operation: Any, tiled_dims: Sequence[Sequence[int]]) -> bool:
    """Whether a loop splits a reduced dim of the operation."""
    rank = len(operation.data.get_pointwise_size())
    return any(dim >= rank for entry in tiled_dims for dim in entry)


def insert_accumulators(
    operations: list[Any], groups: Sequence[TileGroup], full_sizes: dict[str, list[Any]]
) -> list[TileGroup]:
    """Accumulators for stamped reductions; returns the groups with the operations that add up.

    ``full_sizes``: sizes of every operation's result before it was stamped. SpyreError SPY977 if
    the loop that splits a reduction also reads its result.
    """
    found = []
    for group in groups:
        joined = list(group.operations)
        for op in group.operations:
            if splits_reduction(op, op.loop_tiled_dims):
                combine = _accumulate(op, full_sizes[op.get_name()], operations, groups)
                joined.insert(joined.index(op) + 1, combine)
        found.append(replace(group, operations=tuple(joined)))
    return found


def _accumulate(
    operation: Any, size: list[Any], operations: list[Any], groups: Sequence[TileGroup]
) -> Any:
    name, (how, neutral) = operation.get_name(), COMBINED[operation.data.reduction_type]
    operation.decide_layout()
    total = _neutral_buffer(operation, size, neutral)
    _check_readers(operation, operations)
    redirect_storage(operations, operation, total)
    for reader in operations:
        if is_loop_operation(reader) and name in names_read(reader):
            redirect_loads(reader, {name: Redirect(total.get_name())})
    operations.insert(_outermost(operation, operations), total)
    combine = _combine(operation, total, how)
    operations.insert(operations.index(operation) + 1, combine)
    return combine


def _check_readers(operation: Any, operations: Sequence[Any]) -> None:
    """The total is there only when the loop that splits the reduction has ended."""
    rank = len(operation.data.get_pointwise_size())
    level = next(k for k, e in enumerate(operation.loop_tiled_dims) if e and e[0] >= rank)
    inside = operation.loop_group_id[: level + 1]
    for reader in operations:
        path = tuple(getattr(reader, "loop_group_id", ()))[: level + 1]
        if path == inside and operation.get_name() in names_read(reader):
            raise SpyreError(
                "SPY977",
                f"operation {reader.get_name()} reads {operation.get_name()} in the loop that "
                "splits its reduction",
                expected="an operation that is the same on every tile",
                found=f"loops {reader.loop_group_id}",
                hint="leave the hint's block before this operation, or tile another dim",
            )


def _outermost(operation: Any, operations: Sequence[Any]) -> int:
    """Where the outermost loop around an operation begins."""
    path = operation.loop_group_id[0]
    return next(
        k for k, op in enumerate(operations) if getattr(op, "loop_group_id", (None,))[0] == path
    )


def _neutral_buffer(operation: Any, size: list[Any], neutral: float) -> Any:
    """A buffer of the result's full size, filled."""
    dtype, layout = operation.get_dtype(), operation.get_layout()

    def fill(_: Sequence[Any]) -> Any:
        return ops.constant(neutral, dtype)

    data = ir.Pointwise(
        device=operation.get_device(), dtype=dtype, inner_fn=fill, ranges=list(size)
    )
    return _registered(operation, data, layout, "identity")


def _combine(operation: Any, total: Any, how: str) -> Any:
    """In the operation's loops: the partial result joins the total."""
    whole, tile = total.get_layout().make_indexer(), operation.get_layout().make_indexer()
    name = operation.get_name()

    def join(index: Sequence[Any]) -> Any:
        before = V.ops.load(total.get_name(), whole(index))
        partial = V.ops.load(name, tile(index))
        return getattr(ops, how)(before, partial)

    ranges = list(operation.data.ranges)
    data = ir.Pointwise(
        device=operation.get_device(), dtype=operation.get_dtype(), inner_fn=join, ranges=ranges
    )
    target = ir.MutationLayoutSHOULDREMOVE(ir.TensorBox(ir.StorageBox(total)))
    combine = _registered(operation, data, target, how)
    combine.loop_group_id = operation.loop_group_id
    combine.loop_count = list(operation.loop_count)
    combine.loop_tiled_dims = [
        [d for d in entry if d < len(ranges)] for entry in operation.loop_tiled_dims
    ]
    return combine


def _registered(operation: Any, data: Any, layout: Any, name: str) -> Any:
    with ir.IRNode.current_origins(operation.get_origins()):
        found = ir.ComputedBuffer(name=None, layout=layout, data=data)
    register(found)
    found.origin_node = operation.origin_node
    found.named_dims = tuple(getattr(operation, "named_dims", ()))[: len(data.ranges)]
    setattr(found, ATTRIBUTE, DeviceOperation(OpKind.POINTWISE, name))
    return found
