"""Intermediate tensors between executes, in the pool and in LX: read as they were written?

No layout describes an intermediate, but the execute that wrote it does. Reported are readers that
take the same number of sticks from the same range in another layout, results that are overwritten
before they are read, and reads before the first write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spyre.dtypes import STICK_BYTES
from spyre.errors import DeviceLocation, Finding, Severity
from spyre.hw.access import core_boxes, is_indirect
from spyre.hw.sanitizer import UNWRITTEN_READ
from spyre.layout import AccessMap, Axis
from spyre.mlir.operation import Component, Tensor
from spyre.runtime.tracing import MemoryExecute, make_tile


@dataclass(frozen=True, eq=False)
class Use:
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
        later = [u for u in uses[position + 1 :] if u.meets(use)]
        # The next iteration of a loop begins with the executes before this one.
        again = [u for u in uses[:position] if u.meets(use)]
        following = (*later, *again)
        if following and following[0].is_output and following[0].contains(use):
            first = following[0]
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
