"""Launches traced to their memory: executes of one loop together, and the tiles they access.

The addresses of a program are known without running it. `trace_executes` finds the memory and the
offsets of every operand, `tile_groups` the loop nests, kept or unrolled, and `TiledExecutes.tiles`
the part of each memory's layout that one execution accesses. Address checks, pictures and the
search for the first wrong execute use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from math import prod

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.hw.access import is_indirect
from spyre.hw.counters import UNLABELLED, ExecuteLabels
from spyre.hw.linking import TracedExecute, Walk
from spyre.hw.tile_dims import TileDim, tile_dims
from spyre.layout import Axis, Int64Array, SpyreTensorLayout, drop_unit_axes, join_axes
from spyre.mlir.operation import Operation, Tensor, footprint
from spyre.runtime.arguments import trace_operands
from spyre.runtime.program import POOL, LoweredBundle

BoolArray = npt.NDArray[np.bool_]


# --- launches and their memory ----------------------------------------------------------------


class WalkedMemory(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Device memory of an argument, or (without ``layout``) of the pool or an allocation.

    ``required``: sticks that the program must write (bool, one per stick), None if there are none.
    """

    name: str
    size_bytes: int = 0
    layout: SpyreTensorLayout | None = None
    required: BoolArray | None = None

    @cached_property
    def dims(self) -> tuple[Axis, ...]:
        """The layout's dims above the stick that are longer than 1, outermost first.

        Pitches are in device bytes and in host elements.
        """
        if self.layout is None:
            return ()
        *sizes, _ = self.layout.device_size
        *steps, _ = self.layout.stride_map
        axes, pitch = [], STICK_BYTES
        for extent, step in zip(reversed(sizes), reversed(steps), strict=True):
            axes.append(Axis(extent, (pitch, step)))
            pitch *= extent
        return tuple(drop_unit_axes(axes[::-1]))

    @cached_property
    def joined_dims(self) -> tuple[Axis, ...]:
        """`dims`, joined where host elements are neighbours: a tile may begin anywhere in one."""
        return tuple(join_axes(self.dims))

    @cached_property
    def layout_dims(self) -> tuple[tuple[int, int], ...]:
        """Extent and stride in bytes of each of `dims`."""
        return tuple((axis.extent, axis.pitches[0]) for axis in self.dims)


MemoryWalk = Walk[WalkedMemory]
MemoryExecute = TracedExecute[WalkedMemory]


def trace_executes(
    bundle: LoweredBundle,
    memories: Mapping[int, WalkedMemory],
    values: Mapping[str, int],
    label: ExecuteLabels = UNLABELLED,
) -> Iterator[MemoryExecute]:
    """Every execute statement of a launch in order. LaunchErrors as of `trace_operands`.

    ``memories``: of its arguments, by index, and of POOL. ``label``: how reports number and name
    its executes.
    """
    allocations = bundle.program.allocations
    scratch = [WalkedMemory(f"allocation {k}", a.size_bytes) for k, a in enumerate(allocations)]
    has_pool = memories[POOL].size_bytes > 0
    return trace_operands(bundle, memories, values, scratch, has_pool, label)


# --- tiles ------------------------------------------------------------------------------------


class Tile(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The part of a memory that all cores together access in one execution."""

    memory: WalkedMemory
    dims: tuple[TileDim, ...]

    @property
    def is_wrong(self) -> bool:
        """True if the memory's layout has no dim of one of the pitches."""
        return any(dim.is_wrong for dim in self.dims)

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
        """Distance from the first stick to the end of the last."""
        return STICK_BYTES + sum((dim.steps - 1) * dim.pitch_bytes for dim in self.dims)

    def _spread(self, extents: list[int], dim: TileDim, place: int) -> None:
        """Add the steps of ``dim`` from ``place`` on; steps past its end go on in the next dim."""
        stride = self.memory.dims[place].pitches[0]
        steps = (dim.steps - 1) * (1 if dim.is_wrong else dim.pitch_bytes // stride) + 1
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
    """The tile of an operand; None where indices, windows or tensors per core decide it."""
    if is_indirect(tensor) or tensor.is_local or any(op.window_of(tensor, d) for d in op.dims):
        return None
    return Tile(memory, tile_dims(op, tensor, memory.layout_dims))


# --- executes of one loop ---------------------------------------------------------------------


class TiledExecutes(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Executions of one operation over the tiles of the same memories, in program order.

    ``members``: one execute statement in a loop, or the statements of an unrolled loop. ``nest``:
    trips of the loops, outermost first, empty for a single execution.
    """

    members: tuple[MemoryExecute, ...]
    nest: tuple[int, ...]

    @cached_property
    def first(self) -> MemoryExecute:
        """The first of the members."""
        return self.members[0]

    @cached_property
    def op(self) -> Operation:
        """Their operation."""
        return self.first.op

    @cached_property
    def walks(self) -> tuple[MemoryWalk, ...]:
        """The operands in HBM, over all executions."""
        return tuple(self._joined(walk) for walk in self.first.owned)

    def _joined(self, walk: MemoryWalk) -> MemoryWalk:
        offsets = np.concatenate([m.walks[walk.operand].offsets for m in self.members])
        return replace(walk, offsets=offsets)

    @cached_property
    def tiles(self) -> tuple[Tile | None, ...]:
        """The tile of each of ``walks``, or None."""
        return tuple(make_tile(self.op, walk.tensor, walk.memory) for walk in self.walks)

    def execution(self, row: int) -> tuple[MemoryExecute, int]:
        """The statement of execution ``row`` of all, and the number of the execution in it."""
        if len(self.members) == 1:
            return self.first, row
        return self.members[row], 0

    def steps(self, walk: MemoryWalk) -> tuple[int | None, ...]:
        """Bytes by which each loop of ``nest`` advances the tile; None if that varies."""
        grid = walk.tile_starts.reshape(self.nest)
        found: list[int | None] = []
        for level in range(len(self.nest)):
            moves = np.diff(grid, axis=level)
            regular = bool((moves == moves.flat[0]).all())
            found.append(int(moves.flat[0]) if regular else None)
        return tuple(found)


def tile_groups(executes: Sequence[MemoryExecute]) -> Iterator[TiledExecutes]:
    """The executes grouped by loop, in the order of each group's first."""
    groups: dict[object, list[MemoryExecute]] = {}
    for traced in executes:
        groups.setdefault(_kind(traced), []).append(traced)
    for members in groups.values():
        if len(members) == 1:
            yield TiledExecutes((members[0],), _loop_nest(members[0].loops))
        else:
            starts = [[walk.tile_starts[0] for walk in m.owned] for m in members]
            yield TiledExecutes(tuple(members), infer_nest(np.array(starts, np.int64)))


def _kind(traced: MemoryExecute) -> object:
    """A key that is equal for the executes of an unrolled loop."""
    if len(traced.loops) > 1:
        return id(traced)
    op = traced.op
    operands = tuple(
        (t.dims, tuple(footprint(op, t).pitch_bytes.items()), tuple(t.scale.items()))
        for t in op.tensors
    )
    memories = tuple((walk.operand, id(walk.memory)) for walk in traced.owned)
    slices = tuple(op.slices.items()), tuple(tuple(s.items()) for s in op.core_slices)
    return traced.label, op.name, tuple(op.extents.items()), slices, operands, memories


def _loop_nest(loops: Int64Array) -> tuple[int, ...]:
    """Trips of the loops around an execute, without loops of one trip."""
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
