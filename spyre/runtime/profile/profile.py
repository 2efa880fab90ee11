"""`Profile`, and its construction: each kernel is modelled once and its launches are put on a
timeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from spyre.hw.cost import (
    MachineSpec,
    Model,
    Overlap,
    Task,
    TaskKind,
    default_machine,
    load_machine,
    simulate,
)
from spyre.hw.counters import ExecuteLabels, ProgramView
from spyre.hw.memory import AllocationHistory
from spyre.runtime.comms import CollectiveRecord
from spyre.runtime.first_divergence import FirstDivergence
from spyre.runtime.flex import CommandStream, SourceLines
from spyre.runtime.profile.collectives import modelled_time
from spyre.runtime.profile.data import (
    Activity,
    ProfileData,
    TimelineLaunch,
    activities_of,
    activities_of_result,
    hbm_occupancy,
)
from spyre.runtime.profile.files import profile_object
from spyre.runtime.profile.kernels import KernelModel, KernelProfile, model_kernel
from spyre.runtime.profile.report import write_report
from spyre.runtime.profile.roofline import write_roofline
from spyre.runtime.profile.table import make_table, profile_text
from spyre.runtime.profile.trace import modelled_events
from spyre.runtime.run import RunResult
from spyre.runtime.trace import write_trace

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, eq=False)
class Profile(ProfileData):
    """The modelled execution of a recording or a run on a card."""

    def table(self, every: bool = False) -> Table:
        """A `rich` table: a row per execute, per kind of execute or per kernel where they are many.

        ``every``: a row per execute however many there are.
        """
        return make_table(self, every)

    def report(
        self, path: Path | str, title: str = "spyre profile", watched: FirstDivergence | None = None
    ) -> None:
        """Write the report, one HTML page that needs nothing else. ProfileError SPY782.

        ``watched``: the observer of a run with wrong results, for a map of the mismatch.
        """
        write_report(path, self, title, watched)

    def roofline(self, path: Path | str) -> None:
        """Write the roofline as an SVG file; ProfileError SPY782."""
        write_roofline(path, self)

    def modelled_trace(self, path: Path | str) -> None:
        """Write modelled time as a Chrome trace, without the host's. LaunchError SPY886."""
        write_trace(path, {}, more=modelled_events(self))

    def to_json(self) -> dict[str, object]:
        """Return the profile as the JSON object in the output of ``spyre-run --profile --json``."""
        return profile_object(self)

    def __str__(self) -> str:
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
    """Return the profile of ``activities``; parameters as of `profile`.

    ``memory``: history of the allocated bytes.
    """
    chosen = machine_of(machine)
    kernels = _KernelModels(chosen, model)
    tasks: list[Task] = []
    owners: list[int] = []
    launches: list[TimelineLaunch] = []
    ends: dict[str, int] = {}
    for number, activity in enumerate(activities):
        # Commands that failed or ran before the recording have no task; their labels are skipped.
        after = tuple(sorted({ends[label] for label in activity.after if label in ends}))
        kernel = None
        if activity.program is not None:
            kernel = kernels.number(activity, activity.program)
        time_ns = 0.0 if kernel is None else kernels.models[kernel].total_ns
        for task in _tasks(activity, after, time_ns, chosen, len(tasks)):
            tasks.append(task)
            owners.append(number)
        ends[activity.label] = len(tasks) - 1
        if kernel is not None:
            launches.append(TimelineLaunch(kernel, len(tasks) - 1))
    timeline = simulate(tasks, Overlap(overlap))
    return Profile(
        chosen,
        model,
        Overlap(overlap),
        kernels.profiles(),
        tuple(launches),
        tuple(activities),
        timeline,
        tuple(owners),
        None if memory is None else hbm_occupancy(memory, activities, owners, timeline),
    )


def machine_of(machine: MachineLike) -> MachineSpec:
    """Return ``machine``, the machine of a file, or for None the shipped one."""
    if machine is None:
        return default_machine()
    return machine if isinstance(machine, MachineSpec) else load_machine(machine)


def _tasks(
    activity: Activity, after: tuple[int, ...], time_ns: float, machine: MachineSpec, number: int
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


@dataclass
class _KernelModels:
    """The kernels; launches of one program that differ only in addresses are one kernel."""

    machine: MachineSpec
    model: Model
    models: list[KernelModel] = field(default_factory=list)
    _numbers: dict[tuple[str, int, ExecuteLabels], int] = field(default_factory=dict)
    _origins: list[Counter[SourceLines | None]] = field(default_factory=list)

    def number(self, launch: Activity, program: ProgramView) -> int:
        """Count a launch and return the index of its kernel, which is modelled at the first one."""
        # The models keep their programs alive, so an id cannot be reused.
        key = (launch.name, id(program), launch.labels)
        number = self._numbers.setdefault(key, len(self.models))
        if number == len(self.models):
            self.models.append(model_kernel(program, self.machine, self.model))
            self._origins.append(Counter())
        self._origins[number][launch.origin] += 1
        return number

    def profiles(self) -> tuple[KernelProfile, ...]:
        """Return the kernels with all their launches, in order of the first launch."""
        launch_ns = self.machine.hardware.launch_us * 1000.0
        rows = zip(self._numbers, self.models, self._origins, strict=True)
        return tuple(
            KernelProfile(name, model, labels, origins.total(), launch_ns, tuple(origins.items()))
            for (name, _, labels), model, origins in rows
        )
