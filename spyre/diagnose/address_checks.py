"""Checks of a program's addresses against the layouts of its arguments, without running it.

Reported are tiles whose pitches, steps or starts contradict the layout of an argument, and outputs
that are not written completely. A finding needs evidence that holds whatever the program computes:
a pitch that no dim of the layout has, a tile that passes the end of a dim, sticks of an output that
stay unwritten. The steps of the loops are then reported as the cause. Steps without such evidence
may be intended: they are suspicions, reported only if outputs are known to be wrong.

No layout describes an intermediate, in the pool or in LX, but the execute that wrote it does.
Reported are readers that take the same number of sticks from the same range in another layout,
results that are overwritten before they are read, and reads before the first write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import msgspec
import numpy as np
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.errors import DeviceLocation, Finding, Severity
from spyre.hw.access import Box, core_boxes, is_indirect
from spyre.hw.ops import Family, find_op
from spyre.hw.sanitizer import UNWRITTEN_READ, uncovered_output
from spyre.hw.tile_dims import layout_text, pitch_mismatch
from spyre.layout import AccessMap, Axis, Int64Array
from spyre.mlir.operation import Component, Operation, Tensor, footprint
from spyre.runtime.run import Run, RunLaunch, traced_executes
from spyre.runtime.tracing import (
    BoolArray,
    MemoryExecute,
    MemoryWalk,
    Tile,
    TiledExecutes,
    WalkedMemory,
    make_tile,
    tile_groups,
)

_CHUNK = 1 << 22
"""Stick addresses computed at once."""


def check_addresses(
    executes: Sequence[MemoryExecute], is_wrong: bool = False, with_reads: bool = False
) -> tuple[Finding, ...]:
    """Warnings about the addresses of the executes of one run, the likeliest cause first.

    Wrong pitches and steps in the order of the executes, then outputs that they leave incomplete.
    ``is_wrong``: its outputs are known to be wrong, so addresses that may be intended are included.
    ``with_reads``: reads of intermediates that no execute has written too, which a sanitizer also
    reports.
    """
    groups = tuple(tile_groups(executes))
    writers = _writers(executes)
    unwritten = _unwritten(writers)
    found = [finding for group in groups for finding in _group_findings(group, unwritten)]
    found += _uncovered(writers, unwritten)
    if not is_wrong:
        return tuple(found)
    uses = intermediate_uses(executes)
    steps = (f for group in groups for f in _odd_steps(group, unwritten))
    odd = (*layout_mismatches(uses), *steps, *dead_writes(uses))
    reads = reads_before_write(uses) if with_reads else ()
    return (*found, *(finding for finding in odd if finding not in found), *reads)


def address_findings(run: Run, is_wrong: bool = False) -> tuple[Finding, ...]:
    """Tiles that contradict the layouts of the arguments, the likeliest cause first.

    ``is_wrong``: outputs of the run are known to be wrong, so report unusual tiles too. Returns
    nothing if the layouts are derived from the addresses. LaunchErrors of tracing the program.
    """
    if run.is_derived:
        return ()
    if not is_wrong:  # a repeated launch has the addresses of the first one
        distinct: dict[object, RunLaunch] = {}
        for launch in run.launches:
            arguments = *launch.buffers.items(), *launch.values.items()
            distinct.setdefault((id(launch.bundle), arguments), launch)
        run = replace(run, launches=tuple(distinct.values()))
    return check_addresses(traced_executes(run), is_wrong)


# --- tiles of a group of executes -------------------------------------------------------------

Unwritten = Mapping[int, BoolArray]
"""Required sticks that no execute writes, by the id of their memory."""


def _group_findings(group: TiledExecutes, unwritten: Unwritten) -> Iterator[Finding]:
    for walk in group.walks:
        yield from _core_starts(group, walk)
    for member in group.members:
        for tensor in member.op.tensors:
            yield from _scratchpads(member, tensor)
    yield from _tile_findings(group, unwritten)


def _is_order_free(group: TiledExecutes) -> bool:
    """True for an elementwise operation that walks all operands in the same order.

    Such an operation is right as long as it visits every element, in whatever order.
    """
    walks = group.walks
    spec = find_op(group.op.name)
    if spec is None or spec.family not in (Family.ELEMENTWISE, Family.COPY):
        return False
    if len(walks) < len(group.op.tensors):
        return False
    first, tile = walks[0], group.tiles[0]
    return all(
        other is not None
        and tile is not None
        and other.dims == tile.dims
        and walk.memory.dims == first.memory.dims
        and np.array_equal(walk.offsets, first.offsets)
        for walk, other in zip(walks, group.tiles, strict=True)
    )


def _core_starts(group: TiledExecutes, walk: MemoryWalk) -> Iterator[Finding]:
    """Cores that do not start at their work slice (SPY706)."""
    if is_indirect(walk.tensor) or walk.tensor in group.op.index_tensors:
        return
    expected = core_offsets(group.op, walk.tensor)
    if expected is None or walk.tensor.is_local:
        return
    bases = walk.offsets - expected
    common = _most_common(bases)
    wrong = bases != common[:, None]
    if not wrong.any():
        return
    row, position = (int(i) for i in np.argwhere(wrong)[0])
    traced, instance = group.execution(row)
    op, core = group.op, group.op.cores[position]
    start, due = int(walk.offsets[row, position]), int(common[row] + expected[position])
    yield Finding(
        "SPY706",
        Severity.WARNING,
        f"{op.name}: core {core} starts at byte {start:,} of {walk.memory.name}, expected "
        f"{due:,} for its work slice of {walk.tensor.name}",
        _location(traced, walk, instance, core),
        f"byte {due:,}: {_slice_text(op, position)}",
        f"byte {start:,}; {int(wrong[row].sum())} of {len(op.cores)} cores start elsewhere",
    )


def _tile_findings(group: TiledExecutes, unwritten: Unwritten) -> Iterator[Finding]:
    tiles = [
        (walk, tile)
        for walk, tile in zip(group.walks, group.tiles, strict=True)
        if tile is not None and tile.memory.dims
    ]
    if _is_order_free(group) and not any(_misses(walk, unwritten) for walk in group.walks):
        return
    evident = [pair for pair in tiles if _is_wrong(*pair, unwritten)]
    if not evident:
        return
    for walk, tile in evident:
        yield from _pitches(group, walk, tile)
    stepping = [f for walk, tile in tiles for f in _steps(group, walk, tile, unwritten)]
    yield from stepping
    if not stepping:
        for walk, tile in evident:
            yield from _leaving(group, walk, tile)


def _misses(walk: MemoryWalk, unwritten: Unwritten) -> bool:
    return walk.is_output and id(walk.memory) in unwritten


def _is_wrong(walk: MemoryWalk, tile: Tile, unwritten: Unwritten) -> bool:
    starts = walk.tile_starts
    return bool(
        tile.is_wrong
        or _misses(walk, unwritten)
        or tile.leaves_its_dims(starts).any()
        or (starts % STICK_BYTES).any()
        or starts.min() < 0
        or starts.max() + tile.span_bytes > tile.memory.size_bytes
    )


def _odd_steps(group: TiledExecutes, unwritten: Unwritten) -> Iterator[Finding]:
    """Steps that the layout does not have, of tiles without other evidence."""
    for walk, tile in zip(group.walks, group.tiles, strict=True):
        if tile is not None and tile.memory.dims:
            yield from _steps(group, walk, tile, unwritten, even_still=True)


def _pitches(group: TiledExecutes, walk: MemoryWalk, tile: Tile) -> Iterator[Finding]:
    """Pitches that no dim of the layout has (SPY702)."""
    layout, name = walk.memory.layout_dims, walk.memory.name
    location = _location(group.first, walk)
    others = len(group.members) - 1
    also = f"; also in {others} more executes" if others else ""
    found = pitch_mismatch(group.op, walk.tensor, tile.dims, layout, name, location, also)
    if found is not None:
        yield found


def _steps(
    group: TiledExecutes,
    walk: MemoryWalk,
    tile: Tile,
    unwritten: Unwritten,
    even_still: bool = False,
) -> Iterator[Finding]:
    """Loops that advance the tile by a step that the layout does not have (SPY704).

    A loop may leave the tile where it is, unless (``even_still``) no other loop takes it
    through the dim, or the loops have to fill an output.
    """
    nest, steps = group.nest, group.steps(walk)
    allowed = [dict(tile.level_steps(nest, level)) for level in range(len(nest))]
    walked = {places[s] for s, places in zip(steps, allowed, strict=True) if s in places}
    fills = any(_misses(each, unwritten) for each in group.walks)
    for level, (step, places) in enumerate(zip(steps, allowed, strict=True)):
        left = {bytes_: place for bytes_, place in places.items() if place not in walked}
        due = left if step == 0 and not fills else places
        if not due or step is None or step in places or (step == 0 and not (fills or even_still)):
            continue
        expected, place = next(iter(due.items()))
        row = prod(group.nest[level + 1 :])  # the first execution after the loop advanced
        traced, instance = group.execution(row)
        extent, stride = tile.memory.dims[place].extent, tile.memory.dims[place].pitches[0]
        yield Finding(
            "SPY704",
            Severity.WARNING,
            f"{group.op.name}: the tiles of {walk.tensor.name} advance through "
            f"{tile.memory.name} in steps of {step:,} bytes, expected {expected:,} for its "
            "layout",
            _location(traced, walk, instance),
            f"{nest[level]} tiles of {tile.extents[place]:,} of {extent:,} steps of "
            f"{stride:,} bytes; {layout_text(tile.memory.name, tile.memory.layout_dims)}",
            f"tiles that start at bytes {_listed(walk.tile_starts[:: max(1, row)])}",
        )


def _leaving(group: TiledExecutes, walk: MemoryWalk, tile: Tile) -> Iterator[Finding]:
    starts = walk.tile_starts
    left = tile.leaves_its_dims(starts)
    if tile.is_wrong or not left.any():
        return
    row = int(np.argmax(left))
    traced, instance = group.execution(row)
    dims = ", ".join(f"{d.dim} {d.steps:,} steps of {d.pitch_bytes:,} bytes" for d in tile.dims)
    yield Finding(
        "SPY705",
        Severity.WARNING,
        f"{group.op.name}: a tile of {walk.tensor.name} starts at byte "
        f"{int(starts[row]):,} of {tile.memory.name} and passes the end of a dim of its layout",
        _location(traced, walk, instance),
        layout_text(tile.memory.name, tile.memory.layout_dims),
        f"the tile walks {dims}; {int(left.sum()):,} of {len(left):,} tiles",
    )


# --- coverage ---------------------------------------------------------------------------------

_Writer = tuple[MemoryExecute, MemoryWalk]


def _writers(executes: Sequence[MemoryExecute]) -> dict[int, list[_Writer]]:
    """The operands that write memory with required sticks, by the id of the memory."""
    writers: dict[int, list[_Writer]] = {}
    for traced in executes:
        for walk in traced.owned:
            if walk.is_output and walk.memory.required is not None:
                writers.setdefault(id(walk.memory), []).append((traced, walk))
    return writers


def _unwritten(writers: Mapping[int, Sequence[_Writer]]) -> dict[int, BoolArray]:
    missing = {}
    for key, walks in writers.items():
        memory = walks[0][1].memory
        assert memory.required is not None
        bare = memory.required & ~_written(memory, walks)
        if bare.any():
            missing[key] = bare
    return missing


def _uncovered(writers: Mapping[int, Sequence[_Writer]], unwritten: Unwritten) -> Iterator[Finding]:
    """Outputs that are not written completely."""
    for key, bare in unwritten.items():
        traced, walk = writers[key][-1]
        assert walk.memory.required is not None
        text = uncovered_output(walk.memory.name, int(walk.memory.required.sum()))
        yield text.finding(
            Severity.WARNING,
            _location(traced, walk),
            f"{int(bare.sum()):,} sticks that no execute writes, the first at byte "
            f"{int(np.argmax(bare)) * STICK_BYTES:,}",
        )


def _written(memory: WalkedMemory, writers: Sequence[_Writer]) -> BoolArray:
    """True for each stick of a memory that is written; for all if indices decide it."""
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


def _boxes(traced: MemoryExecute, walk: MemoryWalk) -> Iterator[tuple[Box, Int64Array]]:
    """Each box of an operand, with the distinct starts of the cores that have it."""
    boxes = core_boxes(traced.op, walk.tensor)
    for box in {id(box): box for box in boxes if box is not None}.values():
        cores = [k for k, other in enumerate(boxes) if other is box]
        # with the index, since np.unique alone imports numpy.ma, in 15 ms
        yield box, np.unique(walk.offsets[:, cores], return_index=True)[0]


def _scratchpads(traced: MemoryExecute, tensor: Tensor) -> Iterator[Finding]:
    """A core that has a tensor at another LX address than the other cores (SPY706)."""
    if tensor.component is not Component.LX or tensor.own_core_slices:
        return
    starts = np.array([tensor.starts], np.int64)
    wrong = starts[0] != (common := _most_common(starts)[0])
    if not wrong.any():
        return
    position = int(np.argmax(wrong))
    core, start = traced.op.cores[position], int(starts[0, position])
    yield Finding(
        "SPY706",
        Severity.WARNING,
        f"{traced.op.name}: core {core} has {tensor.name} at byte {start:,} of its LX, expected "
        f"{int(common):,} as the other cores",
        location_of(traced, tensor, core),
        f"byte {int(common):,}",
        f"byte {start:,}; {int(wrong.sum())} of {len(traced.op.cores)} cores start elsewhere",
    )


# --- texts ------------------------------------------------------------------------------------


def _location(
    traced: MemoryExecute, walk: MemoryWalk, instance: int | None = None, core: int | None = None
) -> DeviceLocation:
    """The location of one execution, or (None) of all."""
    loops = () if instance is None else tuple(int(i) for i in traced.loops[instance])
    return location_of(traced, walk.tensor, core, loops)


def core_offsets(op: Operation, tensor: Tensor) -> Int64Array | None:
    """Offset in bytes of each core's work slice in ``tensor``, from slice 0 of all dims.

    None for windows, slices of parts of a stick, and tensors with other slices than the work.
    """
    if tensor.own_core_slices or any(op.window_of(tensor, dim) for dim in op.dims):
        return None
    sticks, pitches = tensor.sticks, footprint(op, tensor).pitch_bytes
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


def _most_common(bases: Int64Array) -> Int64Array:
    """The value that most entries of each row have."""
    rows, inverse = np.unique(bases, axis=0, return_inverse=True)
    modes = []
    for row in rows:
        values, counts = np.unique(row, return_counts=True)
        modes.append(values[np.argmax(counts)])
    return np.array(modes, np.int64)[inverse.ravel()]


def _slice_text(op: Operation, position: int) -> str:
    """The work slice of a core in words."""
    slices = op.core_slices[position]
    shown = [f"slice {slices.get(d, 0)} of {n} along {d}" for d, n in op.slices.items() if n > 1]
    return ", ".join(shown) or "the only slice"


def _listed(starts: Int64Array) -> str:
    shown = ", ".join(f"{int(start):,}" for start in starts[:4])
    return f"{shown}, …" if len(starts) > 4 else shown


# --- intermediate tensors ------------------------------------------------------------------------


class Use(msgspec.Struct, frozen=True, eq=False):
    """An intermediate operand of an execute, in the execute's first execution.

    ``memory``: LX, or the id of the memory. ``walk``: the sticks it accesses, in bytes from the
    start of the memory, by all cores; in LX from the start of a scratchpad, by one core.
    """

    traced: MemoryExecute
    tensor: Tensor
    is_output: bool
    memory: object
    walk: AccessMap

    def meets(self, other: Use) -> bool:
        """True if their ranges overlap."""
        if self.memory != other.memory:
            return False
        mine, others = self.walk, other.walk
        return (
            mine.lowest() < others.highest() + STICK_BYTES
            and others.lowest() < mine.highest() + STICK_BYTES
        )

    def contains(self, other: Use) -> bool:
        """True if this range includes the range of ``other``."""
        inside = self.walk.lowest() <= other.walk.lowest()
        return inside and other.walk.highest() <= self.walk.highest()

    @property
    def name(self) -> str:
        """The execute in reports."""
        return f"execute {self.traced.number} ({self.traced.op.name}, {self.traced.sdsc})"

    def __str__(self) -> str:
        axes = [f"{a.extent:,} steps of {a.pitches[0]:,} bytes" for a in self.walk.axes]
        return f"{', '.join(axes)} from byte {self.walk.lowest():,}"


def intermediate_uses(executes: Sequence[MemoryExecute]) -> tuple[Use, ...]:
    """Uses of intermediates in program order, reads of an execute first."""
    return tuple(use for traced in executes for use in _uses(traced))


def _uses(traced: MemoryExecute) -> Iterator[Use]:
    op = traced.op
    for operand, tensor in enumerate(op.tensors):
        if is_indirect(tensor) or tensor.own_core_slices:
            continue
        is_output = tensor in op.outputs
        if tensor.component is Component.LX:
            box = core_boxes(op, tensor)[0]
            if box is not None:
                walk = box.walk.picked((0,)).canonical(0)
                start = tensor.starts[0] + walk.first[0]
                moved = AccessMap((start,), walk.axes)
                yield Use(traced, tensor, is_output, Component.LX, moved)
        elif (memory := traced.walks[operand].owner) is not None and memory.layout is None:
            tile = make_tile(op, tensor, memory)
            if tile is not None:
                axes = tuple(Axis(d.steps, (d.pitch_bytes,)) for d in tile.dims)
                first = (int(traced.walks[operand].tile_starts[0]),)
                whole = AccessMap(first, axes).canonical(0)
                yield Use(traced, tensor, is_output, id(memory), whole)


def layout_mismatches(uses: Sequence[Use]) -> Iterator[Finding]:
    """Reads of as many sticks as were written, but with another start, gaps or extents (SPY707)."""
    for position, use in enumerate(uses):
        if use.is_output:
            continue
        writers = [w for w in uses[:position] if w.is_output and w.meets(use)]
        alike = [w for w in writers if w.walk.count == use.walk.count]
        if not alike or use.walk == alike[-1].walk:
            continue
        writer = alike[-1]
        others = [u for u in uses if u not in (use, writer) and not u.is_output]
        blamed = writer if any(use.walk == u.walk for u in others) else use
        yield Finding(
            "SPY707",
            Severity.WARNING,
            f"{use.traced.op.name} reads other sticks of {use.tensor.name} than {writer.name} "
            "wrote",
            location_of(blamed.traced, blamed.tensor),
            f"sticks as written: {writer}",
            f"sticks read by {use.name}: {use}",
        )


def dead_writes(uses: Sequence[Use]) -> Iterator[Finding]:
    """Results that are overwritten before they are read (SPY708)."""
    for position, use in enumerate(uses):
        if not use.is_output:
            continue
        # The next iteration of a loop begins with the executes before this one.
        others = (*uses[position + 1 :], *uses[:position])
        first = next((other for other in others if other.meets(use)), None)
        if first is not None and first.is_output and first.contains(use):
            yield Finding(
                "SPY708",
                Severity.WARNING,
                f"{use.traced.op.name}: {first.name} overwrites {use.tensor.name} before it is "
                "read",
                location_of(use.traced, use.tensor),
                "a result that a later execute reads",
                f"{use}",
            )


def reads_before_write(uses: Sequence[Use]) -> Iterator[Finding]:
    """Reads in the first iteration of memory that no execute has written yet (SPY710).

    Only memory that some execute writes is checked: the pool, allocations, scratchpads.
    """
    written = {use.memory for use in uses if use.is_output}
    for position, use in enumerate(uses):
        before = [u for u in uses[:position] if u.is_output and u.meets(use)]
        if use.is_output or before or use.memory not in written:
            continue
        later = next((u for u in uses[position:] if u.is_output and u.meets(use)), None)
        yield UNWRITTEN_READ.of(use.traced.op.name, use.tensor.name).finding(
            Severity.WARNING,
            location_of(use.traced, use.tensor),
            "no execute that writes it"
            if later is None
            else f"{later.name}, which writes it later",
        )


def location_of(
    traced: MemoryExecute,
    tensor: Tensor,
    core: int | None = None,
    loop_indices: tuple[int, ...] = (),
) -> DeviceLocation:
    """The location of an operand; without ``loop_indices``, of all executions."""
    return DeviceLocation(
        traced.sdsc,
        traced.number,
        core,
        tensor.name,
        loop_indices=loop_indices,
        source=traced.execute.location,
    )
