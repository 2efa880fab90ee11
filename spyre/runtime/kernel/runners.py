"""Ways to run a linked launch on the compute engine, other than plainly."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spyre.hw.counters.launches import ExecuteLabels
from spyre.hw.device.device import Device
from spyre.hw.device.executor import Progress
from spyre.hw.linking.linked_program import LinkedProgram

if TYPE_CHECKING:
    from spyre.runtime.compare.verification import Verification

UNLABELLED = ExecuteLabels()
"""Executes numbered from 0, SDSC files without a directory."""


@dataclass(frozen=True, eq=False)
class ExecutedLaunch:
    """A launch that has run: ``begin_ns`` on the host's clock, ``elapsed_ns`` per dispatch.

    ``elapsed_ns``: None where it ran in one go. ``name``: of the kernel, where it is known.
    ``label``: how its executes are numbered and its
    SDSC files named. ``verification``: how it agreed with the reference, where that was asked for.
    """

    linked: LinkedProgram
    begin_ns: int
    elapsed_ns: npt.NDArray[np.int64] | None = None
    label: ExecuteLabels = UNLABELLED
    name: str = ""
    verification: Verification | None = None


Runner = Callable[[Device, LinkedProgram], ExecutedLaunch]
"""Runs a launch on the compute engine; what it returns is kept in the outcome."""


def run_recorded(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
    """Run a launch in the compiled driver, as without a runner, and keep what was linked."""
    begin = time.perf_counter_ns()
    device.executor.run(linked)
    return ExecutedLaunch(linked, begin)


def timed_runner(progress: Progress | None = None, label: ExecuteLabels = UNLABELLED) -> Runner:
    """Run dispatch by dispatch; kernels are compiled or loaded before the first."""

    def run_timed(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
        device.executor.warm(linked)
        begin = time.perf_counter_ns()
        return ExecutedLaunch(linked, begin, device.executor.run_timed(linked, progress), label)

    return run_timed
