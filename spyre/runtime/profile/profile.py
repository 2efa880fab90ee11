"""`Profile`: kernels with the costs of their executes, copies, the timeline, allocated memory.

It is made from activities: copies, host operations and launches in order of submission, those of a
recording or of a run. Each kernel is modelled once, and its launches are put on a timeline. Times
are modelled times of the card in nanoseconds; only the times of operations that ran on the host's
CPU instead are measured. Table, files, roofline, trace and report are made from a profile.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace

from spyre.hw.cost import (
    MachineSpec,
    Model,
    Overlap,
    Resource,
    Task,
    TaskKind,
    Timeline,
    copy_out_ns,
    default_machine,
    load_machine,
    simulate,
)
from spyre.hw.counters import UNLABELLED, Counters, ExecuteLabels, ProgramView
from spyre.hw.memory import AllocationHistory
from spyre.layout import Int64Array
from spyre.runtime.comms import CollectiveRecord
from spyre.runtime.flex import (
    Command,
    CommandStream,
    Engine,
    SourceLines,
    launch_of,
    recorded_block_of,
)
from spyre.runtime.profile.collectives import modelled_time
from spyre.runtime.profile.kernels import (
    CoreBalance,
    ExecuteProfile,
    Float64Array,
    KernelProfile,
    balance_of,
    profile_kernel,
)
from spyre.runtime.program import Role
from spyre.runtime.run import RunResult
from spyre.runtime.trace import write_trace

if TYPE_CHECKING:
    from rich.table import Table

    from spyre.runtime.drawing import Section


# --- activities -----------------------------------------------------------------------------------


class Activity(msgspec.Struct, frozen=True, eq=False):
    """One control block or host operation.

    ``label``: unique name. ``after``: labels of the activities it waited for; unknown labels are
    ignored. ``size_bytes``: bytes of a copy. ``program``: the program of a launch, None for others,
    and ``labels`` of its executes. ``ended_ns``: host clock at its end, 0 if not recorded.
    ``collective``: the record of a collective, None for others. ``origin``: the source of a launch,
    if known.
    """

    label: str
    kind: TaskKind
    name: str
    stream: int = 0
    size_bytes: int = 0
    after: tuple[str, ...] = ()
    program: ProgramView | None = None
    labels: ExecuteLabels = UNLABELLED
    ended_ns: int = 0
    collective: CollectiveRecord | None = None
    origin: SourceLines | None = None


def activities_of(commands: Iterable[Command]) -> tuple[Activity, ...]:
    """Return the activities of a recording, without failed ones."""
    used = _ExchangedMemory()
    return tuple(_of_command(command, used) for command in commands if not command.error)


class _ExchangedMemory:
    """Device memory of the collectives so far, with the label of the last one that used it.

    Collectives run in a separate stream and the host waits for them, so the order of the streams
    does not show that later commands depend on them.
    """

    def __init__(self) -> None:
        self._starts: dict[int, list[int]] = {}
        self._users: dict[tuple[int, int], tuple[int, str]] = {}

    def labels(self, command: Command) -> tuple[str, ...]:
        """Return the labels of the collectives whose memory ``command`` uses."""
        places = (place.address for place in command.block.places)
        found = (self._user(each.region_id, each.offset) for each in places)
        return tuple(dict.fromkeys(label for label in found if label))

    def _user(self, region: int, offset: int) -> str:
        starts = self._starts.get(region, [])
        at = bisect_right(starts, offset) - 1
        if at < 0:
            return ""
        end, label = self._users[region, starts[at]]
        return label if offset < end else ""

    def record(self, command: Command) -> None:
        """Record the memory of ``command`` if it is a collective."""
        noted = recorded_block_of(command)
        if noted is None:
            return
        for place, size_bytes in zip(noted.block.places, noted.place_bytes, strict=True):
            region, offset = place.address.region_id, place.address.offset
            if (region, offset) not in self._users:
                insort(self._starts.setdefault(region, []), offset)
            self._users[region, offset] = offset + size_bytes, command.label


def _of_command(command: Command, used: _ExchangedMemory) -> Activity:
    launched = launch_of(command)
    after = dict.fromkeys((*command.after, *used.labels(command)))
    used.record(command)
    recorded = recorded_block_of(command)
    detail = None if recorded is None else recorded.detail
    record = detail if isinstance(detail, CollectiveRecord) else None
    return Activity(
        command.label,
        _kind(command),
        command.block.name,
        command.stream_id,
        command.block.size_bytes,
        tuple(after),
        None if launched is None else launched.linked.view,
        UNLABELLED if launched is None else launched.label,
        command.end_ns,
        record,
        command.block.origin,
    )


def _kind(command: Command) -> TaskKind:
    if command.engine is Engine.HOST:
        return TaskKind.HOST
    if recorded_block_of(command) is not None:
        return TaskKind.EXCHANGE
    if command.engine is Engine.COMPUTE:
        return TaskKind.COMPUTE
    return TaskKind.COPY_IN if command.block.kind == "dma to device" else TaskKind.COPY_OUT


def activities_of_result(result: RunResult) -> tuple[Activity, ...]:
    """Return the activities of a run that was not recorded: copies in, launches, copies out."""
    launches = (
        Activity(
            f"launch {k}",
            TaskKind.COMPUTE,
            launched.name,
            program=launched.linked.view,
            labels=launched.label,
        )
        for k, launched in enumerate(result.launches)
    )
    activities = [
        *_copies(result, (Role.INPUT, Role.INPUT_OUTPUT), TaskKind.COPY_IN),
        *launches,
        *_copies(result, (Role.OUTPUT, Role.INPUT_OUTPUT), TaskKind.COPY_OUT),
    ]
    before: list[tuple[str, ...]] = [(), *((each.label,) for each in activities)]
    return tuple(
        replace(each, after=after) for each, after in zip(activities, before, strict=False)
    )


def _copies(result: RunResult, roles: Sequence[Role], kind: TaskKind) -> Iterator[Activity]:
    for placed in result.arguments:
        spec = placed.spec
        if spec.role in roles:
            yield Activity(
                f"{kind} {spec.name}", kind, spec.name, size_bytes=spec.layout.device_bytes
            )


# --- the profile ----------------------------------------------------------------------------------


class HbmOccupancy(msgspec.Struct, frozen=True, eq=False):
    """``allocated_bytes``: int64 [moments, REGIONS], each row valid until the next moment.

    ``time_ns``: [moments], ascending from 0; equal moments show intermediate states.
    """

    time_ns: Float64Array
    allocated_bytes: Int64Array

    @property
    def total_bytes(self) -> Int64Array:
        """All regions together, [moments]."""
        total: Int64Array = self.allocated_bytes.sum(axis=1)
        return total

    @property
    def peak_bytes(self) -> int:
        """Most bytes allocated at once."""
        return int(self.total_bytes.max())

    @property
    def peak_ns(self) -> float:
        """The first moment with `peak_bytes`."""
        return float(self.time_ns[self.total_bytes.argmax()])

    @property
    def region_peak_bytes(self) -> tuple[int, ...]:
        """Most bytes allocated at once in each region, not all at the same time."""
        return tuple(self.allocated_bytes.max(axis=0).tolist())

    def thinned(self) -> HbmOccupancy:
        """Return at most two rows per moment: the one with most bytes and the last one."""
        _, moment = np.unique(self.time_ns, return_inverse=True)
        # The fullest row keeps the peak, the last one is valid until the next moment.
        order = np.lexsort((-self.total_bytes, moment))
        fullest = order[np.append(True, np.diff(moment) > 0)]
        last = np.flatnonzero(np.append(np.diff(moment) > 0, True))
        rows = np.union1d(fullest, last)
        return HbmOccupancy(self.time_ns[rows], self.allocated_bytes[rows])


def hbm_occupancy(
    history: AllocationHistory,
    activities: Sequence[Activity],
    owners: Sequence[int],
    timeline: Timeline,
) -> HbmOccupancy:
    """Return the allocated bytes while ``activities`` ran. ``owners``: activity of every task."""
    ends_ns = np.zeros(len(activities))
    for owner, span in zip(owners, timeline.spans, strict=True):
        ends_ns[owner] = max(ends_ns[owner], span.end_ns)
    clock_ns = np.array([activity.ended_ns for activity in activities], np.int64)
    # Allocations have times of the host's clock only, activities of both clocks. An allocation is
    # placed at the modelled end of the activities that had ended on the host before it.
    order = np.argsort(clock_ns, kind="stable")
    modelled_ns = np.maximum.accumulate(np.append(0.0, ends_ns[order]))
    ended = np.searchsorted(clock_ns[order], history.times_ns, side="right")
    time_ns = np.append(0.0, modelled_ns[ended])
    return HbmOccupancy(time_ns, history.allocated_bytes)


class FallbackTime(msgspec.Struct, frozen=True):
    """An operation that ran on the host's CPU in place of the card.

    ``seconds``: measured on the host, copies included. ``share``: of the time that was profiled.
    """

    name: str
    calls: int
    seconds: float
    share: float


class Profile(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The modelled execution of a recording or a run on a card.

    ``owners``: for each task of the timeline, the index of its activity. ``launches``: kernel of
    each launch and index of its task on the cores, in order of submission. ``hbm``: allocated
    device memory over time, None if not recorded. ``on_host``: operations of all cards that ran on
    the host instead.
    """

    machine: MachineSpec
    cost_model: Model
    overlap: Overlap
    kernels: tuple[KernelProfile, ...]
    launches: tuple[tuple[KernelProfile, int], ...]
    activities: tuple[Activity, ...]
    timeline: Timeline
    owners: tuple[int, ...]
    hbm: HbmOccupancy | None = None
    on_host: tuple[FallbackTime, ...] = ()

    @property
    def executes(self) -> Iterator[tuple[KernelProfile, ExecuteProfile]]:
        """Every execute statement with its kernel."""
        for kernel in self.kernels:
            for execute in kernel.executes:
                yield kernel, execute

    @property
    def collectives(self) -> tuple[CollectiveRecord, ...]:
        """The collectives of this card, in order."""
        found = (activity.collective for activity in self.activities)
        return tuple(record for record in found if record is not None)

    @property
    def counters(self) -> Counters:
        """Sums over all kernels."""
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
        """Time to launch control blocks."""
        return self.timeline.busy_ns(Resource.LAUNCH)

    @property
    def kernel_ns(self) -> float:
        """Time of launching and computing; shares are parts of it."""
        return self.compute_ns + self.launch_ns

    def copied_bytes(self, kind: TaskKind) -> int:
        """Bytes of all copies of a kind."""
        return sum(a.size_bytes for a in self.activities if a.kind is kind)

    def copied_ns(self, kind: TaskKind) -> float:
        """Time of all copies of a kind."""
        return sum(task.duration_ns for task in self.timeline.tasks if task.kind is kind)

    @property
    def copy_out_spread(self) -> float | None:
        """Error of the time of copies to the host, relative; None for the ideal model."""
        return self.machine.spread["copy"] if self.cost_model == "calibrated" else None

    @property
    def lx_peak_bytes(self) -> int:
        """Most bytes of a core's scratchpad in use at once in a launch."""
        return max((kernel.lx_peak_bytes for kernel in self.kernels), default=0)

    @cached_property
    def per_core(self) -> CoreBalance:
        """Work of each core in all launches."""
        return balance_of(execute for _, execute in self.executes)

    def table(self, every: bool = False) -> Table:
        """A `rich` table: a row per execute, per kind of execute or per kernel where they are many.

        ``every``: a row per execute however many there are.
        """
        from spyre.runtime.profile.table import make_table

        return make_table(self, every)

    def report(
        self, path: Path | str, title: str = "spyre profile", more: Sequence[Section] = ()
    ) -> None:
        """Write the report, one HTML page that needs nothing else. ProfileError SPY782.

        ``more``: sections that follow the summary.
        """
        from spyre.runtime.profile.files import write_whole
        from spyre.runtime.profile.report import report_page

        write_whole(path, report_page(self, title, more).encode())

    def roofline(self, path: Path | str) -> None:
        """Write the roofline as an SVG file; ProfileError SPY782."""
        from spyre.runtime.profile.roofline import write_roofline

        write_roofline(path, self)

    def modelled_trace(self, path: Path | str) -> None:
        """Write modelled time as a Chrome trace, without the host's. LaunchError SPY886."""
        from spyre.runtime.profile.trace import modelled_events

        write_trace(path, {}, more=modelled_events(self))

    def to_json(self) -> dict[str, object]:
        """Return the profile as the JSON object in the output of ``spyre-run --profile --json``."""
        from spyre.runtime.profile.files import profile_object

        return profile_object(self)

    def __str__(self) -> str:
        from spyre.runtime.profile.table import profile_text

        return profile_text(self)


MachineLike = MachineSpec | str | Path | None


def profile(
    result: RunResult,
    machine: MachineLike = None,
    model: Model = "calibrated",
    overlap: Overlap | str = Overlap.OVERLAPPED,
) -> Profile:
    """Return the modelled profile of a run: ``spyre.profile(spyre.run("kernel_dir"))``.

    ``machine``: a file whose constants replace shipped ones (MachineError SPY760 to SPY762).
    ``overlap``: which tasks may overlap in time, see :mod:`spyre.hw.cost.timeline`.
    """
    memory = AllocationHistory(result.hbm_bytes) if result.hbm_bytes else None
    return make_profile(activities_of_result(result), machine, model, overlap, memory)


def profile_of_recording(
    commands: CommandStream,
    machine: MachineLike = None,
    model: Model = "calibrated",
    overlap: Overlap | str = Overlap.OVERLAPPED,
) -> Profile:
    """Return the profile of a recording of a card; parameters as of `profile`."""
    return make_profile(activities_of(commands), machine, model, overlap, commands.memory)


def make_profile(
    activities: Sequence[Activity],
    machine: MachineLike = None,
    model: Model = "calibrated",
    overlap: Overlap | str = Overlap.OVERLAPPED,
    memory: AllocationHistory | None = None,
) -> Profile:
    """The profile of ``activities``, parameters as of `profile`; ``memory``: bytes over time."""
    chosen = machine_of(machine)
    kernels = _kernels(activities, chosen, model)
    tasks: list[Task] = []
    owners: list[int] = []
    launches: list[tuple[KernelProfile, int]] = []
    ends: dict[str, int] = {}
    for number, activity in enumerate(activities):
        # Commands that failed or ran before the recording have no task; their labels are skipped.
        after = tuple(sorted({ends[label] for label in activity.after if label in ends}))
        kernel = kernels.get(_kernel_key(activity))
        time_ns = 0.0 if kernel is None else kernel.one_ns
        for task in _tasks(activity, after, time_ns, chosen, model, len(tasks)):
            tasks.append(task)
            owners.append(number)
        ends[activity.label] = len(tasks) - 1
        if kernel is not None:
            launches.append((kernel, len(tasks) - 1))
    timeline = simulate(tasks, Overlap(overlap))
    return Profile(
        chosen,
        model,
        Overlap(overlap),
        tuple(kernels.values()),
        tuple(launches),
        tuple(activities),
        timeline,
        tuple(owners),
        None if memory is None else hbm_occupancy(memory, activities, owners, timeline),
    )


def _kernels(
    activities: Sequence[Activity], machine: MachineSpec, model: Model
) -> dict[object, KernelProfile]:
    """Return the kernels in order of the first launch, by `_kernel_key`."""
    first: dict[object, Activity] = {}
    origins: dict[object, Counter[SourceLines | None]] = {}
    for each in activities:
        if each.program is not None:
            key = _kernel_key(each)
            first.setdefault(key, each)
            origins.setdefault(key, Counter())[each.origin] += 1
    return {
        key: profile_kernel(each.name, each.program, each.labels, origins[key], machine, model)
        for key, each in first.items()
        if each.program is not None
    }


def _kernel_key(launch: Activity) -> object:
    """Launches of one program that differ only in addresses are one kernel."""
    return launch.name, id(launch.program), launch.labels


def machine_of(machine: MachineLike) -> MachineSpec:
    """Return ``machine``, the machine of a file, or for None the shipped one."""
    if machine is None:
        return default_machine()
    return machine if isinstance(machine, MachineSpec) else load_machine(machine)


def _tasks(
    activity: Activity,
    after: tuple[int, ...],
    time_ns: float,
    machine: MachineSpec,
    model: Model,
    number: int,
) -> Iterator[Task]:
    """Yield the tasks of an activity. ``number``: index of its first task.

    Host operations take no time, because the card's time is modelled only.
    """
    hw, stream = machine.hardware, activity.stream
    if activity.kind is TaskKind.HOST:
        yield Task(TaskKind.HOST, 0.0, stream, after)
    elif activity.kind is TaskKind.COMPUTE:
        yield Task(TaskKind.LAUNCH, hw.launch_us * 1000.0, stream, after)
        yield Task(TaskKind.COMPUTE, time_ns, stream, (*after, number))
    elif activity.collective is not None:
        yield from _exchanges(activity.collective, stream, after, machine, number)
    elif activity.kind is TaskKind.COPY_OUT and model == "calibrated":
        yield Task(activity.kind, copy_out_ns(activity.size_bytes, machine), stream, after)
    else:
        yield Task(activity.kind, activity.size_bytes / hw.pcie_gbps, stream, after)


def _exchanges(
    record: CollectiveRecord, stream: int, after: tuple[int, ...], machine: MachineSpec, number: int
) -> Iterator[Task]:
    """Yield the tasks of a collective: exchanges on the DMA engine, each followed by adds."""
    phases = modelled_time(record, machine).phases or ((0.0, 0.0),)
    for exchange_ns, add_ns in phases:
        yield Task(TaskKind.EXCHANGE, exchange_ns, stream, after)
        after, number = (number,), number + 1
        if add_ns:
            yield Task(TaskKind.ADD, add_ns, stream, after)
            after, number = (number,), number + 1
