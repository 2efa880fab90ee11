"""What the cores did in a compute control block that was timed, for a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from spyre.hw.linked_program import LinkedProgram
from spyre.mlir.operation import Operation
from spyre.runtime.flex.command_stream import Command
from spyre.runtime.flex.timed_launch import TimedLaunch


@dataclass(frozen=True, slots=True)
class CoreSpan:
    """One dispatch: the same span, on the host's clock, for every core that takes part."""

    name: str
    cores: tuple[int, ...]
    span_ns: tuple[int, int]
    details: Mapping[str, object]


def timed_launch_of(command: Command) -> TimedLaunch | None:
    """The timed launch of a command, None for others.

    The detail of a tiled launch is that of the last tile which ran the kernel; a step that only
    copies has none.
    """
    detail = command.detail
    if isinstance(detail, TimedLaunch) and detail.begin_ns >= command.begin_ns:
        return detail
    return None


def core_spans(command: Command) -> Iterator[CoreSpan]:
    """The dispatches of a command, one behind another: the gaps between them are left out."""
    timed = timed_launch_of(command)
    if timed is None:
        return
    linked, label = timed.linked, timed.label
    operations = _operations(linked)
    ends = (np.cumsum(timed.elapsed_ns) + timed.begin_ns).tolist()
    rows = zip(linked.dispatch[:, 1:3].tolist(), timed.elapsed_ns.tolist(), ends, strict=True)
    for op, ((static, instance), elapsed, end) in zip(operations, rows, strict=True):
        details = {
            "block": command.label,
            "iteration": command.iteration,
            "execute": label.first_execute + static,
            "instance": instance,
            "loop_indices": linked.schedule.loop_indices[static][instance].tolist(),
            "sdsc": label.sdsc(linked.program.executes[static].sdsc_filename),
        }
        yield CoreSpan(op.name, op.cores, (end - elapsed, end), details)


def used_cores(command: Command) -> frozenset[int]:
    """Cores that took part in a command."""
    timed = timed_launch_of(command)
    if timed is None:
        return frozenset()
    runs = timed.linked.places.origin.runs
    return frozenset(core for group in runs for run in group for core in run.plan.op.cores)


def _operations(linked: LinkedProgram) -> list[Operation]:
    """What each dispatch runs: that of its part, see :mod:`spyre.hw.parts`."""
    runs = [run for group in linked.places.origin.runs for run in group]
    which = np.searchsorted(linked.run_rows, linked.dispatch[:, 0], side="right") - 1
    return [runs[place].plan.op for place in which.tolist()]
