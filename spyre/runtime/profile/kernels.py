"""Kernels of a profile: one launch of each, modelled, and what all its launches come to.

Executions of a launch follow one another in program order; all executions of a statement take the
same part of its time. What was launched is seen through
:class:`~spyre.hw.counters.program.ProgramView` only.
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
from spyre.runtime.flex import LaunchOrigin

Float64Array = npt.NDArray[np.float64]

LAUNCH = "launch"
"""What a kernel is bound by that takes less time than it takes to give it to the cores."""


@dataclass(frozen=True, eq=False)
class CoreBalance:
    """``counts``: of every core, int64 [CORES, len(CORE_COLUMNS)]; ``busy_ns``: how long each core
    works, [CORES]: of every execute, its part of the busiest core's time.
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
        """That of the time they work, see `imbalance`."""
        return imbalance(self.busy_ns)


def imbalance(values: Int64Array | Float64Array) -> float | None:
    """The most of any core over the mean of those that have some; 1 is even, None without any."""
    used = values[values > 0]
    return float(used.max() / used.mean()) if len(used) else None


# --- one launch ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KernelModel:
    """One launch of a program. ``times``: of each statement that ran, by its index.

    ``begin_ns``, ``end_ns``: of the executions in program order, from the begin of the kernel,
    without what giving it to the cores takes.
    """

    view: ProgramView
    times: dict[int, OperationTime]
    begin_ns: Float64Array
    end_ns: Float64Array

    @property
    def executions(self) -> Executions:
        """What ran, in program order."""
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
    """The launch of a program; the same for all places it is moved to."""
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
    """The part of ``total`` that execution ``k`` of ``count`` has: as even as whole numbers are."""
    return total * (k + 1) // count - total * k // count


# --- all launches -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ExecuteProfile:
    """An execute statement of a kernel, all its executions in all launches.

    ``time``: of one launch. ``labels``: how findings and reports number and name it.
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
        """What the cost model was given, of one launch."""
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
        """What it waits for most."""
        return self.time.bound

    @cached_property
    def core_shares(self) -> Float64Array:
        """How long each core works, as part of the busiest one's time, [CORES]."""
        work = self.statement.core_counts[:, CORE_WORK].sum(axis=1).astype(np.float64)
        if not work.any():
            work[list(self.cores)] = 1.0
        shares: Float64Array = work / work.max()
        return shares


def balance_of(executes: Iterable[ExecuteProfile]) -> CoreBalance:
    """What each core did in all launches of ``executes``."""
    counts = np.zeros((CORES, len(CORE_COLUMNS)), np.int64)
    busy_ns = np.zeros(CORES)
    for execute in executes:
        counts += execute.statement.core_counts * execute.launches
        busy_ns += execute.core_shares * execute.total_ns
    return CoreBalance(counts, busy_ns)


@dataclass(frozen=True, eq=False)
class KernelProfile:
    """A kernel, and how often it was launched in the same form.

    ``launch_ns``: giving it to the cores, once. ``origins``: what it was launched for, and how
    often; None where nobody knows.
    """

    name: str
    model: KernelModel
    labels: ExecuteLabels
    launches: int
    launch_ns: float
    origins: tuple[tuple[LaunchOrigin | None, int], ...]

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
        """What most of its time waits for; `LAUNCH` where launching takes longer than computing."""
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
