"""Masked coordinates: which lanes or sticks of the input are replaced, and by what.

Rule: SDSC reference §6.3 and the real bundles: the value is the constant named `samv-maskvalue`;
coordinates are global, so a pseudo-operand carries the coordinate along the masked dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spyre.hw import table as tb
from spyre.hw.access import per_core
from spyre.hw.nest import Int64Array
from spyre.hw.plans.context import MASK_CONSTANT, PlanContext, RowWriter, float_word


@dataclass(frozen=True, slots=True)
class Mask:
    """One masked interval [start, end) of ``dim``; ``lanes`` if ``dim`` is the stick dim."""

    dim: str
    start: int
    end: int
    value: float
    lanes: bool

    def starts(self, context: PlanContext) -> Int64Array:
        """Coordinate of each core's first element along the masked dim."""
        share = per_core(context.op, self.dim)
        slices = [core.get(self.dim, 0) * share for core in context.op.core_slices]
        return np.array(slices, np.int64)

    def pitch(self, dim: str, elements: int) -> int:
        """Coordinate advance of ``elements`` steps along ``dim``."""
        return elements if dim == self.dim else 0

    def write(self, row: RowWriter) -> None:
        """Set the mask words of ``row``."""
        row.header(
            mask=tb.MASK_LANES if self.lanes else tb.MASK_STICKS,
            mask_start=self.start,
            mask_end=self.end,
            mask_bits=float_word(self.value),
        )


def find_mask(context: PlanContext) -> Mask | None:
    """The operation's mask, if any; raises UnsupportedError for more than one interval."""
    masks = {dim: spans for dim, spans in context.op.masks.items() if spans}
    if not masks:
        return None
    intervals = [(dim, start, count) for dim, spans in masks.items() for start, count in spans]
    if len(intervals) > 1:
        raise context.refuse(
            "SPY524", "several masked intervals", "one interval of one dim", str(intervals)
        )
    dim, start, count = intervals[0]
    value = context.constant(MASK_CONSTANT)
    return Mask(dim, start, start + count, value, dim == context.inputs[0].stick_dim)
