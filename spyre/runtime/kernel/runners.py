"""Runners, which execute a linked launch on the compute engine, and the record they return."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spyre.hw.counters import ExecuteLabels
from spyre.hw.device import Device, Progress
from spyre.hw.linking import LinkedProgram

UNLABELLED = ExecuteLabels()
"""Executes numbered from 0, SDSC files without a directory."""


@dataclass(frozen=True, eq=False)
class ExecutedLaunch:
    """A launch that has run.

    ``begin_ns``: host clock. ``elapsed_ns``: per dispatch, None if the driver ran all at once.
    ``label``: numbering of its executes and naming of its SDSC files. ``name``: of the kernel, ""
    if unknown. ``interpreted``: number of dispatches that ran while their kernels were being
    compiled.
    """

    linked: LinkedProgram
    begin_ns: int
    elapsed_ns: npt.NDArray[np.int64] | None = None
    label: ExecuteLabels = UNLABELLED
    name: str = ""
    interpreted: int = 0


Runner = Callable[[Device, LinkedProgram], ExecutedLaunch]
"""Runs a launch on the compute engine; its return value becomes the launch's result."""


def run_recorded(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
    """Run a launch in the compiled driver, as without a runner, and return its record."""
    begin, before = time.perf_counter_ns(), device.executor.interpreted
    device.executor.run(linked)
    return ExecutedLaunch(linked, begin, interpreted=device.executor.interpreted - before)


def timed_runner(progress: Progress | None = None, label: ExecuteLabels = UNLABELLED) -> Runner:
    """A runner that runs and times dispatch by dispatch.

    Kernels are compiled or loaded before the first dispatch, unless the program is interpreted.
    """

    def run_timed(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
        executor = device.executor
        executor.prepare(linked)
        begin, before = time.perf_counter_ns(), executor.interpreted
        elapsed = executor.run_timed(linked, progress)
        return ExecutedLaunch(
            linked, begin, elapsed, label, interpreted=executor.interpreted - before
        )

    return run_timed
