"""A plan with the instances of an execute it runs for."""

from __future__ import annotations

from dataclasses import dataclass

from spyre.hw.core_plan import CorePlan
from spyre.hw.nest import Int64Array
from spyre.mlir.operation import Operation


@dataclass(frozen=True)
class PlanRun:
    """A plan and the instances of a static execute it runs for.

    ``bases``: start addresses of the first core, int64 [instance, operand]; ``pattern``: those of
    all cores relative to it, [operand, core]. ``divided``: the operation with its tensors' own work
    slices, where the plan's is in cells, which may lie in other cores' scratchpads. ``anchors``:
    what each base moves with, [instance, operand], see :mod:`spyre.hw.anchors`.
    """

    plan: CorePlan
    instances: Int64Array
    bases: Int64Array
    pattern: Int64Array
    divided: Operation | None
    anchors: Int64Array

    def starts(self, operand: int) -> Int64Array:
        """Start addresses of an operand, [instance, core]."""
        starts: Int64Array = self.bases[:, operand, None] + self.pattern[operand]
        return starts
