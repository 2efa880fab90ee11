"""Running a linked program one execute at a time, with observers called before and after each.

The reference implementation (``--verify``), the comparison of number modes, breakpoints and the
search for the first wrong execute are such observers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

from spyre.hw.counters import ExecuteLabels
from spyre.hw.device import Device, Progress
from spyre.hw.linking import LinkedProgram
from spyre.runtime.compare.executes import ExecuteView, execute_views
from spyre.runtime.kernel import UNLABELLED, ExecutedLaunch, Runner

Parts = Sequence[ExecuteView]
"""One execution; several views where cores have slices of different sizes."""


class ExecuteObserver(Protocol):
    """Called around every execution. ``number``: of the execute statement, as reports count."""

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Look at memory before the execution."""

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Look at memory after the execution; an exception ends the run."""


def execution_parts(linked: LinkedProgram) -> list[Parts]:
    """The views of each execution of a program, in program order."""
    groups = groupby(execute_views(linked), key=lambda view: (view.static, view.instance))
    return [list(views) for _, views in groups]


def stepping_runner(
    observers: Sequence[ExecuteObserver],
    label: ExecuteLabels = UNLABELLED,
    progress: Progress | None = None,
) -> Runner:
    """A runner that calls ``observers`` around every execution. It measures no execute times."""

    def run(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
        begin = time.perf_counter_ns()
        device.executor.warm(linked)  # observed executes run in compiled kernels
        for parts in execution_parts(linked):
            number = label.first_execute + parts[0].static
            for observer in observers:
                observer.before(device, parts, number)
            run_parts(device, parts)
            for observer in observers:
                observer.after(device, parts, number)
            if progress is not None:
                progress(parts[-1].last, len(linked.dispatch))
        return ExecutedLaunch(linked, begin, label=label)

    return run


def run_parts(device: Device, parts: Parts) -> None:
    """Run one execution."""
    for part in parts:
        device.executor.run_part(part.linked, part.first, part.last)
