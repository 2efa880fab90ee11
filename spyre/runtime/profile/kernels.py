"""Kernels of a profile: one modelled launch of each, and the sums over its launches.

The executions of a launch run one after another in program order; all executions of a statement
take the same time. Programs are read only through
:class:`~spyre.hw.counters.program.ProgramView`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from operator import add

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.hw.cost import Bound, MachineSpec, Model, OperationTime, kernel_ns
from spyre.hw.counters import (
    CORE_COLUMNS,
    CORE_TRAFFIC,
    CORE_WORK,
    Counters,
    ExecuteLabels,
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
PART = 0.1
"""Part of an execute's time above which a term of the cost model is named."""


class CoreBalance(msgspec.Struct, frozen=True, eq=False):
    """Work of each core. ``counts``: int64 [CORES, len(CORE_COLUMNS)]. ``busy_ns``: [CORES], over
    all executes the core's work as a part of the busiest core's, times the execute's time.
    """

    counts: Int64Array
    busy_ns: Float64Array

    def count(self, column: str) -> Int64Array:
        """A column of ``counts``, [CORES]."""
        return self.counts[:, CORE_COLUMNS.index(column)]

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


class ExecuteProfile(msgspec.Struct, frozen=True, eq=False, dict=True):
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
        return self.labels.sdsc(self.statement.source)

    @property
    def op(self) -> str:
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
    def total_ns(self) -> float:
        """Time on the card in all launches."""
        return self.time.total_ns * self.launches

    @property
    def bound(self) -> Bound:
        """The resource that limits it."""
        return self.time.bound

    @property
    def memory_detail(self) -> str:
        """The reason why memory takes longer than its traffic, if that is a tenth of the time."""
        terms = self.time.terms
        if self.bound is not Bound.MEMORY or max(terms.tile, terms.spill) <= PART * terms.total:
            return ""
        return "short rows" if terms.tile >= terms.spill else "read again"

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


class KernelProfile(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A kernel, one modelled launch of it, and the number of its launches.

    ``launch_ns``: time to launch it once. ``times``: of each statement that ran in one launch, by
    its index. ``begin_ns``, ``end_ns``: of the executions in program order, from the begin of the
    kernel, the time to launch it not included. ``origins``: the sources of its launches, None for
    unknown ones, with the number of launches.
    """

    name: str
    view: ProgramView
    labels: ExecuteLabels
    launch_ns: float
    times: Mapping[int, OperationTime]
    begin_ns: Float64Array
    end_ns: Float64Array
    origins: tuple[tuple[SourceLines | None, int], ...]

    @cached_property
    def launches(self) -> int:
        return sum(count for _, count in self.origins)

    @cached_property
    def by_statement(self) -> dict[int, ExecuteProfile]:
        """Its statements that ran, in the order of the text, by their index in the program."""
        statements = self.view.statements
        return {
            index: ExecuteProfile(statements[index], time, self.labels, self.launches)
            for index, time in self.times.items()
        }

    @cached_property
    def executes(self) -> tuple[ExecuteProfile, ...]:
        """Its statements that ran, in the order of the text."""
        return tuple(self.by_statement.values())

    @cached_property
    def lx_live_bytes(self) -> Int64Array:
        """Bytes of one scratchpad that are live during every execution."""
        return live_bytes(self.view.lx_accesses, len(self.view.executions))

    @cached_property
    def one_ns(self) -> float:
        """Time on the cores, one launch."""
        return sum(time.total_ns for time in self.times.values())

    @property
    def total_ns(self) -> float:
        """Time on the cores, all launches."""
        return self.one_ns * self.launches

    @property
    def counters(self) -> Counters:
        """Work in all launches."""
        return reduce(add, (e.counters for e in self.executes), Counters())

    @property
    def bound(self) -> str:
        """The bound with the largest time; `LAUNCH` if launching takes longer than computing."""
        return LAUNCH if self.launch_ns >= self.one_ns else longest_bound([self], 0.0)

    @property
    def lx_peak_bytes(self) -> int:
        """Most bytes of a core's scratchpad alive at once."""
        return int(self.lx_live_bytes.max(initial=0))


def longest_bound(kernels: Sequence[KernelProfile], launch_ns: float) -> str:
    """Return the bound with the largest time, or `LAUNCH` if ``launch_ns`` is no less."""
    times: dict[str, float] = {LAUNCH: launch_ns}
    for execute in (e for kernel in kernels for e in kernel.executes):
        times[execute.bound] = times.get(execute.bound, 0.0) + execute.total_ns
    return str(max(times, key=times.__getitem__))


def profile_kernel(
    name: str,
    view: ProgramView,
    labels: ExecuteLabels,
    origins: Mapping[SourceLines | None, int],
    machine: MachineSpec,
    model: Model,
) -> KernelProfile:
    """Model a launch of a program; the times do not depend on its addresses."""
    statements = [s for s in view.statements if s.counters.executions]
    times = kernel_ns([s.operation_counts for s in statements], machine, model).operations
    each_ns = np.zeros(len(view.statements))
    for statement, time in zip(statements, times, strict=True):
        each_ns[statement.index] = time.total_ns / statement.counters.executions
    ends_ns = np.cumsum(each_ns[view.executions.statement])
    return KernelProfile(
        name,
        view,
        labels,
        machine.hardware.launch_us * 1000.0,
        {s.index: time for s, time in zip(statements, times, strict=True)},
        np.append(0.0, ends_ns)[:-1],
        ends_ns,
        tuple(origins.items()),
    )
