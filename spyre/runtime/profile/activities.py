"""The input of a profile: copies, host operations and launches in order of submission.

They are those of a recording of a card, or of a run that was not recorded.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from spyre.hw.cost import TaskKind
from spyre.hw.counters import ExecuteLabels, ProgramView
from spyre.runtime.comms import CollectiveRecord
from spyre.runtime.flex import Command, Engine, LaunchOrigin, launch_of, recorded_block_of
from spyre.runtime.kernel import UNLABELLED
from spyre.runtime.program import Role
from spyre.runtime.run import RunResult


@dataclass(frozen=True, eq=False)
class Activity:
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
    origin: LaunchOrigin | None = None


def activities_of(commands: Iterable[Command], card: int = 0) -> tuple[Activity, ...]:
    """Return the activities of a recording, without failed ones. ``card``: prefix of the labels."""
    used = _ExchangedMemory()
    return tuple(_of_command(command, card, used) for command in commands if not command.error)


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


def _of_command(command: Command, card: int, used: _ExchangedMemory) -> Activity:
    launched = launch_of(command)
    after = dict.fromkeys((*command.after, *used.labels(command)))
    used.record(command)
    recorded = recorded_block_of(command)
    detail = None if recorded is None else recorded.detail
    record = detail if isinstance(detail, CollectiveRecord) else None
    return Activity(
        f"{card}: {command.label}",
        _kind(command),
        command.block.name,
        command.stream_id,
        command.block.size_bytes,
        tuple(f"{card}: {label}" for label in after),
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
