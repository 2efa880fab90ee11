"""What a tiling loop must not do, checked before anything is changed.

An iteration runs the same operations on another tile: an operation may only read, of what the
same loop makes, the tile of its own iteration; and may not depend on where its tile lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spyre.errors import SpyreError, UnsupportedError
from spyre.torch_backend.inductor.base import FixedTiledLayout, ir, stick_dim
from spyre.torch_backend.inductor.tiling.accesses import (
    BufferRead,
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
    """UnsupportedError SPY976 for a reduction over a tiled dim whose partial results nothing joins.

    Two loops over reduced dims, too: there is one accumulator.
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
            found=f"places {', '.join(map(str, reduced))} of the iteration space",
        )


@dataclass(frozen=True, slots=True)
class TilingLoops:
    """The loops around an operation: path, and per level the place it splits (None: not at all)."""

    path: tuple[int, ...]
    places: tuple[int | None, ...]

    def common_levels(self, other: TilingLoops) -> int:
        """How many loops two operations share."""
        shared = 0
        for mine, theirs in zip(self.path, other.path, strict=False):
            if mine != theirs:
                break
            shared += 1
        return shared


def loops_of(groups: Sequence[TileGroup]) -> dict[str, TilingLoops]:
    """By name of the operation's buffer."""
    return {
        op.get_name(): TilingLoops(
            group.path,
            tuple(e[0] if e else None for e in tiled_dims_of(op, group.levels)),
        )
        for group in groups
        for op in group.operations
    }


def check_tiles(operations: Sequence[Any], groups: Sequence[TileGroup]) -> None:
    """SpyreError SPY977 or SPY973 if an operation of a group goes beyond the tile of an iteration.

    Indices must be affine in tiled variables, which must not be used as values; a stick must not
    be cut; what the same loop makes is read in the same tile.
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
    """Operations in loops that write a buffer, by its name; mutated buffers have several."""
    makers: dict[str, list[str]] = {}
    for name in loops:
        layout = by_name[name].layout
        makers.setdefault(name, []).append(name)
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            makers.setdefault(layout.get_buffer().get_name(), []).append(name)
    return makers


def _check_mutations(by_name: Mapping[str, Any], loops: Mapping[str, TilingLoops]) -> None:
    """A buffer that is changed anew in each iteration is read by nothing of the same loop."""
    for name, own in loops.items():
        layout = by_name[name].layout
        if not isinstance(layout, ir.MutationLayoutSHOULDREMOVE) or None not in own.places:
            continue
        target = layout.get_buffer().get_name()
        for reader, other in loops.items():
            if other.path[0] == own.path[0] and target in names_read(by_name[reader]):
                what = f"changes {target} in every iteration, which {reader} reads"
                raise _beyond(by_name[name], what, f"no tiled dim at a level of {own.path}")


def _check_accesses(
    operation: Any,
    accesses: OperationAccesses,
    group: TileGroup,
    own: TilingLoops,
    makers: Mapping[str, list[str]],
    loops: Mapping[str, TilingLoops],
) -> None:
    tiled = {p: accesses.variables[p] for p in own.places if p is not None}
    for variable in filter(None, tiled.values()):
        if any(variable in value.free_symbols for value in accesses.index_values):
            raise _beyond(operation, "uses the position in a tiled dim as a value", str(variable))
    tile = _tile_extents(accesses, group, own)
    _check_sticks(operation, tile, layout_of(operation.get_name()), None)
    for read in accesses.reads:
        for variable in filter(None, tiled.values()):
            if coefficient(read.index, variable) is None:
                what = f"reads {read.buffer} at steps that differ along a tiled dim"
                raise _beyond(operation, what, str(read.index))
        _check_sticks(operation, tile, layout_of(read.buffer), (read, accesses))
        for maker in makers.get(read.buffer, ()):
            _check_same_tile(operation, read, accesses, own, loops[maker])


def _tile_extents(
    accesses: OperationAccesses, group: TileGroup, own: TilingLoops
) -> dict[int, Any]:
    extents: dict[int, Any] = {}
    for place, level in zip(own.places, group.levels, strict=True):
        if place is not None:
            extents[place] = tile_extent(extents.get(place, accesses.extents[place]), level.count)
    return extents


def _check_sticks(
    operation: Any,
    tile: Mapping[int, Any],
    layout: Any,
    by: tuple[BufferRead, OperationAccesses] | None,
) -> None:
    """SPY973 if a tiled dim lies along the sticks of a buffer and its tiles are no whole sticks."""
    if not isinstance(layout, FixedTiledLayout) or (stick := stick_dim(layout)) is None:
        return
    lanes = layout.device_layout.elements_per_stick
    for place, extent in tile.items():
        along = _walks(place, stick, layout, by)
        if along and extent % lanes != 0:
            raise SpyreError(
                "SPY973",
                f"tiles of dim {place} of {operation.get_name()} cut sticks"
                + (f" of {by[0].buffer}" if by else ""),
                expected=f"a multiple of {lanes} elements, those of a stick of "
                f"{layout.device_layout.device_dtype}",
                found=f"tiles of {extent}, the extent being {_full_extent(operation, place)}",
            )


def _full_extent(operation: Any, place: int) -> Any:
    return extents_of(operation)[place]


def _walks(
    place: int, dim: int, layout: Any, by: tuple[BufferRead, OperationAccesses] | None
) -> bool:
    """Whether a place of the iteration space moves along ``dim`` of a buffer."""
    if by is None:
        return place == dim
    read, accesses = by
    variable = accesses.variables[place]
    steps = coordinates(read.index, layout.size, layout.stride)
    if steps is None:
        return variable in read.index.free_symbols
    return variable in steps[dim].free_symbols


def _check_same_tile(
    operation: Any,
    read: BufferRead,
    accesses: OperationAccesses,
    own: TilingLoops,
    made: TilingLoops,
) -> None:
    """In loops that both are in, the reader must follow the tiles of what it reads."""
    common = own.common_levels(made)
    pairs = list(zip(made.places[:common], own.places[:common], strict=True))
    if all(made_place is None for made_place, _ in pairs):
        return
    layout = layout_of(read.buffer)
    steps = coordinates(read.index, layout.size, layout.stride)
    if steps is None or not stays_within(steps, layout.size, accesses):
        raise _beyond(operation, f"reads {read.buffer}, of the same loop, across its dims", read)
    for made_place, own_place in pairs:
        if made_place is not None and made_place >= len(steps):
            what = f"reads {read.buffer} in the loop that splits its reduction"
            raise _beyond(operation, what, read)
        variable = None if own_place is None else accesses.variables[own_place]
        if made_place is not None and (variable is None or steps[made_place] != variable):
            what = f"reads {read.buffer}, of the same loop, beyond the tile of its iteration"
            raise _beyond(operation, what, f"{steps[made_place]} in dim {made_place}")


def advances(
    read: BufferRead, accesses: OperationAccesses, own: TilingLoops, made: TilingLoops
) -> Iterator[int]:
    """Levels whose iterations read another part of what does not follow these loops itself."""
    for level in range(own.common_levels(made)):
        place = own.places[level]
        if made.places[level] is None and place is not None:
            variable = accesses.variables[place]
            if variable is not None and variable in read.index.free_symbols:
                yield level


def _beyond(operation: Any, what: str, found: object) -> SpyreError:
    return SpyreError(
        "SPY977",
        f"operation {operation.get_name()} {what}",
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
"""By reduction type: the operation that joins two partial results, and its neutral element. A mean
is a sum of elements that are divided by the count of all of them."""
