"""`insert_tiling_propagation`: full-sized buffers for what is read outside of its loop.

Per tiled operation: read in its loop body only: its buffer holds a tile and stays where it is
(``per_tile_fixed``). Read outside too (case 1): besides, a copy operation in the loop writes each
tile to a full buffer, which the others read. Read outside only (case 2): the operation itself
writes its tiles to the full buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spyre.torch_backend.inductor.compat import V, ir
from spyre.torch_backend.inductor.layouts import FixedTiledLayout, tile_layout
from spyre.torch_backend.inductor.tiling.accesses import (
    OperationAccesses,
    accesses_of,
    is_loop_operation,
    names_read,
)
from spyre.torch_backend.inductor.tiling.full_buffers import (
    FullBuffer,
    Redirect,
    keep_indices,
    make_full_buffer,
    redirect_loads,
    redirect_storage,
    register,
)
from spyre.torch_backend.inductor.tiling.groups import TileGroup
from spyre.torch_backend.inductor.tiling.safety import Loops, advances, loops_of


@dataclass(frozen=True, slots=True)
class _Uses:
    """Who reads a buffer: operations of the same loop body that read its tile, and all others."""

    inside: tuple[Any, ...]
    outside: tuple[Any, ...]
    is_output: bool

    @property
    def leaves_loop(self) -> bool:
        return bool(self.outside) or self.is_output


def insert_tiling_propagation(
    operations: list[Any],
    groups: Sequence[TileGroup],
    untiled: Mapping[str, OperationAccesses],
) -> None:
    """Give every stamped operation the buffer that its readers need; ``operations`` grows.

    ``untiled``: accesses of operations before they were stamped; dims that are cut down to one
    element do not show in them any more.

    Operations that mutate a buffer write it tile by tile already and stay as they are. Readers of
    the same loop body read tiles unless they move along a dim that the maker holds in full. A
    buffer that follows no loop of its group has its full size anyway.
    """
    if not groups:
        return
    loops = loops_of(groups)
    new = [op for op in operations if is_loop_operation(op) and op.get_name() not in untiled]
    accesses = {**untiled, **{op.get_name(): accesses_of(op) for op in new}}
    outputs = set(V.graph.get_output_names())
    redirects: dict[str, dict[str, Redirect]] = {}
    made = [op for group in groups for op in group.operations]
    for op in made:
        if isinstance(op.layout, (ir.MutationLayoutSHOULDREMOVE, ir.NonOwningLayout)):
            continue
        uses = _uses(op, operations, loops, accesses, outputs)
        _give_buffer(op, uses, operations, loops, redirects)
    by_name = {op.get_name(): op for op in operations}
    for name, found in redirects.items():
        redirect_loads(by_name[name], found)


def _uses(
    operation: Any,
    operations: Sequence[Any],
    loops: Mapping[str, Loops],
    accesses: Mapping[str, OperationAccesses],
    outputs: set[str],
) -> _Uses:
    name = operation.get_name()
    inside: list[Any] = []
    outside: list[Any] = []
    for reader in operations:
        if reader is operation or name not in names_read(reader):
            continue
        of_tile = _reads_tile(reader.get_name(), name, loops, accesses)
        (inside if of_tile else outside).append(reader)
    return _Uses(tuple(inside), tuple(outside), name in outputs)


def _reads_tile(
    reader: str,
    name: str,
    loops: Mapping[str, Loops],
    accesses: Mapping[str, OperationAccesses],
) -> bool:
    own, made = loops.get(reader), loops[name]
    if own is None or own.path != made.path:
        return False
    found = accesses[reader]
    reads = [read for read in found.reads if read.buffer == name]
    return not any(list(advances(read, found, own, made)) for read in reads)


def _give_buffer(
    operation: Any,
    uses: _Uses,
    operations: list[Any],
    loops: Mapping[str, Loops],
    redirects: dict[str, dict[str, Redirect]],
) -> None:
    name = operation.get_name()
    if all(place is None for place in loops[name].places):
        _fix_memory(operation, not uses.leaves_loop)
        return
    operation.decide_layout()
    full_layout = operation.get_layout()
    keep_indices(operation)
    if not uses.leaves_loop:
        operation.layout = tile_layout(full_layout, operation.data.ranges)
        _fix_memory(operation, True)
    else:
        full = _place_full_buffer(operation, full_layout, operations, loops)
        _lead_outside(operation, full, uses, operations, redirects)
        if not uses.inside:
            operation.layout = _mutation(full)
            return
        operation.layout = tile_layout(full_layout, operation.data.ranges)
        _fix_memory(operation, True)
        _insert_copy(operation, full, operations)
    tile = Redirect(name, full_layout.size, full_layout.stride, operation.layout.stride)
    for reader in uses.inside:
        redirects.setdefault(reader.get_name(), {})[name] = tile


def _fix_memory(operation: Any, fixed: bool) -> None:
    if isinstance(operation.layout, FixedTiledLayout):
        operation.layout.per_tile_fixed = fixed


def _mutation(full: FullBuffer) -> Any:
    return ir.MutationLayoutSHOULDREMOVE(ir.TensorBox(ir.StorageBox(full)))


def _place_full_buffer(
    operation: Any, layout: Any, operations: list[Any], loops: Mapping[str, Loops]
) -> FullBuffer:
    """A full buffer, allocated just before the outermost loop around ``operation``."""
    outermost = loops[operation.get_name()].path[0]
    names = [op.get_name() for op in operations]
    first = next(n for n, o in enumerate(names) if o in loops and loops[o].path[0] == outermost)
    full = make_full_buffer(operation, layout)
    operations.insert(first, full)
    return full


def _lead_outside(
    operation: Any,
    full: FullBuffer,
    uses: _Uses,
    operations: Sequence[Any],
    redirects: dict[str, dict[str, Redirect]],
) -> None:
    """Outside readers, graph outputs and views read the full buffer."""
    redirect_storage(operations, operation, full)
    for reader in filter(is_loop_operation, uses.outside):
        redirects.setdefault(reader.get_name(), {})[operation.get_name()] = Redirect(full.name)


def _insert_copy(operation: Any, full: FullBuffer, operations: list[Any]) -> None:
    """After ``operation``, in the same loops: each tile is copied to its place in ``full``."""
    tile = operation.layout.make_indexer()
    name = operation.get_name()

    def load(index: Sequence[Any]) -> Any:
        return V.ops.load(name, tile(index))

    ranges = list(operation.data.ranges)
    device, dtype = operation.get_device(), operation.get_dtype()
    with ir.IRNode.current_origins(operation.get_origins()):
        data = ir.Pointwise(device=device, dtype=dtype, inner_fn=load, ranges=ranges)
        copy = ir.ComputedBuffer(name=None, layout=_mutation(full), data=data)
    register(copy)
    copy.origin_node = operation.origin_node
    copy.loop_group_id = operation.loop_group_id
    copy.loop_count = list(operation.loop_count)
    copy.loop_tiled_dims = [
        [d for d in entry if d < len(ranges)] for entry in operation.loop_tiled_dims
    ]
    copy.named_dims = tuple(getattr(operation, "named_dims", ()))[: len(ranges)]
    operations.insert(operations.index(operation) + 1, copy)
