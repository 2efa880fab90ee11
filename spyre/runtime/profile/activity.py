"""What a profile is made from: copies, host operations and launches in order of submission."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from spyre.hw.cost.timeline.task import Kind
from spyre.hw.launch_label import LaunchLabel
from spyre.hw.linked_program import LinkedProgram
from spyre.runtime.flex.command_stream import Command
from spyre.runtime.flex.engine import Engine
from spyre.runtime.flex.noted_launch import launch_of
from spyre.runtime.flex.timed_launch import UNLABELLED
from spyre.runtime.launch_spec import Role
from spyre.runtime.run_result import RunResult


@dataclass(frozen=True, eq=False)
class Activity:
    """One control block or host operation.

    ``label``: its name among the others; ``after``: labels of what had to be complete before; those
    that nothing has mean nothing. ``size_bytes``: what a copy moves. ``linked``:
    what a launch ran, None where a compute block ran no program. ``ended_ns``: host clock when it
    had ended, 0 where it was not recorded.
    """

    label: str
    kind: Kind
    name: str
    stream: int = 0
    size_bytes: int = 0
    after: tuple[str, ...] = ()
    linked: LinkedProgram | None = None
    launch_label: LaunchLabel = UNLABELLED
    ended_ns: int = 0


def activities_of(commands: Iterable[Command], card: int = 0) -> tuple[Activity, ...]:
    """Those of a recording, without what failed. ``card``: makes labels and streams differ."""
    return tuple(_of_command(command, card) for command in commands if not command.error)


def _of_command(command: Command, card: int) -> Activity:
    launched = launch_of(command)
    return Activity(
        f"{card}: {command.label}",
        _kind(command),
        command.block.name,
        command.stream_id,
        command.block.size_bytes,
        tuple(f"{card}: {label}" for label in command.after),
        None if launched is None else launched.linked,
        UNLABELLED if launched is None else launched.label,
        command.end_ns,
    )


def _kind(command: Command) -> Kind:
    if command.engine is Engine.HOST:
        return Kind.HOST
    if command.engine is Engine.COMPUTE:
        return Kind.COMPUTE
    return Kind.COPY_IN if command.block.kind == "dma to device" else Kind.COPY_OUT


def activities_of_result(result: RunResult) -> tuple[Activity, ...]:
    """Those of a run without a recording: arguments in, launches, arguments out, in one stream."""
    found = list(_copies(result, (Role.INPUT, Role.INPUT_OUTPUT), Kind.COPY_IN))
    for k, launched in enumerate(result.launches):
        found.append(
            Activity(
                f"launch {k}",
                Kind.COMPUTE,
                launched.name,
                linked=launched.linked,
                launch_label=launched.label,
            )
        )
    found += _copies(result, (Role.OUTPUT, Role.INPUT_OUTPUT), Kind.COPY_OUT)
    return tuple(_chained(found))


def _copies(result: RunResult, roles: Sequence[Role], kind: Kind) -> Iterator[Activity]:
    for placed in result.arguments:
        spec = placed.spec
        if spec.role in roles:
            yield Activity(
                f"{kind} {spec.name}", kind, spec.name, size_bytes=spec.layout.device_bytes
            )


def _chained(found: Sequence[Activity]) -> Iterator[Activity]:
    for k, activity in enumerate(found):
        yield replace(activity, after=(found[k - 1].label,)) if k else activity
