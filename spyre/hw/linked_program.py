"""What linking makes: plan tables, dispatches, and what runs for which execution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spyre.hw import table as tb
from spyre.hw.binding import Binding
from spyre.hw.core_plan import CorePlan
from spyre.hw.kernels.opcodes import DISPATCH_BASES
from spyre.hw.kernels.registry import entry_addresses
from spyre.hw.nest import Int64Array
from spyre.hw.spec import (
    REGION_BITS,
    REGION_SKEW_BYTES,
)
from spyre.mlir.operation import Operation
from spyre.mlir.program import LoopProgram, Schedule


@dataclass(frozen=True)
class PlanRun:
    """A plan and the instances of a static execute it runs for.

    ``bases``: start addresses of the first core, int64 [instance, operand]; ``pattern``: those of
    all cores relative to it, [operand, core]. ``divided``: the operation with its tensors' own work
    slices, where the plan's is in cells, which may lie in other cores' scratchpads.
    """

    plan: CorePlan
    instances: Int64Array
    bases: Int64Array
    pattern: Int64Array
    divided: Operation | None = None

    def starts(self, operand: int) -> Int64Array:
        """Start addresses of an operand, [instance, core]."""
        starts: Int64Array = self.bases[:, operand, None] + self.pattern[operand]
        return starts


@dataclass(frozen=True)
class LinkedProgram:
    """Ready to run: plan tables, and dispatches in program order.

    ``tables``: int64 [n, WORDS]; rows of KIND EXTRA continue the table before them. ``dispatch``:
    int64 [m, DISPATCH_WORDS]: table, static execute, instance, spare, 8 base addresses. ``runs``:
    what runs for each static execute; an instance with several parts is in several runs.
    ``binding``: what it was linked for. ``run_rows``: first row in ``tables`` of each run, those of
    all executes one behind another.
    """

    tables: Int64Array
    dispatch: Int64Array
    program: LoopProgram
    schedule: Schedule
    runs: tuple[tuple[PlanRun, ...], ...]
    binding: Binding
    run_rows: Int64Array

    @cached_property
    def plans(self) -> tuple[tuple[CorePlan, ...], ...]:
        """The distinct plans of each static execute."""
        return tuple(tuple({id(r.plan): r.plan for r in runs}.values()) for runs in self.runs)

    @cached_property
    def host_dispatch(self) -> Int64Array:
        """``dispatch`` with base addresses as host offsets, which is what kernels take."""
        mapped = self.dispatch.copy()
        bases = mapped[:, DISPATCH_BASES:]
        bases += (bases >> REGION_BITS) * REGION_SKEW_BYTES
        return mapped

    @cached_property
    def entries(self) -> Int64Array:
        """Addresses of the kernels the program uses, compiled or loaded on first access."""
        kinds = np.unique(self.tables[:, tb.KIND])
        return entry_addresses(kinds[kinds != tb.EXTRA].tolist())


@dataclass(frozen=True)
class Variant:
    """One operation an execute statement runs, and for which of its instances.

    ``starts``: device addresses in bytes, [member of ``instances``, operand, core]. Most statements
    have one variant; runtime sizes and shorter last work slices make more. ``divided``: as in
    :class:`PlanRun`.
    """

    op: Operation
    instances: Int64Array
    starts: Int64Array
    divided: Operation | None = None


def variants_of(linked: LinkedProgram, static: int) -> tuple[Variant, ...]:
    """What execute statement ``static`` runs, in the order of its parts."""
    groups: dict[int, list[PlanRun]] = {}
    for run in linked.runs[static]:
        groups.setdefault(id(run.plan.op), []).append(run)
    return tuple(map(_variant, groups.values()))


def _variant(runs: list[PlanRun]) -> Variant:
    instances = np.concatenate([run.instances for run in runs])
    starts = np.concatenate([run.bases[:, :, None] + run.pattern[None] for run in runs])
    order = np.argsort(instances, kind="stable")
    return Variant(runs[0].plan.op, instances[order], starts[order], runs[0].divided)
