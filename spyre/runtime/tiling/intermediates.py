"""Linking dims of operations through what they hand over in the pool and in scratchpads.

A reader is linked to the last writers of the bytes it reads. Where their tensors have the same
structure, dims go together place by place; elsewhere by equal pitches and steps, and what is left
over cannot be tiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spyre.mlir.footprint import footprint
from spyre.runtime.tiling.dim_classes import DimClasses, ExecuteDim
from spyre.runtime.tiling.operand_dims import whole_steps
from spyre.runtime.tiling.operand_uses import OperandUse


@dataclass(frozen=True)
class _Range:
    """Bytes a use touches over all its instances and cores."""

    use: OperandUse
    low: int
    high: int

    @classmethod
    def of(cls, use: OperandUse) -> _Range:
        """The range of ``use``."""
        span = footprint(use.op, use.tensor).span_bytes
        low, high = int(use.offsets_bytes.min()), int(use.offsets_bytes.max()) + span
        return cls(use, low, high)

    def overlaps(self, other: _Range) -> bool:
        """True if both touch a byte of one memory."""
        return self._memory == other._memory and self.low < other.high and other.low < self.high

    def covers(self, other: _Range) -> bool:
        """True if it touches all bytes from the first to the last of ``other``."""
        return self.low <= other.low and other.high <= self.high

    @property
    def _memory(self) -> tuple[object, object]:
        return self.use.tensor.component, self.use.owner


def link_intermediates(classes: DimClasses, uses: Sequence[OperandUse]) -> None:
    """Join dims of readers and writers; ``uses``: operands outside of arguments, in textual order.

    The text is walked twice, so that what a loop hands to its next iteration is linked too.
    """
    ranges = [_Range.of(use) for use in uses]
    written: list[_Range] = []
    for place in (*ranges, *ranges):
        if place.use.is_written:
            written.append(place)
            continue
        for writer in reversed(written):
            if writer.overlaps(place):
                _link(classes, writer.use, place.use)
                if writer.covers(place):
                    break


def _link(classes: DimClasses, writer: OperandUse, reader: OperandUse) -> None:
    ours, theirs = _held(writer), _held(reader)
    if _structure(writer) == _structure(reader):
        pairs = list(zip(ours, theirs, strict=True))
    else:
        pairs = _by_pitch(writer, reader)
    for one, other in pairs:
        classes.join(ExecuteDim(writer.execute, one), ExecuteDim(reader.execute, other))
    reason = f"{writer.op.name} and {reader.op.name} see an intermediate differently"
    for dim in set(ours) - {one for one, _ in pairs}:
        classes.fix(ExecuteDim(writer.execute, dim), reason)
    for dim in set(theirs) - {other for _, other in pairs}:
        classes.fix(ExecuteDim(reader.execute, dim), reason)


def _held(use: OperandUse) -> list[str]:
    return [dim for dim in dict.fromkeys(use.tensor.dims) if use.tensor.holds(dim)]


def _steps(use: OperandUse) -> dict[str, tuple[int, int]]:
    """Pitch in bytes and steps of every dim held."""
    pitches = footprint(use.op, use.tensor).pitch_bytes
    return {dim: (pitches[dim], whole_steps(use.op, use.tensor, dim)) for dim in _held(use)}


def _structure(use: OperandUse) -> tuple[object, ...]:
    """Steps, pitches and sticks by place; the pitch of a single step means nothing."""
    held = _held(use)
    walked = tuple((pitch if steps > 1 else 0, steps) for pitch, steps in _steps(use).values())
    stick = tuple(held.index(d) if d in held else -1 for d in use.tensor.stick_dims)
    return walked, stick, use.tensor.stick_sizes


def _by_pitch(writer: OperandUse, reader: OperandUse) -> list[tuple[str, str]]:
    """Dims of several steps with equal pitch and steps, and the stick dim of both."""
    ours, theirs = _steps(writer), _steps(reader)
    pairs = [
        (one, other)
        for one, step in ours.items()
        for other, step2 in theirs.items()
        if step == step2 and step[1] > 1
    ]
    one_stick, other_stick = writer.tensor.stick_dims, reader.tensor.stick_dims
    if len(one_stick) == len(other_stick) == 1:
        pair = one_stick[0], other_stick[0]
        if pair[0] in ours and pair[1] in theirs and pair not in pairs:
            pairs.append(pair)
    return pairs
