"""`coarse_tile`: stamp loops onto operations and cut their iteration spaces down to one tile.

Runs after layouts, restickify and padding, before anything that divides work or plans memory. The
attributes of an ir.Operation in a loop, one entry per loop, the outermost first:

- ``loop_group_id``: tuple, the path of its loop; operations with equal ones share a loop body;
- ``loop_count``: list of counts;
- ``loop_tiled_dims``: list of lists: the place in ``data.ranges`` that the loop splits, or nothing
  where the operation is the same in all iterations of that loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from spyre.errors import SpyreError, UnsupportedError
from spyre.torch_backend.inductor.compat import V, clear_caches, ir
from spyre.torch_backend.inductor.graph_to_ir import program_of
from spyre.torch_backend.inductor.tiling.accesses import (
    accesses_of,
    extents_of,
    is_loop_operation,
)
from spyre.torch_backend.inductor.tiling.accumulators import insert_accumulators
from spyre.torch_backend.inductor.tiling.groups import (
    TileGroup,
    TileLevel,
    check_groups,
    normalised,
    tile_extent,
    tiled_dims_of,
)
from spyre.torch_backend.inductor.tiling.propagation import insert_tiling_propagation
from spyre.torch_backend.inductor.tiling.safety import check_reduction_tiling_safety, check_tiles


def coarse_tile(
    operations: list[Any],
    groups: Sequence[Any],
    *,
    tiled_dims: Sequence[int] | None = None,
) -> None:
    """Tile ``groups`` of ``operations``; both change in place, the list where buffers are added.

    A group is ``(ops, count)``, ``(ops, count, dims)``, ``(ops, [(count, dims), …])``, the
    outermost loop first, or a `TileGroup`. Dims are places in ``data.ranges``; ``tiled_dims`` are
    those of flat groups without their own (None: dim 0). A level that names several dims becomes
    one loop per dim, each with the same count: one loop over all of them would only visit the
    diagonal. ``loop_count`` and ``loop_tiled_dims`` then have an entry for each.

    SpyreError, before anything is changed: SPY970 (form), SPY971 (not contiguous), SPY973 (counts
    and extents), SPY976 (operations that cannot be tiled, tiles of sizes known only at run time),
    SPY977 (reads beyond a tile).
    """
    if not groups:
        return
    found = normalised(groups, tiled_dims)
    check_groups(operations, found)
    for group in found:
        for op in group.operations:
            _check_operation(op, group)
    check_tiles(operations, found)
    sizes = {op.get_name(): list(op.data.ranges) for g in found for op in g.operations}
    accesses = {op.get_name(): accesses_of(op) for op in operations if is_loop_operation(op)}
    for group in found:
        _stamp_group(group)
    found = insert_accumulators(operations, found, sizes)
    insert_tiling_propagation(operations, found, accesses)


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
            found="several operations, made as the operands lie",
            hint="leave it out of the group: one loop before it and one behind it",
        )
    dims = tiled_dims_of(operation, group.levels)
    for (dim,) in (entry for entry in dims if entry):
        if dim >= len(extents_of(operation)):
            raise SpyreError(
                "SPY970",
                f"operation {operation.get_name()} has no dim {dim} to tile",
                expected=f"a place in ranges {list(operation.data.ranges)}",
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


def _stamp_group(group: TileGroup) -> None:
    """Attributes and ranges of all operations of a group."""
    for op in group.operations:
        dims = tiled_dims_of(op, group.levels)
        ranges = _divided(op, group)
        op.loop_group_id = group.path
        op.loop_count = [level.count for level in group.levels]
        op.loop_tiled_dims = dims
        _divide_ranges(op, ranges)


def _divide_ranges(operation: Any, ranges: Sequence[Any]) -> None:
    """Replace the ranges, of a reduction those it reduces too; Loops are frozen dataclasses."""
    rank = len(operation.data.ranges)
    object.__setattr__(operation.data, "ranges", list(ranges[:rank]))
    if isinstance(operation.data, ir.Reduction):
        object.__setattr__(operation.data, "reduction_ranges", list(ranges[rank:]))
    clear_caches(operation.data)
    clear_caches(operation)


def _divided(operation: Any, group: TileGroup) -> list[Any]:
    """Ranges of one tile, then reduced ones. SpyreError SPY973 where a count does not go with an
    extent.
    """
    ranges = list(extents_of(operation))
    dims = tiled_dims_of(operation, group.levels)
    for level, entry in zip(group.levels, dims, strict=True):
        for dim in entry:
            ranges[dim] = _tile_extent(operation, level, dim, ranges[dim])
    return ranges


def _tile_extent(operation: Any, level: TileLevel, dim: int, extent: Any) -> int:
    """Elements of a dim in one tile."""
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
    """Whether all tiles are whole; of sizes only a launch knows, a guard of the graph from now on,
    which is compiled anew for others.
    """
    whole = sympy.Eq(extent, tile * count)
    return bool(whole) if not whole.free_symbols else bool(V.graph.sizevars.expect_true(whole))
