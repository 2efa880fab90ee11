"""Judges the addresses of a program: tiles whose pitches, steps or starts contradict the layouts of
the arguments, and outputs that no execute writes.

A finding needs evidence that holds whatever the program means: a pitch no layout has, a tile that
passes the end of a dim, sticks of an output that stay unwritten. The steps of the loops then say
why. What is odd but may be meant is a suspicion, told only where outputs are known to be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.errors import DeviceLocation, Finding, Severity
from spyre.hw.access import Box, core_boxes, is_indirect
from spyre.hw.ops import Family, find_op
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation, Tensor
from spyre.runtime.addresses.dataflow import misread, unfed, unread, uses_of
from spyre.runtime.addresses.operands import (
    BoolArray,
    TracedExecute,
    TracedLaunch,
    Walk,
    WalkedMemory,
    trace_executes,
)
from spyre.runtime.addresses.tiles import Tile, TiledExecutes, core_offsets, tile_groups

_CHUNK = 1 << 22
"""Stick addresses computed at once."""


@dataclass(frozen=True, eq=False)
class AddressCheck:
    """The launches of a run, in order, and what their addresses show."""

    launches: Sequence[TracedLaunch]

    @cached_property
    def executes(self) -> tuple[TracedExecute, ...]:
        """Every execute statement; LaunchErrors as of `trace_executes`."""
        return trace_executes(self.launches)

    @cached_property
    def groups(self) -> tuple[TiledExecutes, ...]:
        """The executes, those of one loop together."""
        return tuple(tile_groups(self.executes))

    @cached_property
    def unwritten(self) -> dict[int, BoolArray]:
        """Required sticks that no execute writes, by the id of their memory."""
        missing = {}
        for walks in _writers(self.executes).values():
            memory = walks[0][1].memory
            assert memory.required is not None
            bare = memory.required & ~_written(memory, walks)
            if bare.any():
                missing[id(memory)] = bare
        return missing

    def findings(self) -> tuple[Finding, ...]:
        """Warnings, the likeliest cause first: wrong pitches and steps in the order of the
        executes, then what follows from them.
        """
        causes = [_Judged(self, group) for group in self.groups]
        wrong = [finding for judged in causes for finding in judged.findings()]
        return (*wrong, *self._uncovered())

    def suspicions(self) -> tuple[Finding, ...]:
        """What may be meant, but explains outputs that are known to be wrong."""
        uses = uses_of(self.executes)
        stepping = [f for group in self.groups for f in _Judged(self, group).odd_steps()]
        return (*misread(uses), *stepping, *unread(uses))

    def unfed(self) -> tuple[Finding, ...]:
        """Reads of intermediates before anybody has written them, which a sanitizer sees too."""
        return tuple(unfed(uses_of(self.executes)))

    def _uncovered(self) -> Iterator[Finding]:
        for walks in _writers(self.executes).values():
            traced, walk = walks[-1]
            bare = self.unwritten.get(id(walk.memory))
            if bare is None:
                continue
            assert walk.memory.required is not None
            yield Finding(
                "SPY720",
                Severity.WARNING,
                f"output {walk.memory.name} is not written completely",
                _location(traced, walk),
                f"all {int(walk.memory.required.sum()):,} sticks with elements written",
                f"{int(bare.sum()):,} sticks that no execute writes, the first at byte "
                f"{int(np.argmax(bare)) * STICK_BYTES:,}",
            )


@dataclass(frozen=True, eq=False)
class _Judged:
    """One group of executes in the light of the whole program."""

    check: AddressCheck
    group: TiledExecutes

    @cached_property
    def is_order_free(self) -> bool:
        """True if every operand is walked alike, so that it does not matter which element of the
        tensors an address is: an elementwise operation is right as long as it visits all.
        """
        walks = self.group.walks
        spec = find_op(self.group.op.name)
        if spec is None or spec.family not in (Family.ELEMENTWISE, Family.COPY):
            return False
        if len(walks) < len(self.group.op.tensors):
            return False
        first, tile = walks[0], self.group.tiles[0]
        return all(
            other is not None
            and tile is not None
            and other.dims == tile.dims
            and walk.memory.dims == first.memory.dims
            and np.array_equal(walk.offsets, first.offsets)
            for walk, other in zip(walks, self.group.tiles, strict=True)
        )

    def findings(self) -> Iterator[Finding]:
        for walk in self.group.walks:
            yield from self._cores(walk)
        for member in self.group.members:
            for tensor in member.op.tensors:
                yield from _scratchpads(member, tensor)
        yield from self._tiles()

    def _cores(self, walk: Walk) -> Iterator[Finding]:
        """Cores that start elsewhere than their work slices lie."""
        if is_indirect(walk.tensor) or walk.tensor in self.group.op.index_tensors:
            return
        expected = core_offsets(self.group.op, walk.tensor)
        if expected is None or walk.tensor.is_local:
            return
        bases = walk.offsets - expected
        common = _most_common(bases)
        wrong = bases != common[:, None]
        if not wrong.any():
            return
        row, position = (int(i) for i in np.argwhere(wrong)[0])
        traced, instance = self.group.execution(row)
        op, core = self.group.op, self.group.op.cores[position]
        start, due = int(walk.offsets[row, position]), int(common[row] + expected[position])
        yield Finding(
            "SPY706",
            Severity.WARNING,
            f"{op.name}: core {core} starts at byte {start:,} of {walk.memory.name}, expected "
            f"{due:,} for its work slice of {walk.tensor.name}",
            replace(_location(traced, walk, instance), core=core),
            f"byte {due:,}: {_slice_text(op, position)}",
            f"byte {start:,}; {int(wrong[row].sum())} of {len(op.cores)} cores start elsewhere",
        )

    def _tiles(self) -> Iterator[Finding]:
        tiles = [
            (walk, tile)
            for walk, tile in zip(self.group.walks, self.group.tiles, strict=True)
            if tile is not None and tile.memory.dims
        ]
        if self.is_order_free and not any(map(self._misses, self.group.walks)):
            return
        evident = [pair for pair in tiles if self._is_wrong(*pair)]
        if not evident:
            return
        for walk, tile in evident:
            if tile.wrong:
                yield self._pitch(walk, tile)
        stepping = [f for walk, tile in tiles for f in self._steps(walk, tile)]
        yield from stepping
        if not stepping:
            for walk, tile in evident:
                yield from self._leaving(walk, tile)

    def _misses(self, walk: Walk) -> bool:
        return walk.is_output and id(walk.memory) in self.check.unwritten

    def _is_wrong(self, walk: Walk, tile: Tile) -> bool:
        starts = walk.tile_starts
        return bool(
            tile.wrong
            or self._misses(walk)
            or tile.leaves_its_dims(starts).any()
            or (starts % STICK_BYTES).any()
            or starts.min() < 0
            or starts.max() + tile.span_bytes > tile.memory.size_bytes
        )

    def odd_steps(self) -> Iterator[Finding]:
        """Steps that the layout does not have, of tiles that show nothing else."""
        for walk, tile in zip(self.group.walks, self.group.tiles, strict=True):
            if tile is not None and tile.memory.dims:
                yield from self._steps(walk, tile, even_still=True)

    def _pitch(self, walk: Walk, tile: Tile) -> Finding:
        wrong = [dim for dim in tile.dims if dim.dim in tile.wrong]
        first = wrong[0]
        known = first.place is not None
        expected = f", expected {first.expected_bytes:,} for its layout" if known else ""
        return Finding(
            "SPY702",
            Severity.WARNING,
            f"{self.group.op.name}: {walk.tensor.name} walks {first.dim} of {tile.memory.name} in "
            f"steps of {first.pitch_bytes:,} bytes{expected}",
            _location(self.group.first, walk),
            _layout_text(tile.memory),
            ", ".join(f"{dim.dim} in steps of {dim.pitch_bytes:,} bytes" for dim in wrong)
            + self._also(),
            "a tile of a larger tensor needs a gap (backGapCore_) that gives it the larger one's "
            "pitches",
        )

    def _steps(self, walk: Walk, tile: Tile, even_still: bool = False) -> Iterator[Finding]:
        """Loops that advance the tile by what is no step of the layout.

        A tile that stays is meant, unless (``even_still``) no other loop takes it through the dim,
        or it is to fill its output.
        """
        nest, steps = self.group.nest, self.group.steps(walk)
        allowed = [dict(tile.level_steps(nest, level)) for level in range(len(nest))]
        walked = {places[s] for s, places in zip(steps, allowed, strict=True) if s in places}
        fills = any(map(self._misses, self.group.walks))
        for level, (step, places) in enumerate(zip(steps, allowed, strict=True)):
            left = {bytes_: place for bytes_, place in places.items() if place not in walked}
            due = left if step == 0 and not fills else places
            if (
                not due
                or step is None
                or step in places
                or (step == 0 and not (fills or even_still))
            ):
                continue
            expected, place = next(iter(due.items()))
            row = self.group.row_of_level(level)
            traced, instance = self.group.execution(row)
            extent, stride = tile.memory.dims[place].extent, tile.memory.dims[place].pitches[0]
            yield Finding(
                "SPY704",
                Severity.WARNING,
                f"{self.group.op.name}: the tiles of {walk.tensor.name} advance through "
                f"{tile.memory.name} in steps of {step:,} bytes, expected {expected:,} for its "
                "layout",
                _location(traced, walk, instance),
                f"{nest[level]} tiles of {tile.extents[place]:,} of {extent:,} steps of "
                f"{stride:,} bytes; {_layout_text(tile.memory)}",
                f"tiles that start at bytes {_listed(walk.tile_starts[:: max(1, row)])}",
            )

    def _leaving(self, walk: Walk, tile: Tile) -> Iterator[Finding]:
        starts = walk.tile_starts
        left = tile.leaves_its_dims(starts)
        if tile.wrong or not left.any():
            return
        row = int(np.argmax(left))
        traced, instance = self.group.execution(row)
        yield Finding(
            "SPY705",
            Severity.WARNING,
            f"{self.group.op.name}: a tile of {walk.tensor.name} starts at byte "
            f"{int(starts[row]):,} of {tile.memory.name} and passes the end of a dim of its layout",
            _location(traced, walk, instance),
            _layout_text(tile.memory),
            f"{_tile_text(tile)}; {int(left.sum()):,} of {len(left):,} tiles",
        )

    def _also(self) -> str:
        others = len(self.group.members) - 1
        return f"; also in {others} more executes" if others else ""


def check_addresses(
    launches: Sequence[TracedLaunch], is_wrong: bool = False
) -> tuple[Finding, ...]:
    """What the addresses of the launches of one run show, the likeliest cause first.

    All are warnings: a program may be right in ways that a layout does not tell. ``is_wrong``:
    its outputs are known to be wrong, so also what is only odd. LaunchErrors as of
    `trace_executes`.
    """
    check = AddressCheck(launches)
    found = check.findings()
    odd = check.suspicions() if is_wrong else ()
    return (*found, *(finding for finding in odd if finding not in found))


# --- coverage ---------------------------------------------------------------------------------

_Writer = tuple[TracedExecute, Walk]


def _writers(executes: Sequence[TracedExecute]) -> dict[int, list[_Writer]]:
    """Who writes memory that must be written, by the id of the memory."""
    writers: dict[int, list[_Writer]] = {}
    for traced in executes:
        for walk in traced.walks:
            if walk.is_output and walk.memory.required is not None:
                writers.setdefault(id(walk.memory), []).append((traced, walk))
    return writers


def _written(memory: WalkedMemory, writers: Sequence[_Writer]) -> BoolArray:
    """Which sticks of a memory are written; all of them where data decides it."""
    assert memory.required is not None
    written = np.zeros(len(memory.required), np.bool_)
    if any(is_indirect(walk.tensor) for _, walk in writers):
        return ~written
    for traced, walk in writers:
        for box, starts in _boxes(traced, walk):
            offsets = box.walk.offsets()
            rows = max(1, _CHUNK // len(offsets))
            for first in range(0, len(starts), rows):
                sticks = (starts[first : first + rows, None] + offsets) // STICK_BYTES
                inside = (sticks >= 0) & (sticks < len(written))
                written[sticks[inside]] = True
    return written


def _boxes(traced: TracedExecute, walk: Walk) -> Iterator[tuple[Box, Int64Array]]:
    """Each box of an operand, with the distinct starts of the cores that have it."""
    boxes = core_boxes(traced.op, walk.tensor)
    for box in {id(box): box for box in boxes if box is not None}.values():
        cores = [k for k, other in enumerate(boxes) if other is box]
        yield box, np.unique(walk.offsets[:, cores])


def _scratchpads(traced: TracedExecute, tensor: Tensor) -> Iterator[Finding]:
    """A core whose part of a tensor in LX lies elsewhere than in the other cores' scratchpads."""
    if tensor.component is not Component.LX or tensor.own_core_slices:
        return
    starts = np.array([tensor.starts], np.int64)
    wrong = starts[0] != (common := _most_common(starts)[0])
    if not wrong.any():
        return
    position = int(np.argmax(wrong))
    core, start = traced.op.cores[position], int(starts[0, position])
    place = DeviceLocation(
        traced.sdsc, traced.number, core, tensor.name, source=traced.execute.location
    )
    yield Finding(
        "SPY706",
        Severity.WARNING,
        f"{traced.op.name}: core {core} has {tensor.name} at byte {start:,} of its LX, expected "
        f"{int(common):,} as the other cores",
        place,
        f"byte {int(common):,}",
        f"byte {start:,}; {int(wrong.sum())} of {len(traced.op.cores)} cores start elsewhere",
    )


# --- texts ------------------------------------------------------------------------------------


def _location(traced: TracedExecute, walk: Walk, instance: int | None = None) -> DeviceLocation:
    """Of one execution, or (None) of all."""
    loops = () if instance is None else tuple(int(i) for i in traced.loops[instance])
    return DeviceLocation(
        traced.sdsc,
        traced.number,
        tensor=walk.tensor.name,
        loop_indices=loops,
        source=traced.execute.location,
    )


def _most_common(bases: Int64Array) -> Int64Array:
    """The value that most entries of each row have."""
    rows, inverse = np.unique(bases, axis=0, return_inverse=True)
    modes = []
    for row in rows:
        values, counts = np.unique(row, return_counts=True)
        modes.append(values[np.argmax(counts)])
    return np.array(modes, np.int64)[inverse.ravel()]


def _slice_text(op: Operation, position: int) -> str:
    """Which work slice a core has."""
    slices = op.core_slices[position]
    shown = [f"slice {slices.get(d, 0)} of {n} along {d}" for d, n in op.slices.items() if n > 1]
    return ", ".join(shown) or "the only slice"


def _layout_text(memory: WalkedMemory) -> str:
    """The layout's dims, outermost first."""
    dims = " x ".join(f"{axis.extent:,} of {axis.pitches[0]:,} bytes" for axis in memory.dims)
    return f"{memory.name} is laid out as {dims}"


def _tile_text(tile: Tile) -> str:
    dims = ", ".join(f"{d.dim} {d.steps:,} steps of {d.pitch_bytes:,} bytes" for d in tile.dims)
    return f"the tile walks {dims}"


def _listed(starts: Int64Array) -> str:
    shown = ", ".join(f"{int(start):,}" for start in starts[:4])
    return f"{shown}, …" if len(starts) > 4 else shown
