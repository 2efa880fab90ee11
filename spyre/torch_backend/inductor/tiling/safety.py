"""Checks that operations can be tiled, made before any of them is changed.

Each iteration of a loop runs the same operations on another tile. An operation may read results of
the same loop only within the tile of its iteration, and may not depend on the tile's position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from spyre.errors import SpyreError, UnsupportedError
from spyre.torch_backend.inductor.base.compat import MemoryDep, ir
from spyre.torch_backend.inductor.base.layouts import FixedTiledLayout, stick_dim
from spyre.torch_backend.inductor.tiling.accesses import (
    OperationAccesses,
    accesses_of,
    coefficient,
    coordinates,
    extents_of,
    is_loop_operation,
    layout_of,
    names_read,
    stays_within,
)
from spyre.torch_backend.inductor.tiling.groups import TileGroup, tile_extent, tiled_dims_of


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


@dataclass(frozen=True, slots=True)
class TilingLoops:
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
            group.path,
            tuple(e[0] if e else None for e in tiled_dims_of(op, group.levels)),
        )
        for group in groups
        for op in group.operations
    }


def check_tiles(operations: Sequence[Any], groups: Sequence[TileGroup]) -> None:
    """Raise SpyreError SPY977 or SPY973 if an operation of a group accesses more than its tile.

    Indices must be affine in tiled variables, which must not be used as values; tiles must not cut
    sticks; results of the same loop must be read within the same tile.
    """
    if not groups:
        return
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
