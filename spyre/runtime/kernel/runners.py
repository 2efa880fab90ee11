"""Ways to run one pass of a kernel on the compute engine: plainly, timed, or recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.hw.counters.launches import ExecuteLabels
from spyre.hw.device.executor import Progress
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.kernel.launch import LaunchShape


@dataclass(slots=True)
class BoundKernel:
    """One pass of a kernel.

    ``shape``: what does not change between launches; ``addresses``: where its memory begins, bytes;
    ``names``: of that memory.
    """

    shape: LaunchShape
    addresses: tuple[int, ...]
    names: tuple[str, ...]


Runner = Callable[[Kernel, BoundKernel], Any]
"""Runs one pass of a kernel on the compute engine; its result is kept in the outcome."""

UNLABELLED = ExecuteLabels()
"""Executes numbered from 0, SDSC files without a directory."""


@dataclass(frozen=True)
class TimedLaunch:
    """A launch that was timed: ``begin_ns`` on the host's clock, ``elapsed_ns`` per dispatch.

    ``label``: how its executes are numbered and its SDSC files named.
    """

    linked: LinkedProgram
    begin_ns: int
    elapsed_ns: npt.NDArray[np.int64]
    label: ExecuteLabels = UNLABELLED


def run_timed(
    kernel: Kernel,
    bound: BoundKernel,
    progress: Progress | None = None,
    label: ExecuteLabels = UNLABELLED,
) -> TimedLaunch:
    """Run a launch dispatch by dispatch; its kernels are compiled or loaded before."""
    linked = kernel.link_at(bound.shape, bound.addresses, bound.names)
    executor = kernel.device.executor
    executor.warm(linked)
    begin = time.perf_counter_ns()
    return TimedLaunch(linked, begin, executor.run_timed(linked, progress), label)


@dataclass(frozen=True)
class RecordedLaunch:
    """A launch that ran in one go. Fields as of `TimedLaunch`."""

    linked: LinkedProgram
    begin_ns: int
    label: ExecuteLabels = UNLABELLED


def run_recorded(kernel: Kernel, bound: BoundKernel) -> RecordedLaunch:
    """Run a launch in the compiled driver, as without a runner."""
    linked = kernel.link_at(bound.shape, bound.addresses, bound.names)
    begin = time.perf_counter_ns()
    kernel.device.executor.run(linked)
    return RecordedLaunch(linked, begin)
