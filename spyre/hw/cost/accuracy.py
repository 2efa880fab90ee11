"""How far the models are from measured kernels, per group: what the documentation shows and a
test computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw.cost.kernel_time import Model, kernel_ns
from spyre.hw.cost.machine import MachineSpec
from spyre.hw.cost.measured import MeasuredKernel, measured_kernels
from spyre.hw.cost.measured_counts import counts_of


@dataclass(frozen=True, slots=True)
class Prediction:
    """A measured kernel and what a model says; ``error``: predicted over measured, less 1."""

    row: MeasuredKernel
    us: float

    @property
    def error(self) -> float:
        """Relative error, positive where the model is too slow."""
        return self.us / self.row.us - 1.0


@dataclass(frozen=True, slots=True)
class GroupError:
    """Relative errors of a group: root mean squares of both halves, and of all rows the mean and
    the one farthest from 0. None where a half has no rows.
    """

    group: str
    fitted_rows: int
    fitted_rms: float | None
    reported_rows: int
    reported_rms: float | None
    mean: float
    worst: float


def predictions(
    machine: MachineSpec,
    model: Model = "calibrated",
    rows: Sequence[MeasuredKernel] | None = None,
) -> tuple[Prediction, ...]:
    """What ``model`` says of ``rows``, by default all measured kernels, in their order."""
    return tuple(
        Prediction(row, kernel_ns(counts_of(row, machine), machine, model).total_ns / 1e3)
        for row in (measured_kernels() if rows is None else rows)
    )


def group_errors(found: Sequence[Prediction]) -> tuple[GroupError, ...]:
    """A line per group of rows that have a mechanism, then groups with the others included."""
    groups = tuple(dict.fromkeys(p.row.group for p in found))
    lines = [
        _group_error(group, [p for p in found if p.row.group == group and p.row.explained])
        for group in groups
    ]
    for group in groups:
        members = [p for p in found if p.row.group == group]
        if not all(p.row.explained for p in members):
            lines.append(_group_error(f"{group}, all rows", members))
    return tuple(lines)


def rms(errors: Sequence[float]) -> float | None:
    """Root mean square; None of nothing."""
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else None


def _group_error(group: str, found: Sequence[Prediction]) -> GroupError:
    errors = [p.error for p in found]
    fitted = [p.error for p in found if p.row.fitted]
    reported = [p.error for p in found if not p.row.fitted]
    return GroupError(
        group,
        len(fitted),
        rms(fitted),
        len(reported),
        rms(reported),
        float(np.mean(errors)),
        max(errors, key=abs),
    )
