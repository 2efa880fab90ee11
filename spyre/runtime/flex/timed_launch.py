"""Running a launch dispatch by dispatch, with the host time of each."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spyre.hw.executor import Progress
from spyre.hw.launch_label import LaunchLabel
from spyre.hw.linked_program import LinkedProgram
from spyre.runtime.flex.runner import BoundKernel
from spyre.runtime.kernel import Kernel

UNLABELLED = LaunchLabel()
"""Executes numbered from 0, SDSC files without a directory."""


@dataclass(frozen=True)
class TimedLaunch:
    """A launch that was timed: ``begin_ns`` on the host's clock, ``elapsed_ns`` per dispatch.

    ``label``: how its executes are numbered and its SDSC files named.
    """

    linked: LinkedProgram
    begin_ns: int
    elapsed_ns: npt.NDArray[np.int64]
    label: LaunchLabel = UNLABELLED


def run_timed(
    kernel: Kernel,
    bound: BoundKernel,
    progress: Progress | None = None,
    label: LaunchLabel = UNLABELLED,
) -> TimedLaunch:
    """Run a launch dispatch by dispatch; its kernels are compiled or loaded before."""
    linked = kernel.link_at(bound.shape, bound.addresses, bound.names)
    executor = kernel.device.executor
    executor.warm(linked)
    begin = time.perf_counter_ns()
    return TimedLaunch(linked, begin, executor.run_timed(linked, progress), label)
