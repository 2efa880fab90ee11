"""Kernels of a profile: one modelled launch of each, and the sums over its launches.

The executions of a launch run one after another in program order; all executions of a statement
take the same time. Programs are read only through
:class:`~spyre.hw.counters.program.ProgramView`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import numpy as np
import numpy.typing as npt

from spyre.hw.cost import Bound, MachineSpec, Model, OperationTime, kernel_ns
from spyre.hw.counters import (
    CORE_COLUMNS,
    CORE_TRAFFIC,
    CORE_WORK,
    Counters,
    ExecuteLabels,
    Executions,
    LxAccesses,
    OperationCounts,
    ProgramView,
    StatementView,
    live_bytes,
)
from spyre.hw.spec import CORES, STICK_BYTES
from spyre.layout import Int64Array
from spyre.runtime.flex import SourceLines

Float64Array = npt.NDArray[np.float64]

LAUNCH = "launch"
"""The bound of kernels that take less time than their launch."""


@dataclass(frozen=True, eq=False)
class CoreBalance:
    """Work of each core. ``counts``: int64 [CORES, len(CORE_COLUMNS)]. ``busy_ns``: [CORES], over
    all executes the core's work as a part of the busiest core's, times the execute's time.
    """

    counts: Int64Array
    busy_ns: Float64Array

    def count(self, column: str) -> Int64Array:
        """A column of ``counts``, [CORES]."""
        counts: Int64Array = self.counts[:, CORE_COLUMNS.index(column)]
        return counts

    @property
    def sticks(self) -> Int64Array:
        """Sticks every core moves to and from HBM and LX, [CORES]."""
        sticks: Int64Array = self.counts[:, CORE_TRAFFIC].sum(axis=1) // STICK_BYTES
        return sticks

    @property
    def by_name(self) -> dict[str, Int64Array]:
        """All counts by name, each [CORES]."""
        return {**{name: self.count(name) for name in CORE_COLUMNS}, "sticks": self.sticks}

    @property
    def imbalance(self) -> float | None:
        """The imbalance of the busy times, see `imbalance`."""
        return imbalance(self.busy_ns)


def imbalance(values: Int64Array | Float64Array) -> float | None:
    """Return the maximum over the mean of the non-zero values; None if all are 0."""
    used = values[values > 0]
    return float(used.max() / used.mean()) if len(used) else None


# --- one launch ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KernelModel:
    """One launch of a program. ``times``: of each statement that ran, by its index.

    ``begin_ns``, ``end_ns``: of the executions in program order, from the begin of the kernel, the
    time to launch it not included.
    """

    view: ProgramView
    times: dict[int, OperationTime]
    begin_ns: Float64Array
    end_ns: Float64Array

    @property
    def executions(self) -> Executions:
        """The executions in program order."""
        return self.view.executions

    @property
    def lx(self) -> LxAccesses:
        """Every use of a range of the scratchpads."""
        return self.view.lx_accesses

    @cached_property
    def lx_live_bytes(self) -> Int64Array:
        """Bytes of one scratchpad that are live during every execution."""
        return live_bytes(self.lx, len(self.executions))

    @property
    def total_ns(self) -> float:
        """Time on the cores."""
        return sum(time.total_ns for time in self.times.values())


def model_kernel(view: ProgramView, machine: MachineSpec, model: Model) -> KernelModel:
    """Model a launch of a program; the times do not depend on its addresses."""
    statements = [s for s in view.statements if s.counters.executions]
    times = kernel_ns([s.operation_counts for s in statements], machine, model).operations
    each_ns = np.zeros(len(view.statements))
    for statement, time in zip(statements, times, strict=True):
        each_ns[statement.index] = time.total_ns / statement.counters.executions
    ends_ns = np.cumsum(each_ns[view.executions.statement])
    begins_ns = np.append(0.0, ends_ns)[:-1]
    by_index = {s.index: time for s, time in zip(statements, times, strict=True)}
    return KernelModel(view, by_index, begins_ns, ends_ns)


def part_of(total: int, count: int, k: int) -> int:
    """Return the part of ``total`` for execution ``k`` of ``count``; parts differ by at most 1."""
    return total * (k + 1) // count - total * k // count


# --- all launches -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ExecuteProfile:
    """An execute statement of a kernel, all its executions in all launches.

    ``time``: of one launch. ``labels``: its number and names in findings and reports.
    """

    statement: StatementView
    time: OperationTime
    labels: ExecuteLabels
    launches: int

    @property
    def index(self) -> int:
        """Its number; in a case, among those of all kernels."""
        return self.labels.first_execute + self.statement.index

    @property
    def sdsc(self) -> str:
        """Its file."""
        return self.labels.sdsc(self.statement.source)

    @property
    def op(self) -> str:
        """Its operation."""
        return self.statement.name

    @property
    def shape(self) -> str:
        """The iteration space as text."""
        return self.statement.shape

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores that take part."""
        return self.statement.cores

    @property
    def counters(self) -> Counters:
        """Work in all launches."""
        return self.statement.counters.times(self.launches)

    @property
    def counts(self) -> OperationCounts:
        """The input of the cost model, for one launch."""
        return self.statement.operation_counts

    @property
    def launch_ns(self) -> float:
        """Time on the card in one launch."""
        return self.time.total_ns

    @property
    def total_ns(self) -> float:
        """Time on the card in all launches."""
        return self.time.total_ns * self.launches

    @property
    def bound(self) -> Bound:
        """The resource that limits it."""
        return self.time.bound

    @cached_property
    def core_shares(self) -> Float64Array:
        """Work of each core as a part of the busiest core's, [CORES]."""
        work = self.statement.core_counts[:, CORE_WORK].sum(axis=1).astype(np.float64)
        if not work.any():
            work[list(self.cores)] = 1.0
        shares: Float64Array = work / work.max()
        return shares


def balance_of(executes: Iterable[ExecuteProfile]) -> CoreBalance:
    """Return the work of each core in all launches of ``executes``."""
    counts = np.zeros((CORES, len(CORE_COLUMNS)), np.int64)
    busy_ns = np.zeros(CORES)
    for execute in executes:
        counts += execute.statement.core_counts * execute.launches
        busy_ns += execute.core_shares * execute.total_ns
    return CoreBalance(counts, busy_ns)


@dataclass(frozen=True, eq=False)
class KernelProfile:
    """A kernel and the number of its launches.

    ``launch_ns``: time to launch it once. ``origins``: the sources of its launches, None for
    unknown ones, with the number of launches.
    """

    name: str
    model: KernelModel
    labels: ExecuteLabels
    launches: int
    launch_ns: float
    origins: tuple[tuple[SourceLines | None, int], ...]

    @cached_property
    def executes(self) -> tuple[ExecuteProfile, ...]:
        """Its statements that ran, in the order of the text."""
        return tuple(self._by_statement.values())

    def execute_of(self, statement: int) -> ExecuteProfile:
        """The profile of a statement that ran, by its index in the program."""
        return self._by_statement[statement]

    @cached_property
    def _by_statement(self) -> dict[int, ExecuteProfile]:
        statements = self.model.view.statements
        return {
            index: ExecuteProfile(statements[index], time, self.labels, self.launches)
            for index, time in self.model.times.items()
        }

    @property
    def total_ns(self) -> float:
        """Time on the cores, all launches."""
        return self.model.total_ns * self.launches

    @property
    def counters(self) -> Counters:
        """Work in all launches."""
        return reduce(add, (e.counters for e in self.executes), Counters())

    @property
    def bound(self) -> str:
        """The bound with the largest time; `LAUNCH` if launching takes longer than computing."""
        if self.launch_ns >= self.model.total_ns:
            return LAUNCH
        times: dict[str, float] = {}
        for execute in self.executes:
            times[execute.bound] = times.get(execute.bound, 0.0) + execute.total_ns
        return max(times, key=lambda bound: times[bound], default=LAUNCH)

    @property
    def lx_peak_bytes(self) -> int:
        """Most bytes of a core's scratchpad alive at once."""
        return int(self.model.lx_live_bytes.max(initial=0))

    @property
    def cores(self) -> int:
        """Cores that take part."""
        return len({core for e in self.executes for core in e.cores})
