"""What a profile holds: kernels with what their executes cost, copies, and the timeline of them.

Times are modelled, of the card, in nanoseconds; nothing here is measured. What shows a profile
takes this; :class:`~spyre.runtime.profile.profile.Profile` adds what people call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import numpy as np

from spyre.hw.cost.kernel_time import Model
from spyre.hw.cost.machine import MachineSpec
from spyre.hw.cost.operation_counts import OperationCounts
from spyre.hw.cost.timeline.policies import Overlap
from spyre.hw.cost.timeline.task import Kind, Resource, Span, Timeline
from spyre.hw.cost.times import Bound
from spyre.hw.counters import Counters
from spyre.hw.execute_counters import CORE_COLUMNS
from spyre.hw.nest import Int64Array
from spyre.hw.spec import CORES
from spyre.runtime.profile.activity import Activity
from spyre.runtime.profile.core_balance import CoreBalance
from spyre.runtime.profile.hbm_occupancy import HbmOccupancy
from spyre.runtime.profile.kernel_model import ExecuteModel, Float64Array, KernelModel

LAUNCH = "launch"
"""What a kernel is bound by that takes less time than it takes to give it to the cores."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """What a machine could do at most: bytes and multiply-adds per nanosecond, all cores."""

    hbm_gbps: float
    macs_per_ns: float

    @staticmethod
    def of(machine: MachineSpec, data_format: str = "SEN169_FP16") -> Roofs:
        """The roofs for products of ``data_format``."""
        hw = machine.hardware
        per_core = hw.pt_macs_per_cycle * hw.clock_ghz * hw.format_speed(data_format)
        return Roofs(hw.hbm_peak_gbps, per_core * hw.cores)


@dataclass(frozen=True, eq=False)
class ExecuteProfile:
    """An execute statement of a kernel, all its executions in all launches.

    ``index``: its number, in a case among those of all kernels. ``counters``, times: of one launch.
    """

    index: int
    sdsc: str
    model: ExecuteModel
    launches: int

    @property
    def counters(self) -> Counters:
        """Work in all launches."""
        return self.model.counters.times(self.launches)

    @property
    def counts(self) -> OperationCounts:
        """What the cost model was given, of one launch."""
        return self.model.counts

    @property
    def total_ns(self) -> float:
        """All launches."""
        return self.model.total_ns * self.launches

    @property
    def bound(self) -> Bound:
        """What it waits for most."""
        return self.model.time.bound


def balance_of(executes: Iterable[ExecuteProfile]) -> CoreBalance:
    """What each core did in all launches of ``executes``."""
    counts = np.zeros((CORES, len(CORE_COLUMNS)), np.int64)
    busy_ns = np.zeros(CORES)
    for execute in executes:
        counts += execute.model.core_counts * execute.launches
        busy_ns += execute.model.core_shares * execute.total_ns
    return CoreBalance(counts, busy_ns)


@dataclass(frozen=True, eq=False)
class KernelProfile:
    """A kernel, and how often it was launched in the same form.

    ``launch_ns``: giving it to the cores, once.
    """

    name: str
    model: KernelModel
    executes: tuple[ExecuteProfile, ...]
    launches: int
    launch_ns: float

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
        return self.model.lx_peak_bytes

    @property
    def cores(self) -> int:
        """Cores that take part."""
        return len({core for e in self.executes for core in e.model.cores})


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch in the timeline.

    ``kernel``: place in `ProfileData.kernels`; ``task``: in the timeline's tasks.
    """

    kernel: int
    task: int


@dataclass(frozen=True, eq=False)
class ProfileData:
    """What a card would have done, by a cost model.

    ``activities``: what was profiled; ``owners``: by task of the timeline, the place of its
    activity. ``launches``: in order of submission. ``hbm``: what is allocated in device memory
    when; None where nobody looked.
    """

    machine: MachineSpec
    cost_model: Model
    overlap: Overlap
    kernels: tuple[KernelProfile, ...]
    launches: tuple[Launch, ...]
    activities: tuple[Activity, ...]
    timeline: Timeline
    owners: tuple[int, ...]
    hbm: HbmOccupancy | None = None

    @property
    def executes(self) -> Iterator[tuple[KernelProfile, ExecuteProfile]]:
        """Every execute statement with its kernel."""
        for kernel in self.kernels:
            for execute in kernel.executes:
                yield kernel, execute

    @property
    def counters(self) -> Counters:
        """Work of everything."""
        return reduce(add, (kernel.counters for kernel in self.kernels), Counters())

    @property
    def makespan_ns(self) -> float:
        """From the first begin to the last end."""
        return self.timeline.makespan_ns

    @property
    def compute_ns(self) -> float:
        """Time on the cores."""
        return sum(kernel.total_ns for kernel in self.kernels)

    @property
    def launch_ns(self) -> float:
        """Giving control blocks to the cores."""
        return self.timeline.busy_ns(Resource.LAUNCH)

    @property
    def kernel_ns(self) -> float:
        """Launching and computing: what shares are parts of."""
        return self.compute_ns + self.launch_ns

    def copied_bytes(self, kind: Kind) -> int:
        """Bytes of all copies of a kind."""
        return sum(a.size_bytes for a in self.activities if a.kind is kind)

    def copied_ns(self, kind: Kind) -> float:
        """Time of all copies of a kind."""
        return sum(task.duration_ns for task in self.timeline.tasks if task.kind is kind)

    @property
    def lx_peak_bytes(self) -> int:
        """Most bytes of a core's scratchpad in use at once in a launch."""
        return max((kernel.lx_peak_bytes for kernel in self.kernels), default=0)

    @cached_property
    def per_core(self) -> CoreBalance:
        """What each core did in all launches."""
        return balance_of(execute for _, execute in self.executes)

    @property
    def core_counts(self) -> Int64Array:
        """Work per core, see :func:`~spyre.hw.execute_counters.count_cores`."""
        return self.per_core.counts

    @property
    def core_busy_ns(self) -> Float64Array:
        """How long each core works, [CORES]: of every execute, its part of the busiest core's."""
        return self.per_core.busy_ns

    def span_of(self, launch: Launch) -> Span:
        """When a launch is on the cores."""
        return self.timeline.spans[launch.task]
