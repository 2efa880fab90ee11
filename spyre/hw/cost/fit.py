"""Fitting the calibrated model's free constants on the fitted half of the measured kernels.

`python -m spyre.hw.cost.fit` prints the constants; ``spyre.toml`` ships these values, and a test
repeats the fit. Levenberg's method on relative errors, over logarithms of the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
import numpy.typing as npt

from spyre.hw.cost.machine import MachineSpec, default_machine
from spyre.hw.cost.measured import MeasuredKernel, counts_of, measured_kernels
from spyre.hw.cost.models import kernel_ns

Float64Array = npt.NDArray[np.float64]
DIGITS = 3
ROUNDS = 60


@dataclass(frozen=True, slots=True)
class FitStep:
    """Constants fitted together on groups of rows, from their published or guessed values."""

    groups: tuple[str, ...]
    start: tuple[tuple[str, float], ...]


STEPS = (
    FitStep(("pointwise",), (("calibration.scalar_turnaround", 1.0),)),
    FitStep(("transpose",), (("calibration.transpose_gbps", 116.0),)),
    FitStep(
        ("reduction",),
        (
            ("calibration.row_reduction_floor_gbps", 114.0),
            ("calibration.row_reduction_extra_gbps", 61.0),
        ),
    ),
    FitStep(
        ("softmax tiled",),
        (
            ("calibration.tile_height", 16.0),
            ("calibration.tile_height_ratio", 0.06),
            ("calibration.run_ns", 300.0),
        ),
    ),
    FitStep(
        ("matmul", "matmul row tiled"),
        (
            ("calibration.pt_macs_per_ns", 1140.0),
            ("calibration.pt_fill_rows", 16.0),
            ("calibration.hidden_ratio", 0.46),
            ("calibration.spill_per_doubling", 0.45),
        ),
    ),
)
"""One after another; what a step finds holds in the next."""


def relative_error(row: MeasuredKernel, machine: MachineSpec) -> float:
    """Predicted over measured, less 1."""
    predicted = kernel_ns(counts_of(row, machine), machine, "calibrated")
    return predicted.total_ns / (1e3 * row.us) - 1.0


def fit(machine: MachineSpec, rows: Sequence[MeasuredKernel]) -> dict[str, float]:
    """The constants of all steps, rounded, from where the steps start; all others are
    ``machine``'s. Of ``rows`` those count that are marked as fitted.
    """
    constants = {name: value for step in STEPS for name, value in step.start}
    for step in STEPS:
        values = fit_step(machine.with_values(constants), step, rows)
        constants |= {name: float(f"{value:.{DIGITS}g}") for name, value in values.items()}
    return constants


def fit_step(
    machine: MachineSpec, step: FitStep, measured: Sequence[MeasuredKernel]
) -> dict[str, float]:
    """The constants of one step that make the squares of the relative errors smallest."""
    rows = [r for r in measured if r.fitted and r.explained and r.group in step.groups]
    names = [name for name, _ in step.start]

    def errors(logs: Float64Array) -> Float64Array:
        values = dict(zip(names, np.exp(logs).tolist(), strict=True))
        changed = machine.with_values(values)
        return np.array([relative_error(row, changed) for row in rows])

    best = minimize(errors, np.array([log(value) for _, value in step.start]))
    return {name: exp(value) for name, value in zip(names, best.tolist(), strict=True)}


def minimize(errors: Callable[[Float64Array], Float64Array], start: Float64Array) -> Float64Array:
    """Levenberg's method with one-sided differences; a fixed number of rounds."""
    logs, damping = start, 1e-3
    residuals = errors(logs)
    for _ in range(ROUNDS):
        slope = _slopes(errors, logs, residuals)
        # Logarithms keep constants positive and make one damping fit all of them.
        square = slope.T @ slope + damping * np.eye(len(logs))
        step = np.linalg.solve(square, -slope.T @ residuals)
        tried = errors(logs + step)
        if tried @ tried < residuals @ residuals:
            logs, residuals, damping = logs + step, tried, damping / 3
        else:
            damping *= 4
    return logs


def _slopes(
    errors: Callable[[Float64Array], Float64Array], logs: Float64Array, residuals: Float64Array
) -> Float64Array:
    width = 1e-4
    columns = [(errors(logs + width * unit) - residuals) / width for unit in np.eye(len(logs))]
    return np.stack(columns, axis=1)


def main() -> int:
    """Print the fitted constants."""
    for name, value in fit(default_machine(), measured_kernels()).items():
        print(f"{name} = {value:g}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
