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

Each iteration of a loop runs the same operations on another tile. An operation may read results of
the same loop only within the tile of its iteration, and may not depend on the tile's position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec
import sympy

from spyre.errors import SpyreError, UnsupportedError
from spyre.torch_backend.inductor.base.compat import MemoryDep, V, clear_caches, ir
from spyre.torch_backend.inductor.base.layouts import FixedTiledLayout, stick_dim, tile_layout
from spyre.torch_backend.inductor.lowering.device_ir import program_of
from spyre.torch_backend.inductor.tiling import full_buffers
from spyre.torch_backend.inductor.tiling.accesses import (
    OperationAccesses,
    accesses_of,
    coefficient,
    coordinates,
    extents_of,
    is_loop_operation,
    layout_of,
    names_read,
    recombined,
    stays_within,
)
from spyre.torch_backend.inductor.tiling.full_buffers import COMBINED, FullBuffer, LoadAt
from spyre.torch_backend.inductor.tiling.groups import (
    TileGroup,
    TileLevel,
    check_groups,
    normalised,
    tile_extent,
    tiled_dims_of,
)

# --- checks, made before any operation is changed ------------------------------------------------


def check_reduction_tiling_safety(operation: Any, tiled_dims: Sequence[Sequence[int]]) -> None:
    """Raise UnsupportedError SPY976 for a reduction over a tiled dim if its partial results cannot
    be combined, or over two tiled dims, since there is one accumulator.
    """
    reduced = [
        d for entry in tiled_dims for d in entry if d >= len(operation.data.get_pointwise_size())
    ]
    if not isinstance(operation.data, ir.Reduction):
        assert not reduced, f"{operation.get_name()}: {reduced} are no dims of a Pointwise"
        return
    kind = operation.data.reduction_type
    if len(reduced) > 1 or (reduced and kind not in COMBINED):
        raise UnsupportedError(
            "SPY976",
            f"reduction {operation.get_name()} ({kind}) runs over a tiled dim",
            expected=f"one tiled dim of {', '.join(COMBINED)}, or dims of the result",
            found=f"dims {', '.join(map(str, reduced))} of the iteration space",
        )


class TilingLoops(msgspec.Struct, frozen=True):
    """The loops around an operation: their path, and per level the axis of the iteration space that
    the loop splits (None: it splits none).
    """

    path: tuple[int, ...]
    axes: tuple[int | None, ...]

    def common_levels(self, other: TilingLoops) -> int:
        """Return the number of loops that two operations share."""
        pairs = zip(self.path, other.path, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def loops_of(groups: Sequence[TileGroup]) -> dict[str, TilingLoops]:
    """Return the loops around each operation of ``groups``, by its buffer's name."""
    return {
        op.get_name(): TilingLoops(
            group.path, tuple(e[0] if e else None for e in tiled_dims_of(op, group.levels))
        )
        for group in groups
        for op in group.operations
    }


def check_tiles(operations: Sequence[Any], groups: Sequence[TileGroup]) -> None:
    """Raise SpyreError SPY977 or SPY973 if an operation of a group accesses more than its tile.

    Indices must be affine in tiled variables, which must not be used as values; tiles must not cut
    sticks; results of the same loop must be read within the same tile.
    """
    loops = loops_of(groups)
    by_name = {op.get_name(): op for op in operations if is_loop_operation(op)}
    makers = _makers(by_name, loops)
    _check_mutations(by_name, loops)
    for group in groups:
        for op in group.operations:
            _check_accesses(op, accesses_of(op), group, loops[op.get_name()], makers, loops)


def _makers(by_name: Mapping[str, Any], loops: Mapping[str, TilingLoops]) -> dict[str, list[str]]:
    """Return, by buffer, the operations in loops that write it; mutated buffers have several."""
    makers: dict[str, list[str]] = {}
    for name in loops:
        layout = by_name[name].layout
        makers.setdefault(name, []).append(name)
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            makers.setdefault(layout.get_buffer().get_name(), []).append(name)
    return makers


def _check_mutations(by_name: Mapping[str, Any], loops: Mapping[str, TilingLoops]) -> None:
    """Raise SPY977 if a loop reads a buffer that each of its iterations changes as a whole."""
    for name, writer in loops.items():
        layout = by_name[name].layout
        if not isinstance(layout, ir.MutationLayoutSHOULDREMOVE) or None not in writer.axes:
            continue
        target = layout.get_buffer().get_name()
        for reader, other in loops.items():
            if other.path[0] == writer.path[0] and target in names_read(by_name[reader]):
                action = f"changes {target} in every iteration, which {reader} reads"
                raise _beyond(by_name[name], action, f"no tiled dim at a level of {writer.path}")


def _check_accesses(
    operation: Any,
    accesses: OperationAccesses,
    group: TileGroup,
    own: TilingLoops,
    makers: Mapping[str, list[str]],
    loops: Mapping[str, TilingLoops],
) -> None:
    tiled = {axis: accesses.variables[axis] for axis in own.axes if axis is not None}
    for variable in filter(None, tiled.values()):
        if any(variable in value.free_symbols for value in accesses.index_values):
            raise _beyond(operation, "uses the position in a tiled dim as a value", str(variable))
    tile = _tile_extents(accesses, group, own)
    _check_sticks(operation, tile, layout_of(operation.get_name()), None)
    for read in accesses.reads:
        for variable in filter(None, tiled.values()):
            if coefficient(read.index, variable) is None:
                action = f"reads {read.name} at steps that differ along a tiled dim"
                raise _beyond(operation, action, str(read.index))
        _check_sticks(operation, tile, layout_of(read.name), (read, accesses))
        for maker in makers.get(read.name, ()):
            _check_same_tile(operation, read, accesses, own, loops[maker])


def _tile_extents(
    accesses: OperationAccesses, group: TileGroup, own: TilingLoops
) -> dict[int, Any]:
    extents: dict[int, Any] = {}
    for axis, level in zip(own.axes, group.levels, strict=True):
        if axis is not None:
            extents[axis] = tile_extent(extents.get(axis, accesses.extents[axis]), level.count)
    return extents


def _check_sticks(
    operation: Any,
    tile: Mapping[int, Any],
    layout: Any,
    by: tuple[MemoryDep, OperationAccesses] | None,
) -> None:
    """Raise SPY973 if sticks of a buffer run along a tiled dim and tiles are not whole sticks."""
    if not isinstance(layout, FixedTiledLayout) or (stick := stick_dim(layout)) is None:
        return
    lanes = layout.device_layout.elements_per_stick
    for axis, extent in tile.items():
        if _walks(axis, stick, layout, by) and extent % lanes != 0:
            raise SpyreError(
                "SPY973",
                f"tiles of dim {axis} of {operation.get_name()} cut sticks"
                + (f" of {by[0].name}" if by else ""),
                expected=f"a multiple of {lanes} elements, those of a stick of "
                f"{layout.device_layout.device_dtype}",
                found=f"tiles of {extent}, of an extent of {extents_of(operation)[axis]}",
            )


def _walks(
    axis: int, dim: int, layout: Any, by: tuple[MemoryDep, OperationAccesses] | None
) -> bool:
    """Return True if an axis of the iteration space moves along ``dim`` of a buffer: of the one
    that is read, or of the result if ``by`` is None.
    """
    if by is None:
        return axis == dim
    read, accesses = by
    variable = accesses.variables[axis]
    steps = coordinates(read.index, layout.size, layout.stride)
    if steps is None:
        return variable in read.index.free_symbols
    return variable in steps[dim].free_symbols


def _check_same_tile(
    operation: Any,
    read: MemoryDep,
    accesses: OperationAccesses,
    own: TilingLoops,
    made: TilingLoops,
) -> None:
    """Raise SPY977 unless, in the common loops, the reader's tiles are those of the result it
    reads.
    """
    common = own.common_levels(made)
    pairs = list(zip(made.axes[:common], own.axes[:common], strict=True))
    if all(made_axis is None for made_axis, _ in pairs):
        return
    layout = layout_of(read.name)
    steps = coordinates(read.index, layout.size, layout.stride)
    if steps is None or not stays_within(steps, layout.size, accesses):
        raise _beyond(operation, f"reads {read.name}, of the same loop, across its dims", read)
    for made_axis, own_axis in pairs:
        if made_axis is not None and made_axis >= len(steps):
            action = f"reads {read.name} in the loop that splits its reduction"
            raise _beyond(operation, action, read)
        variable = None if own_axis is None else accesses.variables[own_axis]
        if made_axis is not None and (variable is None or steps[made_axis] != variable):
            action = f"reads {read.name}, of the same loop, beyond the tile of its iteration"
            raise _beyond(operation, action, f"{steps[made_axis]} in dim {made_axis}")


def advances(
    read: MemoryDep, accesses: OperationAccesses, own: TilingLoops, made: TilingLoops
) -> Iterator[int]:
    """Yield the common levels that tile the reader but not the result it reads, where the read
    position changes with the iteration.
    """
    for level in range(own.common_levels(made)):
        axis = own.axes[level]
        if made.axes[level] is None and axis is not None:
            variable = accesses.variables[axis]
            if variable is not None and variable in read.index.free_symbols:
                yield level


def _beyond(operation: Any, action: str, found: object) -> SpyreError:
    return SpyreError(
        "SPY977",
        f"operation {operation.get_name()} {action}",
        expected="an operation that is the same on every tile",
        found=str(found),
        hint="leave the hint's block before this operation, or tile another dim",
    )


# --- the pass ------------------------------------------------------------------------------------


def coarse_tile(
    operations: list[Any], groups: Sequence[Any], *, tiled_dims: Sequence[int] | None = None
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
    tile_groups = full_buffers.insert_accumulators(operations, tile_groups, sizes)
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
    operations: list[Any], groups: Sequence[TileGroup], untiled: Mapping[str, OperationAccesses]
) -> None:
    """Give every stamped operation the buffer that its readers need; inserts into ``operations``.

    ``untiled``: accesses of operations before they were stamped, when no dim was reduced to one
    element.

    Operations that mutate a buffer already write it tile by tile and are not changed. Readers of
    the same loop body read tiles, unless they move along a dim that the writer holds in full. A
    result that no loop of its group tiles has its full size anyway.
    """
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
        full_buffers.redirect_loads(by_name[name], redirected)


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
    full_buffers.keep_indices(operation)
    if not leaves_loop:
        operation.layout = tile_layout(full_layout, operation.data.ranges)
        _fix_memory(operation, True)
    else:
        full = _insert_full_buffer(operation, full_layout, operations, loops)
        full_buffers.redirect_storage(operations, operation, full)
        for reader in filter(is_loop_operation, outside):
            redirects.setdefault(reader.get_name(), {})[name] = full_buffers.to_buffer(full.name)
        if not inside:
            operation.layout = full_buffers.mutation_of(full)
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
    full = full_buffers.make_full_buffer(operation, layout)
    operations.insert(first, full)
    return full


def _insert_copy(operation: Any, full: FullBuffer, operations: list[Any]) -> None:
    """Insert an operation behind ``operation``, in its loops, that copies each tile to ``full``."""
    tile = operation.layout.make_indexer()
    name = operation.get_name()

    def load(index: Sequence[Any]) -> Any:
        return V.ops.load(name, tile(index))

    copy = full_buffers.in_same_loops(operation, load, full, "identity")
    operations.insert(operations.index(operation) + 1, copy)
