"""Executes that do the same to other tiles, side by side: the loop nest, kept or unrolled, and
where in the layouts of the arguments each execution's tile lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.hw.access import contradicting_dims, is_indirect
from spyre.layout import Int64Array
from spyre.mlir.operation import Operation, Tensor, footprint, stick_elements
from spyre.runtime.addresses.operands import BoolArray, TracedExecute, Walk, WalkedMemory


@dataclass(frozen=True, slots=True)
class TileDim:
    """A dim of a tile: ``steps`` (sticks of a stick dim, else elements) of ``pitch_bytes`` each.

    ``place``: the dim of the memory's layout it walks, None where no layout is known or none
    fits. ``expected_bytes``: the pitch that dim has.
    """

    dim: str
    steps: int
    pitch_bytes: int
    place: int | None = None
    expected_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Tile:
    """What all cores together touch of an operand in one execution.

    ``wrong``: dims whose pitch is none of the layout's.
    """

    memory: WalkedMemory
    dims: tuple[TileDim, ...]
    wrong: tuple[str, ...]

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Steps of the tile along each dim of the layout."""
        extents = [1] * len(self.memory.dims)
        for dim in self.dims:
            if dim.place is not None:
                self._spread(extents, dim, dim.place)
        return tuple(extents)

    @property
    def span_bytes(self) -> int:
        """From the first stick to the end of the last."""
        return STICK_BYTES + sum((dim.steps - 1) * dim.pitch_bytes for dim in self.dims)

    def _spread(self, extents: list[int], dim: TileDim, place: int) -> None:
        """A dim may go on into the layout's dims outside of the one it begins in."""
        stride = self.memory.dims[place].pitches[0]
        valid = dim.dim not in self.wrong
        steps = (dim.steps - 1) * (dim.pitch_bytes // stride if valid else 1) + 1
        while steps > 1 and place >= 0:
            extent = self.memory.dims[place].extent
            if steps <= extent:
                extents[place] = max(extents[place], steps)
                return
            extents[place], steps, place = extent, -(-steps // extent), place - 1

    def leaves_its_dims(self, starts: Int64Array) -> BoolArray:
        """True where a tile that starts there passes the end of a dim it would fit into."""
        left = np.zeros(starts.shape, np.bool_)
        outer_bytes = self.memory.size_bytes
        for axis in self.memory.joined_dims:
            stride = axis.pitches[0]
            inside = [d for d in self.dims if stride <= d.pitch_bytes < outer_bytes]
            span = sum((d.steps - 1) * d.pitch_bytes for d in inside)
            if inside and 0 < span <= outer_bytes - stride:
                left |= starts % outer_bytes // stride * stride + span >= outer_bytes
            outer_bytes = stride
        return left

    def level_steps(self, nest: Sequence[int], level: int) -> tuple[tuple[int, int], ...]:
        """Steps in bytes by which a loop may advance the tile, each with the layout's dim.

        The loop at ``level``, alone or with others, takes the tile through a dim of the layout
        that the tile covers in part.
        """
        found = []
        others = [k for k in range(len(nest)) if k != level]
        groups = [g for n in range(len(nest)) for g in combinations(others, n)]
        for place, axis in enumerate(self.memory.dims):
            covered = self.extents[place]
            for group in groups:
                tiles = nest[level] * prod(nest[k] for k in group)
                if covered < axis.extent and covered * tiles == axis.extent:
                    inner = prod(nest[k] for k in group if k > level)
                    found.append((covered * inner * axis.pitches[0], place))
        return tuple(dict.fromkeys(found))


def make_tile(op: Operation, tensor: Tensor, memory: WalkedMemory) -> Tile | None:
    """The tile of an operand; None where other things than the loop nest say what is touched:
    indices, windows, a tensor per core.
    """
    if is_indirect(tensor) or tensor.is_local or any(op.window_of(tensor, d) for d in op.dims):
        return None
    sticks, pitches = stick_elements(tensor), footprint(op, tensor).pitch_bytes
    layout = () if memory.layout is None else tuple((a.extent, a.pitches[0]) for a in memory.dims)
    wrong = contradicting_dims(op, tensor, layout) if layout else ()
    dims: list[TileDim] = []
    inner = len(layout)
    for dim in dict.fromkeys(tensor.dims):
        steps = -(-op.extents[dim] // sticks.get(dim, 1)) if tensor.holds(dim) else 1
        if steps == 1:
            continue
        place = _place(layout, steps, pitches[dim], inner, dim in wrong)
        expected = 0 if place is None else layout[place][1]
        inner = inner if place is None else place
        dims.append(TileDim(dim, steps, pitches[dim], place, expected))
    return Tile(memory, tuple(dims), wrong)


def core_offsets(op: Operation, tensor: Tensor) -> Int64Array | None:
    """Where each core's work slice lies in ``tensor``, bytes from that of the slice 0 of all dims.

    None where slices do not say it: tensors with slices of their own, parts of a stick.
    """
    if tensor.own_core_slices or any(op.window_of(tensor, dim) for dim in op.dims):
        return None
    sticks, pitches = stick_elements(tensor), footprint(op, tensor).pitch_bytes
    total = np.zeros(len(op.cores), np.int64)
    for dim in dict.fromkeys(tensor.dims):
        if not tensor.holds(dim) or op.slices.get(dim, 1) == 1:
            continue
        steps, rest = divmod(op.core_extent(dim), sticks.get(dim, 1))
        if rest:
            return None
        indices = [slices.get(dim, 0) for slices in op.core_slices]
        total += np.array(indices, np.int64) * (steps * pitches[dim])
    return total


def _place(
    layout: Sequence[tuple[int, int]], steps: int, pitch: int, inner: int, is_wrong: bool
) -> int | None:
    """The layout's dim that a tile's dim walks: the one of its pitch, or the next outward from
    ``inner`` that holds so many steps.
    """
    for place in range(len(layout) - 1, -1, -1):
        extent, stride = layout[place]
        multiple = pitch // stride
        exact = multiple == 1 or (steps - 1) * multiple < extent
        if not is_wrong and pitch % stride == 0 and multiple < extent and exact:
            return place
    outward = range(inner - 1, -1, -1)
    whole = [k for k in outward if layout[k][0] % steps == 0]
    return next(iter(whole), None)


# --- executes of one loop ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TiledExecutes:
    """Executions of one operation over the tiles of the same memories, in program order.

    ``members``: one execute statement that loops, or several that an unrolled loop repeats.
    ``nest``: trips of the loops, outermost first, empty for a single execution.
    """

    members: tuple[TracedExecute, ...]
    nest: tuple[int, ...]

    @property
    def first(self) -> TracedExecute:
        """The first of the members."""
        return self.members[0]

    @property
    def op(self) -> Operation:
        """What they do."""
        return self.first.op

    @cached_property
    def walks(self) -> tuple[Walk, ...]:
        """The operands in HBM, over all executions."""
        return tuple(self._joined(walk) for walk in self.first.walks)

    def _joined(self, walk: Walk) -> Walk:
        parts = [m.walk_of(walk.operand) for m in self.members]
        offsets = np.concatenate([part.offsets for part in parts if part is not None])
        return Walk(walk.operand, walk.tensor, walk.memory, offsets, walk.is_output)

    @cached_property
    def tiles(self) -> tuple[Tile | None, ...]:
        """Of each of ``walks``."""
        return tuple(make_tile(self.op, walk.tensor, walk.memory) for walk in self.walks)

    def execution(self, row: int) -> tuple[TracedExecute, int]:
        """The statement and its own count of execution ``row`` of all."""
        if len(self.members) == 1:
            return self.first, row
        return self.members[row], 0

    def steps(self, walk: Walk) -> tuple[int | None, ...]:
        """Bytes by which each loop of ``nest`` advances the tile; None where it is irregular."""
        grid = walk.tile_starts.reshape(self.nest)
        found: list[int | None] = []
        for level in range(len(self.nest)):
            moves = np.diff(grid, axis=level)
            regular = bool((moves == moves.flat[0]).all())
            found.append(int(moves.flat[0]) if regular else None)
        return tuple(found)

    def row_of_level(self, level: int) -> int:
        """The first execution after the loop at ``level`` advanced."""
        return prod(self.nest[level + 1 :])


def tile_groups(executes: Sequence[TracedExecute]) -> Iterator[TiledExecutes]:
    """All executes in groups, by the first of each."""
    groups: dict[object, list[TracedExecute]] = {}
    for traced in executes:
        groups.setdefault(_kind(traced), []).append(traced)
    for members in groups.values():
        if len(members) == 1:
            yield TiledExecutes((members[0],), _loop_nest(members[0].loops))
        else:
            starts = [[walk.tile_starts[0] for walk in m.walks] for m in members]
            yield TiledExecutes(tuple(members), infer_nest(np.array(starts, np.int64)))


def _kind(traced: TracedExecute) -> object:
    """What executes of an unrolled loop have in common."""
    if len(traced.loops) > 1:
        return id(traced)
    op = traced.op
    operands = tuple(
        (t.dims, tuple(footprint(op, t).pitch_bytes.items()), tuple(t.scale.items()))
        for t in op.tensors
    )
    memories = tuple((walk.operand, id(walk.memory)) for walk in traced.walks)
    slices = tuple(op.slices.items()), tuple(tuple(s.items()) for s in op.core_slices)
    return id(traced.launch), op.name, tuple(op.extents.items()), slices, operands, memories


def _loop_nest(loops: Int64Array) -> tuple[int, ...]:
    """Trips of the loops around an execute, those of one trip left out."""
    rows, depth = loops.shape
    trips = [len(np.unique(loops[:, level])) for level in range(depth)]
    nest = tuple(n for n in trips if n > 1)
    return nest if prod(nest) == rows else (rows,)


def infer_nest(starts: Int64Array) -> tuple[int, ...]:
    """Trips of the loops, outermost first, that an unrolled program had; ``starts`` [row, operand].

    The innermost loop goes on as long as all operands advance alike. One loop where no nest fits.
    """
    rows = len(starts)
    if rows == 1 or not starts.shape[1]:
        return (rows,) if rows > 1 else ()
    moves = np.diff(starts, axis=0)
    same = (moves == moves[0]).all(axis=1)
    trips = rows if same.all() else int(np.argmin(same)) + 1
    if trips == rows or rows % trips:
        return (rows,)
    blocks = starts.reshape(-1, trips, starts.shape[1])
    if ((blocks - blocks[:, :1]) != (blocks[0] - blocks[0, :1])).any():
        return (rows,)
    return (*infer_nest(blocks[:, 0]), trips)
