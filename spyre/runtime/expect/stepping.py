"""A launch that runs execute by execute under the eyes of watchers, and a watcher that keeps
tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from spyre.errors import LaunchError
from spyre.hw.counters import ExecuteLabels
from spyre.hw.device import Device
from spyre.hw.linking import LinkedProgram
from spyre.runtime.compare import ExecuteView, execute_views
from spyre.runtime.expect.tiles import OperandTile, read_tile
from spyre.runtime.kernel import ExecutedLaunch, Runner

Parts = Sequence[ExecuteView]
"""One execution; several views where cores have shares of different sizes."""


class Watcher(Protocol):
    """Sees the device before and after every execution. ``number``: of the execute, in reports."""

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """The execution is next."""

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """The execution has run."""


def watched(watchers: Sequence[Watcher]) -> Callable[[ExecuteLabels], Runner]:
    """What runs launches under the eyes of ``watchers``."""

    def runner(label: ExecuteLabels) -> Runner:
        def run(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
            begin = time.perf_counter_ns()
            device.executor.warm(linked)
            for _, views in groupby(execute_views(linked), key=lambda v: (v.static, v.instance)):
                parts = list(views)
                number = label.first_execute + parts[0].static
                for watcher in watchers:
                    watcher.before(device, parts, number)
                for part in parts:
                    device.executor.run_part(part.linked, part.first, part.last)
                for watcher in watchers:
                    watcher.after(device, parts, number)
            return ExecutedLaunch(linked, begin, label=label)

        return run

    return runner


@dataclass
class Breakpoint:
    """Keeps operands of an execute as they are right after it ran.

    ``number``: of the execute, as in reports; ``loops``: indices of the loops around it, without
    them its first execution. ``names``: of operands, as in the SDSC; without them all.
    """

    number: int
    loops: tuple[int, ...] = ()
    names: Sequence[str] = ()
    tensors: dict[str, OperandTile | None] = field(default_factory=dict)
    is_reached: bool = False

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Nothing yet."""

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Keep the operands. LaunchError SPY624 for a name that the execute does not have."""
        step = parts[0]
        if (
            self.is_reached
            or number != self.number
            or step.loop_indices[: len(self.loops)] != self.loops
        ):
            return
        self.is_reached = True
        operands = {tensor.name: k for k, tensor in enumerate(step.op.tensors)}
        for name in self.names or operands:
            if name not in operands:
                raise LaunchError(
                    "SPY624",
                    f"execute {number} ({step.op.name}) has no tensor {name}",
                    step.location(0, None, int(step.starts[0].min())),
                    expected=f"one of {', '.join(operands)}",
                    found=name,
                )
            self.tensors[name] = read_tile(device, step, operands[name])

    def require_reached(self) -> None:
        """LaunchError SPY624 if the execute did not run."""
        if not self.is_reached:
            loops = f" at loop indices {self.loops}" if self.loops else ""
            raise LaunchError(
                "SPY624",
                f"the run does not come to execute {self.number}{loops}",
                expected="the number of an execute, as the table of a run counts them",
                found=str(self.number),
            )
