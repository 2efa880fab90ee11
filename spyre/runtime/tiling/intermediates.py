"""Linking dims of operations through what they hand over in the pool and in scratchpads.

A reader is linked to the last writers of the bytes it reads. Where their tensors have the same
structure, dims go together place by place; elsewhere by equal pitches and steps, and what is left
over cannot be tiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw.nest import Int64Array
from spyre.mlir.footprint import footprint
from spyre.mlir.operation import Operation
from spyre.runtime.tiling.argument_walks import Starts
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


def link_intermediates(classes: DimClasses, uses: Sequence[OperandUse], starts: Starts) -> None:
    """Join dims of readers and writers; ``uses``: operands outside of arguments, in textual order.

    ``starts``: where executes start along dims they walk in arguments; what is handed over must
    start at the same element on both sides. The text is walked twice, so that what a loop hands to
    its next iteration is linked too.
    """
    known = dict(starts)
    ranges = [_Range.of(use) for use in uses]
    written: list[_Range] = []
    for place in (*ranges, *ranges):
        if place.use.is_written:
            written.append(place)
            continue
        for writer in reversed(written):
            if writer.overlaps(place):
                _link(classes, writer, place, known)
                if writer.covers(place):
                    break


def _link(
    classes: DimClasses, writer: _Range, reader: _Range, known: dict[ExecuteDim, Int64Array]
) -> None:
    one, other = writer.use, reader.use
    same = (writer.low, writer.high) == (reader.low, reader.high)
    if same and _structure(one) == _structure(other):
        pairs = list(zip(_held(one), _held(other), strict=True))
    else:
        pairs = _by_pitch(one, other) if same else []
    reason = f"{one.op.name} and {other.op.name} see an intermediate differently"
    for dim, dim2 in pairs:
        ours, theirs = ExecuteDim(one.execute, dim), ExecuteDim(other.execute, dim2)
        classes.join(ours, theirs)
        if ours in known and not _agree(known[ours], other, theirs, known):
            classes.fix(theirs, reason)
    for dim in set(_held(one)) - {ours for ours, _ in pairs}:
        classes.fix(ExecuteDim(one.execute, dim), reason)
    for dim in set(_held(other)) - {theirs for _, theirs in pairs}:
        classes.fix(ExecuteDim(other.execute, dim), reason)


def _agree(
    writer: Int64Array, use: OperandUse, reader: ExecuteDim, known: dict[ExecuteDim, Int64Array]
) -> bool:
    """True if the reader ``use`` starts at the element the writer does along its dim ``reader``.

    In memory of the cores' own each core must, else all of them together. A reader that is not
    known to start anywhere else starts where the writer did.
    """
    local = use.tensor.is_local
    ours = writer if local else writer.min(axis=1, keepdims=True)
    if reader not in known:
        known[reader] = ours if local else ours + _slice_starts(use.op, reader.dim)
    theirs = known[reader] if local else known[reader].min(axis=1, keepdims=True)
    repeated = len(ours) == len(theirs) or min(len(ours), len(theirs)) == 1
    return repeated and ours.shape[1] == theirs.shape[1] and bool((ours == theirs).all())


def _slice_starts(op: Operation, dim: str) -> Int64Array:
    """Element of ``dim`` every core's work slice begins at, [core]."""
    numbers = np.array([row.get(dim, 0) for row in op.core_slices], np.int64)
    return numbers * op.core_extent(dim)


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
