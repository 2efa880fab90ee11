"""What the sanitizer looks at of one operand of an execute, core by core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw.binding import Allocation
from spyre.hw.boxes import Box, BoxAxis, core_boxes
from spyre.hw.linked_program import Variant
from spyre.hw.nest import Int64Array
from spyre.hw.spec import LX_BASE, LX_BYTES, REGION_BITS, REGION_SKEW_BYTES, STICK_BYTES
from spyre.mlir.footprint import footprint
from spyre.mlir.operation import Component, Tensor


def host_sticks(addresses: Int64Array) -> Int64Array:
    """Number in the host reservation of the stick that holds each device address."""
    mapped: Int64Array = addresses + (addresses >> REGION_BITS) * REGION_SKEW_BYTES
    return mapped // STICK_BYTES


@dataclass(frozen=True)
class Operand:
    """One operand of one execute: its boxes, and where they begin (bytes, [instance, core]).

    ``ranges``: per core, sticks before its box and from first to last of what the box is part of.
    """

    index: int
    tensor: Tensor
    begins: Int64Array
    boxes: tuple[Box | None, ...]
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, variant: Variant, index: int) -> Operand:
        """Operand ``index`` of ``variant``."""
        tensor = variant.op.tensors[index]
        boxes = core_boxes(variant.op, tensor)
        firsts = np.array([box.first_bytes if box else 0 for box in boxes], np.int64)
        begins = variant.starts[:, index, :] + firsts
        return cls(index, tensor, begins, boxes, _ranges(variant, index, boxes))

    @property
    def is_aligned(self) -> bool:
        """True if every box begins at a stick."""
        return not (self.begins % STICK_BYTES).any()

    @property
    def low(self) -> int:
        """Lowest address any core touches."""
        return int(self.begins.min())

    @property
    def high(self) -> int:
        """End of the highest byte any core touches."""
        spans = np.array([box.span_bytes if box else 0 for box in self.boxes], np.int64)
        return int((self.begins + spans).max())


def _ranges(
    variant: Variant, index: int, boxes: Sequence[Box | None]
) -> tuple[tuple[int, int], ...]:
    """Per core, sticks before its box and from first to last: of a cell those of its whole slice.

    A cell's tensor has the start of the slice it lies in, see :mod:`spyre.hw.parts`.
    """
    tensor = variant.op.tensors[index]
    spans = [box.span_bytes if box else STICK_BYTES for box in boxes]
    befores = np.zeros(len(boxes), np.int64)
    if variant.divided is not None and tensor.component is Component.LX:
        spans = [footprint(variant.divided, variant.divided.tensors[index]).span_bytes] * len(boxes)
        offsets = (variant.starts[0, index] - LX_BASE) % LX_BYTES
        befores = (offsets - np.array(tensor.starts, np.int64)) // STICK_BYTES
    return tuple(
        (before, span // STICK_BYTES - 1)
        for before, span in zip(befores.tolist(), spans, strict=True)
    )


def reachable(operand: Operand, allocations: Sequence[Allocation]) -> Operand:
    """A scattered output as all that its indices may reach: the rest of its tensor, or of LX.

    Which sticks it really writes depends on data; all of them count as written, by no known core.
    """
    starts, cores = operand.begins, len(operand.boxes)
    if operand.tensor.component is Component.LX:
        ends = starts - (starts - LX_BASE) % LX_BYTES + LX_BYTES
    else:
        starts = np.repeat(starts.min(axis=1)[:, None], cores, axis=1)
        ends = starts + STICK_BYTES
        for a in allocations:
            inside = (starts >= a.address_bytes) & (starts < a.end_bytes)
            ends = np.where(inside, np.maximum(ends, a.end_bytes), ends)
    sticks = int((ends - starts).min()) // STICK_BYTES
    box = Box((BoxAxis("", sticks, STICK_BYTES, 1),))
    ranges = ((0, sticks - 1),) * cores
    return Operand(operand.index, operand.tensor, starts, (box,) * cores, ranges)


def overlap(a: Operand, b: Operand) -> bool:
    """True if cores might meet: both in HBM, their ranges not apart.

    In LX a core writes its own scratchpad only, and an output that overlaps what other cores read
    is refused before (SPY261).
    """
    if Component.LX in (a.tensor.component, b.tensor.component):
        return False
    return a.low < b.high and b.low < a.high
