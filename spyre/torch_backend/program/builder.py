"""`ProgramBuilder`: memory and operations of a device program, collected and written as a bundle.

Results are in scratch memory; `output` makes a result's memory a launch argument, `output_into`
moves the result to memory of the caller. Results that are not needed at the same time share scratch
memory. `pack` places them, and buffers in each core's scratchpad and in the pool of a compiled
kernel: in the order of their first operation, each at the lowest offset that is free; none is moved
afterwards (hardware reference §4.3, greedy).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.layout import DeviceView, row_major_view
from spyre.mlir.builder import BufferAddress, BuiltBundle, BundleBuilder, round_up
from spyre.torch_backend.program.emit import emit
from spyre.torch_backend.program.op_spec import DeviceOp, Value, device_format

SCRATCH = "scratch"
Name = TypeVar("Name", bound=Hashable)


class MemoryRegion(msgspec.Struct, frozen=True):
    """Memory of a program: ``argument``, its number among the launch arguments, -1 for scratch."""

    span_bytes: int
    argument: int = -1


class ProgramBuilder(msgspec.Struct):
    """A program under construction.

    ``loops``: (begin, end, count): operations ``begin`` to ``end`` (excluded) run ``count`` times;
    in program order, not nested.
    """

    regions: list[MemoryRegion] = msgspec.field(default_factory=list)
    specs: list[DeviceOp] = msgspec.field(default_factory=list)
    loops: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    arguments: int = 0
    scratch_bytes: int = 0

    def argument(self, view: DeviceView, dtype: str, padding_is_finite: bool = False) -> Value:
        """The next launch argument, which begins at element 0 of ``view``."""
        view = replace(view, offset_bytes=0)
        region = self._region(view.span_bytes, self.arguments)
        self.arguments += 1
        return Value(view, dtype, region, None, padding_is_finite)

    def _region(self, span_bytes: int, argument: int = -1) -> int:
        self.regions.append(MemoryRegion(span_bytes, argument))
        return len(self.regions) - 1

    def scratch(
        self, sizes: Sequence[int], dtype: str, lane_dim: int, lane_multiple: int = 0
    ) -> Value:
        """Scratch memory for a result, in the default layout with ``lane_dim`` as last dim.

        ``lane_dim`` -1: one element per stick. ``lane_multiple``: elements that the lane dim is
        rounded up to, by default one stick.
        """
        order = [k for k in range(len(sizes)) if k != lane_dim]
        order.append(lane_dim)
        inner = [order[0], *reversed(order[1:])] if len(order) > 1 else order
        inner = [k for k in inner if k >= 0]
        view = row_major_view(sizes, device_format(dtype), inner, lane_dim, lane_multiple)
        # Conversions access whole groups of sticks, so there is room after the last element.
        more = max(lane_multiple // view.elements_per_stick - 1, 0)
        last = max((f.pitch_bytes for d in view.dims for f in d if f.lane), default=STICK_BYTES)
        region = self._region(view.span_bytes + more * last)
        return Value(view, dtype, region, tuple(order))

    def add(self, spec: DeviceOp) -> Value:
        """Append an operation and return its result."""
        self.specs.append(spec)
        return spec.output

    @contextmanager
    def loop(self, count: int) -> Iterator[None]:
        """Repeat the operations added in the block ``count`` times.

        Values that are tiles (`tile_of`) advance by one tile per iteration.
        """
        begin = len(self.specs)
        yield
        self.loops.append((begin, len(self.specs), count))

    def output(self, value: Value) -> Value:
        """Make the memory of a result the next launch argument."""
        region = self.regions[value.region]
        assert region.argument < 0, "the result already is in an argument"
        self.regions[value.region] = replace(region, argument=self.arguments)
        self.arguments += 1
        return value

    def output_into(self, value: Value, target: Value) -> None:
        """Write a result to ``target``, which has the same dims and lane dim."""
        self.specs = [spec.into(value.region, target) for spec in self.specs]

    def build(self) -> BuiltBundle:
        """The bundle; its last argument is scratch memory, if there is any."""
        bundle = BundleBuilder()
        spans = {r.argument: r.span_bytes for r in self.regions if r.argument >= 0}
        for number in sorted(spans):
            bundle.argument(spans[number])
        free = {k: r.span_bytes for k, r in enumerate(self.regions) if r.argument < 0}
        offsets, self.scratch_bytes = place_scratch(self._uses(), free)
        if self.scratch_bytes:
            bundle.argument(self.scratch_bytes, SCRATCH)

        def address(value: Value, loop: str = "") -> BufferAddress:
            region = self.regions[value.region]
            steps = {loop: sum(pitch for _, pitch in value.tile_pitches)} if loop else {}
            assert loop or not value.tile_pitches, "a tile outside a loop"
            if region.argument >= 0:
                return BufferAddress(f"arg_{region.argument}", value.view.offset_bytes, steps)
            offset_bytes = offsets[value.region] + value.view.offset_bytes
            return BufferAddress(SCRATCH, offset_bytes, steps)

        for specs, count in self._pieces():
            if not count:
                for spec in specs:
                    bundle.add(emit(spec, address))
                continue
            with bundle.loop(count) as name:
                for spec in specs:
                    bundle.add(emit(spec, partial(address, loop=name)))
        return bundle.build()

    def _pieces(self) -> Iterator[tuple[Sequence[DeviceOp], int]]:
        """Runs of operations in order, each with its number of iterations; 0 outside loops."""
        done = 0
        for begin, end, count in self.loops:
            yield self.specs[done:begin], 0
            yield self.specs[begin:end], count
            done = end
        yield self.specs[done:], 0

    def _uses(self) -> list[tuple[int, ...]]:
        """Regions that each operation needs.

        The first and the last operation of a loop also need the regions that the loop shares with
        operations outside it, so that these stay allocated during the whole loop.
        """
        uses = [spec.regions() for spec in self.specs]
        for begin, end, _ in self.loops:
            inside = {*chain(*uses[begin:end])}
            outside = {*chain(*uses[:begin], *uses[end:])}
            for place in (begin, end - 1):
                uses[place] = (*uses[place], *(inside & outside))
        return uses

    def spans_bytes(self) -> list[int]:
        """Bytes each launch argument walks, after `build`."""
        spans = sorted((r.argument, r.span_bytes) for r in self.regions if r.argument >= 0)
        scratch = [self.scratch_bytes] if self.scratch_bytes else []
        return [span for _, span in spans] + scratch

    def __str__(self) -> str:
        lines = []
        for specs, count in self._pieces():
            lines += [f"{count} times:"] if count else []
            lines += [f"    {spec}" if count else str(spec) for spec in specs]
        return "\n".join(lines)


def place_scratch(
    uses: Sequence[Sequence[int]], sizes_bytes: Mapping[int, int]
) -> tuple[dict[int, int], int]:
    """Return the offset of every used region, and the bytes of all of them, from `pack`.

    ``uses``: regions of every operation, in order. ``sizes_bytes``: of the regions to allocate.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, regions in enumerate(uses):
        for region in regions:
            if region in sizes_bytes:
                first.setdefault(region, step)
                last[region] = step
    offsets = pack([LiveBuffer(r, sizes_bytes[r], first[r], last[r] + 1) for r in first])
    placed = {region: offset for region, offset in offsets.items() if offset is not None}
    total = max((offset + sizes_bytes[region] for region, offset in placed.items()), default=0)
    return placed, total


# --- the packer -----------------------------------------------------------------------------------


class LiveBuffer(msgspec.Struct, Generic[Name], frozen=True):
    """A buffer to place, alive from operation ``start`` up to, and without, ``end``.

    ``in_place_of``: a buffer of the same size whose last operation is ``start``, and whose memory
    this one may take over.
    """

    name: Name
    size_bytes: int
    start: int
    end: int
    in_place_of: Name | None = None


def pack(
    buffers: Sequence[LiveBuffer[Name]], capacity_bytes: int | None = None
) -> dict[Name, int | None]:
    """Return the offset of every buffer in bytes, a multiple of a stick, or None if it does not
    fit into ``capacity_bytes`` (None: unlimited). Buffers alive at one operation do not overlap,
    unless one is in place of the other.
    """
    offsets: dict[Name, int | None] = {}
    live: dict[Name | None, tuple[int, LiveBuffer[Name]]] = {}
    for buffer in sorted(buffers, key=lambda b: b.start):
        live = {name: entry for name, entry in live.items() if entry[1].end > buffer.start}
        replaced = live.pop(buffer.in_place_of, None)
        if replaced is not None:
            offset: int | None = replaced[0]
        else:
            taken = ((begin, begin + other.size_bytes) for begin, other in live.values())
            offset = _lowest_free(taken, buffer.size_bytes, capacity_bytes)
        offsets[buffer.name] = offset
        if offset is not None:
            live[buffer.name] = (offset, buffer)
    return {buffer.name: offsets[buffer.name] for buffer in buffers}


def _lowest_free(
    taken: Iterable[tuple[int, int]], size_bytes: int, capacity_bytes: int | None
) -> int | None:
    offset = 0
    for begin, end in sorted(taken):
        if begin - offset >= size_bytes:
            return offset
        offset = max(offset, round_up(end, STICK_BYTES))
    fits = capacity_bytes is None or offset + size_bytes <= capacity_bytes
    return offset if fits else None
