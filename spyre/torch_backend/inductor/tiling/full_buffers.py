"""Buffers of full size for the results of tiling loops, accumulators, and redirected readers.

A tiled operation computes one tile at a time. Readers of its result outside of the loop read a
buffer of full size, which `FullBuffer` allocates before the loop. Loads in the bodies of operations
are redirected by buffer name, since their indices are always computed with the full strides.

Accumulators are an extension of the coarse-tiling document, for loops that split a reduced dim or K
of a matmul. A buffer of the result's full size is filled with the neutral element before the loops;
each iteration reduces its tile and combines the partial result with the buffer, which the readers
outside of the loop read. A sum is rounded once per tile, as in a tiled launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.base.compat import V, WrapperHandler, clear_caches, ir, ops
from spyre.torch_backend.inductor.lowering.device_ir import DEVICE_OPERATION, DeviceOperation
from spyre.torch_backend.inductor.tiling.accesses import is_loop_operation, names_read
from spyre.torch_backend.inductor.tiling.groups import TileGroup
from spyre.torch_backend.program import OpKind

COMBINED = {
    "sum": ("add", 0.0),
    "mean": ("add", 0.0),
    "batchmatmul": ("add", 0.0),
    "max": ("maximum", float("-inf")),
    "min": ("minimum", float("inf")),
    "prod": ("mul", 1.0),
}
"""By reduction type: the operation that combines two partial results, and its neutral element. A
mean is a sum of elements that are divided by their total number."""


class FullBuffer(ir.NopKernel):  # type: ignore[misc]
    """Memory of full size that loops fill; the wrapper allocates it at this node's position."""

    def should_allocate(self) -> bool:
        """Return True, because no kernel allocates it."""
        return True

    def has_side_effects(self) -> bool:
        """Return False, so that it is removed if nothing writes to it."""
        return False


def make_full_buffer(like: Any, layout: Any) -> FullBuffer:
    """Register a buffer with ``layout`` and the origins of ``like``; it is in no operation list."""
    with ir.IRNode.current_origins(like.get_origins()):
        full = FullBuffer(name=None, layout=layout, inputs=[])
    register(full)
    return full


def register(operation: Any) -> None:
    """Give an operation and its buffer new names in the graph; its operation list is unchanged."""
    graph = V.graph
    operation.name = _unused("buf", len(graph.buffers), graph.name_to_buffer, graph)
    graph.buffers.append(operation)
    graph.name_to_buffer[operation.name] = operation
    operation.operation_name = _unused("op", len(graph.operations), graph.name_to_op, graph)
    graph.name_to_op[operation.operation_name] = operation


def _unused(prefix: str, first: int, taken: Mapping[str, Any], graph: Any) -> str:
    number = first
    while (name := graph.qualify_name(f"{prefix}{number}")) in taken:
        number += 1
    return str(name)


def redirect_storage(operations: Iterable[Any], old: Any, new: Any) -> None:
    """Replace ``old`` by ``new`` in graph outputs, external calls and views.

    Bodies of loop operations refer to buffers by name; `redirect_loads` changes those.
    """
    V.graph.graph_outputs[:] = _replaced(list(V.graph.graph_outputs), old, new)
    for op in operations:
        if isinstance(op, ir.InputsKernel):
            op.inputs = _replaced(list(op.inputs), old, new)
        _replaced(getattr(op, "layout", None), old, new)


def _replaced(node: Any, old: Any, new: Any) -> Any:
    """Return ``node`` with ``new`` instead of ``old``; boxes around it are changed in place."""
    if node is old:
        return new
    if isinstance(node, (list, tuple)):
        return type(node)(_replaced(part, old, new) for part in node)
    if isinstance(node, ir.StorageBox) and node.data is old:
        node.data = new
    elif isinstance(node, (ir.MutableBox, ir.BaseView)):
        _replaced(node.data, old, new)
    elif isinstance(node, ir.MutationLayoutSHOULDREMOVE):
        _replaced(node.target, old, new)
    elif isinstance(node, ir.NonOwningLayout):
        _replaced(node.view, old, new)
    return node


LoadAt = Callable[[str, Any], tuple[str, Any]]
"""Of a load: (buffer, index) → those to load instead."""


class _Redirected(WrapperHandler):  # type: ignore[misc]
    def __init__(self, inner: Any, redirected: LoadAt) -> None:
        super().__init__(inner)
        self._redirected = redirected

    def load(self, name: str, index: Any) -> Any:
        return self._inner.load(*self._redirected(name, index))


def change_loads(operation: Any, change: Callable[[list[Any]], LoadAt]) -> None:
    """Change the loads in the body of a loop operation.

    ``change`` maps the index of the iteration, the reduced dims last, to a function that does each
    load instead; it is called whenever the body is evaluated.
    """
    body: Callable[..., Any] = operation.data.inner_fn

    def inner_fn(*indices: Sequence[Any]) -> Any:
        redirected = change([symbol for part in indices for symbol in part])
        with V.set_ops_handler(_Redirected(V.get_ops_handler(), redirected)):
            return body(*indices)

    object.__setattr__(operation.data, "inner_fn", inner_fn)
    clear_caches(operation.data)
    clear_caches(operation)


def redirect_loads(operation: Any, redirects: Mapping[str, LoadAt]) -> None:
    """Redirect loads in the body of a loop operation, by buffer name."""

    def load_at(name: str, index: Any) -> tuple[str, Any]:
        return redirects[name](name, index) if name in redirects else (name, index)

    change_loads(operation, lambda _: load_at)


def to_buffer(name: str) -> LoadAt:
    """Redirect loads to buffer ``name``, which has the same strides."""
    return lambda _, index: (name, index)


def keep_indices(operation: Any) -> None:
    """Keep the current indices of loads of ``operation``'s buffer when its layout changes.

    Bodies hold loaders of the buffer, some through views with other strides.
    """
    indexer = operation.get_layout().make_indexer()
    operation.make_indexer = lambda: indexer


def insert_accumulators(
    operations: list[Any], groups: Sequence[TileGroup], full_sizes: dict[str, list[Any]]
) -> list[TileGroup]:
    """Insert accumulators for stamped reductions; return the groups with the operations that
    combine partial results.

    ``full_sizes``: sizes of each operation's result before it was stamped. SpyreError SPY977 if the
    loop that splits a reduction also reads its result.
    """
    groups_made = []
    for group in groups:
        joined = list(group.operations)
        for op in group.operations:
            rank = len(op.data.get_pointwise_size())
            if any(dim >= rank for entry in op.loop_tiled_dims for dim in entry):
                combine = _accumulate(op, full_sizes[op.get_name()], operations, groups)
                joined.insert(joined.index(op) + 1, combine)
        groups_made.append(replace(group, operations=tuple(joined)))
    return groups_made


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
            redirect_loads(reader, {name: to_buffer(total.get_name())})
    operations.insert(_outermost(operation, operations), total)
    combine = _combine(operation, total, how)
    operations.insert(operations.index(operation) + 1, combine)
    return combine


def _check_readers(operation: Any, operations: Sequence[Any]) -> None:
    """Raise SpyreError SPY977 if the loop that splits a reduction reads the unfinished result."""
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
    """Return the index of the first operation in the outermost loop around ``operation``."""
    path = operation.loop_group_id[0]
    return next(
        k for k, op in enumerate(operations) if getattr(op, "loop_group_id", (None,))[0] == path
    )


def _neutral_buffer(operation: Any, size: list[Any], neutral: float) -> Any:
    """Return an operation that fills a buffer of the result's full size with ``neutral``."""
    dtype, layout = operation.get_dtype(), operation.get_layout()

    def fill(_: Sequence[Any]) -> Any:
        return ops.constant(neutral, dtype)

    data = ir.Pointwise(
        device=operation.get_device(), dtype=dtype, inner_fn=fill, ranges=list(size)
    )
    return _registered(operation, data, layout, "identity")


def _combine(operation: Any, total: Any, how: str) -> Any:
    """Return an operation in the same loops that combines the partial result with ``total``."""
    whole, tile = total.get_layout().make_indexer(), operation.get_layout().make_indexer()
    name = operation.get_name()

    def join(index: Sequence[Any]) -> Any:
        before = V.ops.load(total.get_name(), whole(index))
        partial = V.ops.load(name, tile(index))
        return getattr(ops, how)(before, partial)

    return in_same_loops(operation, join, total, how)


def in_same_loops(operation: Any, body: Callable[..., Any], target: Any, name: str) -> Any:
    """Return a pointwise operation in the loops of ``operation``, over its ranges, that writes into
    buffer ``target``.
    """
    ranges = list(operation.data.ranges)
    device, dtype = operation.get_device(), operation.get_dtype()
    with ir.IRNode.current_origins(operation.get_origins()):
        data = ir.Pointwise(device=device, dtype=dtype, inner_fn=body, ranges=ranges)
    made = _registered(operation, data, mutation_of(target), name)
    made.loop_group_id = operation.loop_group_id
    made.loop_count = list(operation.loop_count)
    made.loop_tiled_dims = [[d for d in e if d < len(ranges)] for e in operation.loop_tiled_dims]
    return made


def mutation_of(target: Any) -> Any:
    """Return the layout of an operation that writes into buffer ``target``."""
    return ir.MutationLayoutSHOULDREMOVE(ir.TensorBox(ir.StorageBox(target)))


def _registered(operation: Any, data: Any, layout: Any, name: str) -> Any:
    with ir.IRNode.current_origins(operation.get_origins()):
        buffer = ir.ComputedBuffer(name=None, layout=layout, data=data)
    register(buffer)
    buffer.origin_node = operation.origin_node
    buffer.named_dims = tuple(getattr(operation, "named_dims", ()))[: len(data.ranges)]
    setattr(buffer, DEVICE_OPERATION, DeviceOperation(OpKind.POINTWISE, name))
    return buffer
