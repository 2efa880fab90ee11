"""Functions that worker processes of the tests call instead of measuring."""

from __future__ import annotations

import os

from spyre.sweep.definition import SweepTask
from spyre.sweep.point import Record, complete


def quick(task: SweepTask) -> list[Record]:
    """A time per machine, from its bandwidth."""
    return complete(
        task, [{"modelled_us": 1000.0 / dict(m).get("hardware.hbm_peak_gbps", 1), "hbm_bytes": 10}
               for m in task.machines]
    )  # fmt: skip


def deadly(task: SweepTask) -> list[Record]:
    """Kills its process on the target named softmax."""
    if "softmax" in task.target.text:
        os._exit(3)
    return quick(task)


def raising(task: SweepTask) -> list[Record]:
    """Raise an error that a measurement does not catch."""
    raise ValueError(task.target.text)
