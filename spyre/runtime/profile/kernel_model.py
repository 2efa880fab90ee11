"""One launch of a kernel, modelled: what each execute statement costs, and when its executions are.

Executions of a launch follow one another in program order; all executions of a statement take the
same part of its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spyre.hw.cost.machine import MachineSpec
from spyre.hw.cost.models import Model, OperationTime, kernel_ns
from spyre.hw.counters.counts import Counters, OperationCounts
from spyre.hw.counters.execute import CORE_WORK, count_cores, count_operation
from spyre.hw.counters.scratchpad import LxAccesses, lx_accesses, lx_occupancy
from spyre.hw.linking.linked_program import LinkedProgram, OriginalAddresses, PlanRun
from spyre.layout.access_map import Int64Array
from spyre.runtime.run.result import shape_text

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExecuteModel:
    """An execute statement in one launch, all its executions.

    ``index``: its number in the program; ``sdsc``: its file. ``core_counts``: int64 [CORES,
    len(CORE_COLUMNS)], see :func:`~spyre.hw.counters.execute.count_cores`.
    """

    index: int
    sdsc: str
    op: str
    shape: str
    cores: tuple[int, ...]
    counters: Counters
    counts: OperationCounts
    time: OperationTime
    core_counts: Int64Array

    @property
    def total_ns(self) -> float:
        """Time on the card."""
        return self.time.total_ns

    @cached_property
    def core_shares(self) -> Float64Array:
        """How long each core works, as part of the busiest one's time, [CORES]."""
        work = self.core_counts[:, CORE_WORK].sum(axis=1).astype(np.float64)
        if not work.any():
            work[list(self.cores)] = 1.0
        shares: Float64Array = work / work.max()
        return shares


@dataclass(frozen=True, eq=False)
class Executions:
    """The executions of a launch in program order, as arrays over them.

    ``execute``: place of the statement in `KernelModel.executes`; ``instance``: which of its
    executions. Times count from the begin of the kernel, without what giving it to the cores takes.
    """

    execute: Int64Array
    instance: Int64Array
    begin_ns: Float64Array
    end_ns: Float64Array

    def __len__(self) -> int:
        return len(self.execute)


@dataclass(frozen=True, eq=False)
class KernelModel:
    """One launch of a kernel. ``lx_live_bytes``: of a scratchpad, during every execution."""

    executes: tuple[ExecuteModel, ...]
    executions: Executions
    lx: LxAccesses
    lx_live_bytes: Int64Array

    @property
    def lx_peak_bytes(self) -> int:
        """Most bytes of a scratchpad alive at once."""
        return int(self.lx_live_bytes.max(initial=0))

    @property
    def total_ns(self) -> float:
        """Time on the cores."""
        return sum(execute.total_ns for execute in self.executes)


def model_kernel(linked: LinkedProgram, machine: MachineSpec, model: Model) -> KernelModel:
    """The launch that was linked; the same for all places it is moved to."""
    origin = linked.places.origin
    statements = [k for k, runs in enumerate(origin.runs) if runs]
    counts = [count_operation(origin.runs[k]) for k in statements]
    times = kernel_ns(counts, machine, model).operations
    files = [linked.program.executes[k].sdsc_filename for k in statements]
    rows = zip(statements, files, counts, times, strict=True)
    executes = tuple(
        _execute(k, file, origin.runs[k], linked.counters[k], c, time) for k, file, c, time in rows
    )
    executions = _executions(origin, statements, executes)
    place_of = _places(len(origin.runs), statements)
    accesses = lx_accesses(origin.runs, place_of, executions.execute, executions.instance)
    live_bytes = _lx_live_bytes(linked, executions, statements)
    return KernelModel(executes, executions, accesses, live_bytes)


def _lx_live_bytes(
    linked: LinkedProgram, executions: Executions, statements: Sequence[int]
) -> Int64Array:
    """Occupancy of LX during every execution; the schedule may have ones that do nothing."""
    schedule = linked.schedule
    span = int(schedule.instance.max(initial=0)) + 1
    scheduled = schedule.order.astype(np.int64) * span + schedule.instance
    wanted = np.array(statements, np.int64)[executions.execute] * span + executions.instance
    order = np.argsort(scheduled)
    place = order[np.searchsorted(scheduled, wanted, sorter=order)]
    return lx_occupancy(linked).live_bytes[place]


def _execute(
    k: int,
    file: str,
    runs: Sequence[PlanRun],
    counters: Counters,
    counts: OperationCounts,
    time: OperationTime,
) -> ExecuteModel:
    op = runs[0].plan.op if runs[0].divided is None else runs[0].divided
    return ExecuteModel(
        k,
        file,
        op.name,
        shape_text(op, runs),
        tuple(sorted({core for run in runs for core in run.plan.op.cores})),
        counters,
        counts,
        time,
        count_cores(runs),
    )


def _places(count: int, statements: Sequence[int]) -> Int64Array:
    found = np.full(count, -1, np.int64)
    found[statements] = np.arange(len(statements))
    return found


def _executions(
    origin: OriginalAddresses, statements: Sequence[int], executes: Sequence[ExecuteModel]
) -> Executions:
    """Parts of one execution are at the same time."""
    place_of = _places(len(origin.runs), statements)
    static, instance = origin.dispatch[:, 1], origin.dispatch[:, 2]
    span = int(instance.max(initial=0)) + 1
    _, first = np.unique(static * span + instance, return_index=True)
    rows = np.sort(first)
    execute = place_of[static[rows]]
    each = np.array([e.total_ns / e.counters.executions for e in executes], np.float64)
    ends = np.cumsum(each[execute]) if len(rows) else np.zeros(0, np.float64)
    return Executions(execute, instance[rows], np.append(0.0, ends)[:-1], ends)


def part_of(total: int, count: int, k: int) -> int:
    """The part of ``total`` that execution ``k`` of ``count`` has: as even as whole numbers are."""
    return total * (k + 1) // count - total * k // count
