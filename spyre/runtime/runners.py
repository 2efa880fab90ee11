"""Ways to run a launch on the compute engine: timed, or beside the reference implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyre.hw.executor import Progress
from spyre.hw.launch_label import LaunchLabel
from spyre.runtime.flex.runner import BoundKernel, Runner
from spyre.runtime.flex.timed_launch import UNLABELLED, TimedLaunch, run_timed
from spyre.runtime.kernel import Kernel
from spyre.runtime.verification import Verification

if TYPE_CHECKING:
    from spyre.runtime.twin_check import TwinCheck


def runner_of(
    timed: bool,
    progress: Progress | None,
    check: TwinCheck | None,
    label: LaunchLabel = UNLABELLED,
) -> Runner | None:
    """How to run a launch: verified by ``check`` if there is one, else timed, else plainly.

    ``label``: how a timed launch numbers its executes.
    """
    if check is not None:
        return _verified(check)
    return _timed(progress, label) if timed else None


def _verified(check: TwinCheck) -> Runner:
    def run(kernel: Kernel, bound: BoundKernel) -> Verification:
        return check.run(kernel.link_at(bound.shape, bound.addresses, bound.names))

    return run


def _timed(progress: Progress | None, label: LaunchLabel) -> Runner:
    def run(kernel: Kernel, bound: BoundKernel) -> TimedLaunch:
        return run_timed(kernel, bound, progress, label)

    return run
