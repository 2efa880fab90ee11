"""Running a launch plainly, and keeping what was linked for it: what a profile is made from."""

from __future__ import annotations

import time
from dataclasses import dataclass

from spyre.hw.launch_label import LaunchLabel
from spyre.hw.linked_program import LinkedProgram
from spyre.runtime.flex.command_stream import Command
from spyre.runtime.flex.runner import BoundKernel
from spyre.runtime.flex.timed_launch import UNLABELLED, TimedLaunch
from spyre.runtime.kernel import Kernel


@dataclass(frozen=True)
class NotedLaunch:
    """A launch that ran in one go. Fields as of `TimedLaunch`."""

    linked: LinkedProgram
    begin_ns: int
    label: LaunchLabel = UNLABELLED


def run_noted(kernel: Kernel, bound: BoundKernel) -> NotedLaunch:
    """Run a launch in the compiled driver, as without a runner."""
    linked = kernel.link_at(bound.shape, bound.addresses, bound.names)
    begin = time.perf_counter_ns()
    kernel.device.executor.run(linked)
    return NotedLaunch(linked, begin)


def launch_of(command: Command) -> NotedLaunch | TimedLaunch | None:
    """The launch of a compute command; None for others, and where only copies were made.

    The detail of a tiled launch is that of the last tile which ran the kernel.
    """
    detail = command.detail
    if isinstance(detail, (NotedLaunch, TimedLaunch)) and detail.begin_ns >= command.begin_ns:
        return detail
    return None
