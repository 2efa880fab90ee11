"""`coarse_tile`: stamp loops onto operations, reduce their ranges to one tile, and insert the
buffers that their readers need.

It runs after layouts, restickify and padding, and before work division and memory planning. The
attributes of an ir.Operation in a loop, one entry per loop, the outermost first:

- ``loop_group_id``: tuple, the path of its loop; operations with equal paths share a loop body;
- ``loop_count``: list of counts;
- ``loop_tiled_dims``: list of lists: the index in ``data.ranges`` that the loop splits, or an empty
  list if the operation is the same in all iterations of that loop.

The buffer of a tiled operation depends on its readers. If all are in its loop body, it holds one
tile at a fixed address (``per_tile_fixed``). If some are outside (case 1), a copy operation in the
loop also writes each tile to a full buffer, which those read. If all are outside (case 2), the
operation writes its tiles to the full buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from spyre.errors import SpyreError, UnsupportedError
from spyre.torch_backend.inductor.base.compat import V, clear_caches, ir
from spyre.torch_backend.inductor.base.layouts import FixedTiledLayout, tile_layout
from spyre.torch_backend.inductor.lowering.device_ir import program_of
from spyre.torch_backend.inductor.tiling.accesses import (
    OperationAccesses,
    accesses_of,
    extents_of,
    is_loop_operation,
    names_read,
    recombined,
)
from spyre.torch_backend.inductor.tiling.full_buffers import (
    FullBuffer,
    LoadAt,
    in_same_loops,
    insert_accumulators,
    keep_indices,
    make_full_buffer,
    mutation_of,
    redirect_loads,
    redirect_storage,
    to_buffer,
)
from spyre.torch_backend.inductor.tiling.groups import (
    TileGroup,
    TileLevel,
    check_groups,
    normalised,
    tile_extent,
    tiled_dims_of,
)
from spyre.torch_backend.inductor.tiling.safety import (
    TilingLoops,
    advances,
    check_reduction_tiling_safety,
    check_tiles,
    loops_of,
)


def coarse_tile(
    operations: list[Any],
    groups: Sequence[Any],
    *,
    tiled_dims: Sequence[int] | None = None,
) -> None:
    """Tile ``groups`` of ``operations``, in place; buffers and copies are inserted into the list.

    A group is ``(ops, count)``, ``(ops, count, dims)``, ``(ops, [(count, dims), …])``, the
    outermost loop first, or a `TileGroup`. Dims are indices in ``data.ranges``; ``tiled_dims`` are
    those of flat groups without dims (None: dim 0). A level that names several dims becomes one
    loop per dim, each with the same count, since one loop over all of them would only visit the
    diagonal. ``loop_count`` and ``loop_tiled_dims`` then have an entry for each.

    SpyreError before any change: SPY970 (form), SPY971 (not contiguous), SPY973 (counts
    and extents), SPY976 (operations that cannot be tiled, tiles of sizes known only at run time),
    SPY977 (reads beyond a tile).
    """
    if not groups:
        return
    tile_groups = normalised(groups, tiled_dims)
    check_groups(operations, tile_groups)
    for group in tile_groups:
        for op in group.operations:
            _check_operation(op, group)
    check_tiles(operations, tile_groups)
    sizes = {op.get_name(): list(op.data.ranges) for g in tile_groups for op in g.operations}
    accesses = {op.get_name(): accesses_of(op) for op in operations if is_loop_operation(op)}
    for group in tile_groups:
        for op in group.operations:
            ranges = _divided(op, group)
            op.loop_group_id = group.path
            op.loop_count = [level.count for level in group.levels]
            op.loop_tiled_dims = tiled_dims_of(op, group.levels)
            _divide_ranges(op, ranges)
    tile_groups = insert_accumulators(operations, tile_groups, sizes)
    insert_tiling_propagation(operations, tile_groups, accesses)


def _check_operation(operation: Any, group: TileGroup) -> None:
    if not is_loop_operation(operation):
        kind = type(getattr(operation, "data", operation)).__name__
        raise UnsupportedError(
            "SPY976",
            f"operation {operation.get_name()} cannot be in a tiling loop",
            expected="a Pointwise or a Reduction",
            found=kind,
        )
    if (program := program_of(operation)) is not None:
        raise UnsupportedError(
            "SPY976",
            f"operation {operation.get_name()} ({program.name}) cannot be in a tiling loop",
            expected="one operation over one iteration space",
            found="several operations, which depend on the operands' layouts",
            hint="leave it out of the group: one loop before it and one behind it",
        )
    dims = tiled_dims_of(operation, group.levels)
    for (dim,) in (entry for entry in dims if entry):
        if dim >= len(extents_of(operation)):
            raise SpyreError(
                "SPY970",
                f"operation {operation.get_name()} has no dim {dim} to tile",
                expected=f"an index in ranges {list(operation.data.ranges)}",
                found=f"dim {dim}",
            )
    check_reduction_tiling_safety(operation, dims)
    _check_concrete(operation, _divided(operation, group))


def _check_concrete(operation: Any, ranges: Sequence[Any]) -> None:
    symbolic = [n for n in ranges if sympy.sympify(n).free_symbols]
    if symbolic:
        raise UnsupportedError(
            "SPY976",
            f"operation {operation.get_name()} has sizes known only at run time",
            expected="tiles of concrete sizes: s0 // T of them along a dim of extent s0",
            found=", ".join(map(str, symbolic)),
            hint="tile these dims too, or compile with dynamic=False",
        )


def _divide_ranges(operation: Any, ranges: Sequence[Any]) -> None:
    """Replace the ranges and reduction ranges of an operation, which is a frozen dataclass."""
    rank = len(operation.data.ranges)
    object.__setattr__(operation.data, "ranges", list(ranges[:rank]))
    if isinstance(operation.data, ir.Reduction):
        object.__setattr__(operation.data, "reduction_ranges", list(ranges[rank:]))
    clear_caches(operation.data)
    clear_caches(operation)


def _divided(operation: Any, group: TileGroup) -> list[Any]:
    """Return the ranges of one tile, then the reduction ranges. SpyreError SPY973 if a count does
    not divide an extent.
    """
    ranges = list(extents_of(operation))
    dims = tiled_dims_of(operation, group.levels)
    for level, entry in zip(group.levels, dims, strict=True):
        for dim in entry:
            ranges[dim] = _tile_extent(operation, level, dim, ranges[dim])
    return ranges


def _tile_extent(operation: Any, level: TileLevel, dim: int, extent: Any) -> int:
    """Return the elements of a dim in one tile; SpyreError SPY973."""
    name = f" ({level.dim})" if isinstance(level.dim, str) else ""
    where = f"dim {dim}{name} of {operation.get_name()}"
    tile = tile_extent(extent, level.count)
    if tile is None or not _divides(extent, tile, level.count):
        raise SpyreError(
            "SPY973",
            f"{where} cannot be split into {level.count} tiles",
            expected=f"a count that divides its extent of {extent}",
            found=str(level.count),
        )
    return tile


def _divides(extent: Any, tile: int, count: Any) -> bool:
    """Return True if ``count`` tiles cover ``extent`` exactly. For symbolic sizes this becomes a
    guard of the graph, which is compiled again for sizes that violate it.
    """
    whole = sympy.Eq(extent, tile * count)
    return bool(whole) if not whole.free_symbols else bool(V.graph.sizevars.expect_true(whole))


def insert_tiling_propagation(
    operations: list[Any],
    groups: Sequence[TileGroup],
    untiled: Mapping[str, OperationAccesses],
) -> None:
    """Give every stamped operation the buffer that its readers need; inserts into ``operations``.

    ``untiled``: accesses of operations before they were stamped, when no dim was reduced to one
    element.

    Operations that mutate a buffer already write it tile by tile and are not changed. Readers of
    the same loop body read tiles, unless they move along a dim that the writer holds in full. A
    result that no loop of its group tiles has its full size anyway.
    """
    if not groups:
        return
    loops = loops_of(groups)
    new = [op for op in operations if is_loop_operation(op) and op.get_name() not in untiled]
    accesses = {**untiled, **{op.get_name(): accesses_of(op) for op in new}}
    outputs = set(V.graph.get_output_names())
    redirects: dict[str, dict[str, LoadAt]] = {}
    made = [op for group in groups for op in group.operations]
    for op in made:
        if isinstance(op.layout, (ir.MutationLayoutSHOULDREMOVE, ir.NonOwningLayout)):
            continue
        inside, outside = _readers(op, operations, loops, accesses)
        leaves_loop = bool(outside) or op.get_name() in outputs
        _give_buffer(op, inside, outside, leaves_loop, operations, loops, redirects)
    by_name = {op.get_name(): op for op in operations}
    for name, redirected in redirects.items():
        redirect_loads(by_name[name], redirected)


def _readers(
    operation: Any,
    operations: Sequence[Any],
    loops: Mapping[str, TilingLoops],
    accesses: Mapping[str, OperationAccesses],
) -> tuple[list[Any], list[Any]]:
    """Return operations of the same loop body that read an operation's tile, and other readers."""
    name = operation.get_name()
    inside: list[Any] = []
    outside: list[Any] = []
    for reader in operations:
        if reader is operation or name not in names_read(reader):
            continue
        of_tile = _reads_tile(reader.get_name(), name, loops, accesses)
        (inside if of_tile else outside).append(reader)
    return inside, outside


def _reads_tile(
    reader: str,
    name: str,
    loops: Mapping[str, TilingLoops],
    accesses: Mapping[str, OperationAccesses],
) -> bool:
    own, made = loops.get(reader), loops[name]
    if own is None or own.path != made.path:
        return False
    accessed = accesses[reader]
    reads = [read for read in accessed.reads if read.name == name]
    return not any(list(advances(read, accessed, own, made)) for read in reads)


def _give_buffer(
    operation: Any,
    inside: Sequence[Any],
    outside: Sequence[Any],
    leaves_loop: bool,
    operations: list[Any],
    loops: Mapping[str, TilingLoops],
    redirects: dict[str, dict[str, LoadAt]],
) -> None:
    name = operation.get_name()
    if all(axis is None for axis in loops[name].axes):
        _fix_memory(operation, not leaves_loop)
        return
    operation.decide_layout()
    full_layout = operation.get_layout()
    keep_indices(operation)
    if not leaves_loop:
        operation.layout = tile_layout(full_layout, operation.data.ranges)
        _fix_memory(operation, True)
    else:
        full = _insert_full_buffer(operation, full_layout, operations, loops)
        redirect_storage(operations, operation, full)
        for reader in filter(is_loop_operation, outside):
            redirects.setdefault(reader.get_name(), {})[name] = to_buffer(full.name)
        if not inside:
            operation.layout = mutation_of(full)
            return
        operation.layout = tile_layout(full_layout, operation.data.ranges)
        _fix_memory(operation, True)
        _insert_copy(operation, full, operations)
    strides = full_layout.size, full_layout.stride, operation.layout.stride

    def tile(_: str, index: Any) -> tuple[str, Any]:
        return name, recombined(index, *strides)

    for reader in inside:
        redirects.setdefault(reader.get_name(), {})[name] = tile


def _fix_memory(operation: Any, fixed: bool) -> None:
    if isinstance(operation.layout, FixedTiledLayout):
        operation.layout.per_tile_fixed = fixed


def _insert_full_buffer(
    operation: Any, layout: Any, operations: list[Any], loops: Mapping[str, TilingLoops]
) -> FullBuffer:
    """Insert a full buffer before the outermost loop around ``operation``, and return it."""
    outermost = loops[operation.get_name()].path[0]
    names = [op.get_name() for op in operations]
    first = next(n for n, o in enumerate(names) if o in loops and loops[o].path[0] == outermost)
    full = make_full_buffer(operation, layout)
    operations.insert(first, full)
    return full


def _insert_copy(operation: Any, full: FullBuffer, operations: list[Any]) -> None:
    """Insert an operation behind ``operation``, in its loops, that copies each tile to ``full``."""
    tile = operation.layout.make_indexer()
    name = operation.get_name()

    def load(index: Sequence[Any]) -> Any:
        return V.ops.load(name, tile(index))

    copy = in_same_loops(operation, load, full, "identity")
    operations.insert(operations.index(operation) + 1, copy)
