"""The :class:`~spyre.hw.counters.program.ProgramView` of a linked bundle, for observers.

Everything is computed on first access, once for all moved copies of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spyre.errors import SourceLocation
from spyre.hw.counters import (
    NO_ACCESSES,
    Counters,
    Dispatches,
    Executions,
    LxAccesses,
    OperationCounts,
    count_cores,
    count_execute,
    count_operation,
)
from spyre.hw.plans import PlanRun
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation
from spyre.mlir.program import Execute, Schedule


@dataclass(frozen=True, eq=False)
class LinkedStatement:
    """An execute statement with the operation of its SDSC and the plans linked for it."""

    execute: Execute
    operation: Operation
    runs: tuple[PlanRun, ...]

    @property
    def index(self) -> int:
        return self.execute.index

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def shape(self) -> str:
        """The iteration space; for a runtime size the sizes of the executions."""
        return shape_text(self.operation, self.runs)

    @property
    def source(self) -> str:
        return self.execute.sdsc_filename

    @property
    def location(self) -> SourceLocation | None:
        return self.execute.location

    @cached_property
    def cores(self) -> tuple[int, ...]:
        return tuple(sorted({core for run in self.runs for core in run.plan.op.cores}))

    @cached_property
    def counters(self) -> Counters:
        """The work of all its executions."""
        return count_execute(self.runs)

    @cached_property
    def core_counts(self) -> Int64Array:
        """The same core by core, int64 [CORES, len(CORE_COLUMNS)]."""
        return count_cores(self.runs)

    @cached_property
    def operation_counts(self) -> OperationCounts:
        """The same with its class and shape."""
        return count_operation(self.runs)


def shape_text(op: Operation, runs: Sequence[PlanRun] = ()) -> str:
    """The iteration space in N_ order, in elements; for a runtime size the sizes in ``runs``."""
    extents = {dim: str(op.extents[dim]) for dim in op.dims}
    for dim in op.symbolic_dims if runs else ():
        sizes = {run.plan.op.extents[dim] for run in runs}
        extents[dim] = "-".join(map(str, sorted({min(sizes), max(sizes)})))
    return ", ".join(f"{dim} {extent}" for dim, extent in extents.items())


@dataclass(frozen=True, eq=False)
class LinkedView:
    """``dispatch``, ``run_rows``: see :class:`~spyre.hw.linking.linked_program.LinkedProgram`."""

    statements: tuple[LinkedStatement, ...]
    schedule: Schedule
    dispatch: Int64Array
    run_rows: Int64Array

    @cached_property
    def executions(self) -> Executions:
        """Executions with dispatches, in program order; the parts of one count once."""
        statement, instance = self.dispatch[:, 1], self.dispatch[:, 2]
        span = int(instance.max(initial=0)) + 1
        _, first = np.unique(statement * span + instance, return_index=True)
        rows = np.sort(first)
        return Executions(statement[rows], instance[rows])

    @cached_property
    def dispatches(self) -> Dispatches:
        """All dispatches; each run is a part."""
        part = np.searchsorted(self.run_rows, self.dispatch[:, 0], side="right") - 1
        cores = (run.plan.op.cores for statement in self.statements for run in statement.runs)
        return Dispatches(self.dispatch[:, 1], self.dispatch[:, 2], part, tuple(cores))

    @cached_property
    def lx_accesses(self) -> LxAccesses:
        """Every use of a range of the scratchpads."""
        uses = [use for statement in self.statements for use in self._lx_uses(statement)]
        return LxAccesses(*np.concatenate(uses, axis=1)) if uses else NO_ACCESSES

    def _lx_uses(self, statement: LinkedStatement) -> Iterator[Int64Array]:
        if not statement.runs:
            return
        positions = np.flatnonzero(self.executions.statement == statement.index)
        instance = self.executions.instance[positions]
        position_of = np.zeros(int(instance.max(initial=0)) + 1, np.int64)
        position_of[instance] = positions
        for run in statement.runs:
            for operand, access in enumerate(run.plan.accesses):
                if access.tensor.component is not Component.LX:
                    continue
                starts = (run.starts(operand) - LX_BASE) % LX_BYTES
                low, high = starts.min(axis=1), starts.max(axis=1) + access.span_bytes
                index = np.full(len(low), statement.index)
                writes = np.full(len(low), int(access.tensor in run.plan.op.outputs))
                yield np.stack([low, high, position_of[run.instances], index, writes])

    def loop_indices(self, statement: int, instance: int) -> tuple[int, ...]:
        """Indices of the loops around an execution, outermost first."""
        return tuple(self.schedule.loop_indices[statement][instance].tolist())
