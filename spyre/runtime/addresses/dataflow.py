"""Intermediate tensors between executes, in the pool and in LX: read as they were written?

No layout says where an intermediate lies; who wrote it does. A reader that takes as many sticks
from the same place but other ones, a result that is overwritten before anybody reads it, and a read
of what is not written yet, are worth telling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spyre.dtypes import STICK_BYTES
from spyre.errors import DeviceLocation, Finding, Severity
from spyre.hw.access import core_boxes, is_indirect
from spyre.layout import AccessMap, Axis
from spyre.mlir.operation import Component, Tensor
from spyre.runtime.addresses.operands import TracedExecute
from spyre.runtime.addresses.tiles import make_tile


@dataclass(frozen=True, eq=False)
class Use:
    """What an execute touches of an intermediate in its first execution.

    ``place``: LX, or the id of the memory. ``walk``: its sticks, bytes from the start of the memory
    or of a core's scratchpad: of one core in LX, of all together elsewhere.
    """

    traced: TracedExecute
    tensor: Tensor
    is_output: bool
    place: object
    walk: AccessMap

    def meets(self, other: Use) -> bool:
        """True if their ranges overlap."""
        if self.place != other.place:
            return False
        mine, others = self.walk, other.walk
        return (
            mine.lowest() < others.highest() + STICK_BYTES
            and others.lowest() < mine.highest() + STICK_BYTES
        )

    def contains(self, other: Use) -> bool:
        """True if the range of ``other`` lies in this one's."""
        inside = self.walk.lowest() <= other.walk.lowest()
        return inside and other.walk.highest() <= self.walk.highest()

    def is_like(self, other: Use) -> bool:
        """True if both touch the same sticks."""
        return self.walk == other.walk

    @property
    def name(self) -> str:
        """The execute."""
        return f"execute {self.traced.number} ({self.traced.op.name}, {self.traced.sdsc})"

    def __str__(self) -> str:
        axes = [f"{a.extent:,} steps of {a.pitches[0]:,} bytes" for a in self.walk.axes]
        return f"{', '.join(axes)} from byte {self.walk.lowest():,}"


def uses_of(executes: Sequence[TracedExecute]) -> tuple[Use, ...]:
    """Uses of intermediates in program order, reads of an execute first."""
    return tuple(use for traced in executes for use in _uses(traced))


def _uses(traced: TracedExecute) -> Iterator[Use]:
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
        elif (walked := traced.walk_of(operand)) is not None and walked.memory.layout is None:
            tile = make_tile(op, tensor, walked.memory)
            if tile is not None:
                axes = tuple(Axis(d.steps, (d.pitch_bytes,)) for d in tile.dims)
                first = (int(walked.tile_starts[0]),)
                whole = AccessMap(first, axes).canonical(0)
                yield Use(traced, tensor, is_output, id(walked.memory), whole)


def misread(uses: Sequence[Use]) -> Iterator[Finding]:
    """Intermediates that are read in another way than they were written."""
    for position, use in enumerate(uses):
        if use.is_output:
            continue
        writers = [w for w in uses[:position] if w.is_output and w.meets(use)]
        alike = [w for w in writers if w.walk.count == use.walk.count]
        if not alike or use.is_like(alike[-1]):
            continue
        writer = alike[-1]
        others = [u for u in uses if u not in (use, writer) and not u.is_output]
        blamed = writer if any(use.is_like(u) for u in others) else use
        yield Finding(
            "SPY707",
            Severity.WARNING,
            f"{use.traced.op.name} reads {use.tensor.name} otherwise than {writer.name} "
            "has written it",
            _location(blamed),
            f"sticks as written: {writer}",
            f"sticks read by {use.name}: {use}",
        )


def unread(uses: Sequence[Use]) -> Iterator[Finding]:
    """Results that are overwritten before anybody reads them."""
    for position, use in enumerate(uses):
        if not use.is_output:
            continue
        later = [u for u in uses[position + 1 :] if u.meets(use)]
        # A loop comes round to what stands before.
        again = [u for u in uses[:position] if u.meets(use)]
        following = (*later, *again)
        if following and following[0].is_output and following[0].contains(use):
            first = following[0]
            yield Finding(
                "SPY708",
                Severity.WARNING,
                f"{use.traced.op.name}: nobody reads {use.tensor.name} before "
                f"{first.name} overwrites it",
                _location(use),
                "a result that a later execute reads",
                f"{use}",
            )


def unfed(uses: Sequence[Use]) -> Iterator[Finding]:
    """Reads in the first iteration of what nobody has written until then, but somebody writes, in
    memory that is a scratchpad or where results are left.
    """
    written = {use.place for use in uses if use.is_output}
    for position, use in enumerate(uses):
        before = [u for u in uses[:position] if u.is_output and u.meets(use)]
        if use.is_output or before or use.place not in written:
            continue
        later = next((u for u in uses[position:] if u.is_output and u.meets(use)), None)
        yield Finding(
            "SPY710",
            Severity.WARNING,
            f"{use.traced.op.name} reads {use.tensor.name} before anybody has written it",
            _location(use),
            "a result of an earlier execute",
            "no execute that writes it"
            if later is None
            else f"{later.name}, which writes it later",
        )


def _location(use: Use) -> DeviceLocation:
    traced = use.traced
    return DeviceLocation(
        traced.sdsc, traced.number, tensor=use.tensor.name, source=traced.execute.location
    )
