"""Fitting the calibrated model's constants to measured rows.

`python -m spyre.hw.cost.fit` prints the machine file that the shipped rows give; ``spyre.toml``
ships these values, and a test repeats the fit. The rule: every step fits its constants on the rows
of its classes, from those of the machine, so that the logarithms of modelled over measured times
are smallest; beyond `HUBER` an error counts by its size, not by its square. Steps are fitted one
after another. Errors are cross-validated by shape: the shapes of a step are dealt to `FOLDS` folds,
and the rows of a fold are predicted by constants fitted without them. Outliers named in notes, and
products of an unknown division, are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import SupportsFloat, cast

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.hw.cost.estimate import machine_with
from spyre.hw.cost.machine import (
    MachineConstant,
    MachineSpec,
    Points,
    Value,
    default_machine,
    machine_text,
)
from spyre.hw.cost.models import kernel_ns, measured_class
from spyre.hw.cost.rows import Counts, KernelRow, counts_of, measured_rows

Float64Array = npt.NDArray[np.float64]
ROUNDS = 40
HUBER = 0.1
FOLDS = 8


def steps_of(machine: MachineSpec) -> dict[str, list[str]]:
    """Names of constants that are fitted together, by the classes that they are fitted on."""
    steps: dict[str, list[str]] = {}
    for name, constant in machine.constants.items():
        if constant.fitted_on and not name.startswith("spread."):
            steps.setdefault(constant.fitted_on, []).append(name)
    return steps


def start_of(
    machine: MachineSpec, names: Iterable[str], rows: Sequence[FitRow]
) -> dict[str, float]:
    """The machine's values; ``x@4`` is the one at 4 of the points of ``x``, if rows have that."""
    found: dict[str, float] = {}
    seen = {each.row.cores for each in rows}
    for name in names:
        value = machine.constants[name].value
        if isinstance(value, tuple):
            found |= {f"{name}@{x:g}": y for x, y in value[:-1] if x in seen}
        else:
            found[name] = value
    return found


class FitRow(msgspec.Struct, frozen=True):
    """A measured row with its counts. ``shape``: rows of the same are in the same fold."""

    row: KernelRow
    counts: Counts
    kind: str
    shape: str


def fit_rows(rows: Iterable[KernelRow]) -> list[FitRow]:
    """The rows of kernels that are fitted or tested."""
    found = []
    for row in rows:
        is_known = row.sizes is None or row.split is not None
        is_test = row.us is not None and row.finding is None and "outlier" not in row.note
        if is_known and is_test:
            ((_, counts),) = counts_of(row)
            shape = str(row.sizes or (row.kernel, row.shape))
            found.append(FitRow(row, counts, measured_class(counts), shape))
    return found


def log_errors(rows: Sequence[FitRow], machine: MachineSpec) -> Float64Array:
    """Logarithms of modelled over measured."""
    machines = {f: machine_with(machine, f) for f in {each.row.lx_fraction for each in rows}}
    times = [kernel_ns(each.counts, machines[each.row.lx_fraction]).total_ns for each in rows]
    logs: Float64Array = np.log(times) - np.log([1e3 * (each.row.us or 0.0) for each in rows])
    return logs


def with_constants(machine: MachineSpec, values: Mapping[str, float]) -> MachineSpec:
    """The machine with other values, also of single points (``name@x``)."""
    changed: dict[str, Value] = {}
    for path, value in values.items():
        name, _, at = path.partition("@")
        if at:
            points = cast("Points", changed.get(name, machine.constants[name].value))
            changed[name] = tuple((x, value if x == float(at) else y) for x, y in points)
        else:
            changed[name] = value
    return machine.with_values(changed)


def rounded(value: SupportsFloat) -> float:
    """To the digits of machine files."""
    return float(f"{float(value):.3g}")


def fit_step(
    machine: MachineSpec, start: Mapping[str, float], rows: Sequence[FitRow], rounds: int = ROUNDS
) -> dict[str, float]:
    """The constants that make the errors of the rows smallest."""

    def errors(logs: Float64Array) -> Float64Array:
        values = dict(zip(start, np.exp(logs).tolist(), strict=True))
        found = log_errors(rows, with_constants(machine, values))
        # least squares of these residuals is a pseudo-Huber loss of the errors
        loss: Float64Array = np.sqrt(2 * HUBER * (np.hypot(found, HUBER) - HUBER)) * np.sign(found)
        return loss

    best = minimize(errors, np.log(list(start.values())), rounds)
    return dict(zip(start, map(rounded, np.exp(best)), strict=True))


def minimize(
    errors: Callable[[Float64Array], Float64Array], start: Float64Array, rounds: int
) -> Float64Array:
    """Levenberg's method with one-sided differences; stops where it does not get on."""
    logs, damping, width = start, 1e-3, 1e-4
    residuals = errors(logs)
    for _ in range(rounds):
        changes = [errors(logs + width * unit) - residuals for unit in np.eye(len(logs))]
        slope = np.stack(changes, axis=1) / width
        # Logarithms keep constants positive and make one damping fit all of them.
        square = slope.T @ slope + damping * np.eye(len(logs))
        step = np.clip(np.linalg.solve(square, -slope.T @ residuals), -1, 1)
        tried = errors(logs + step)
        if tried @ tried < residuals @ residuals:
            logs, residuals, damping = logs + step, tried, damping / 3
        elif (damping := damping * 4) > 1e6:
            break
    return logs


def cross_validated(
    machine: MachineSpec, start: Mapping[str, float], rows: Sequence[FitRow]
) -> Float64Array:
    """Relative errors of the rows by constants that are fitted without their shapes."""
    shapes = {shape: k % FOLDS for k, shape in enumerate(dict.fromkeys(r.shape for r in rows))}
    found = np.zeros(len(rows))
    for fold in set(shapes.values()):
        tested = [k for k, each in enumerate(rows) if shapes[each.shape] == fold]
        others = [each for each in rows if shapes[each.shape] != fold]
        values = fit_step(machine, start, others, ROUNDS // 4) if others and start else start
        fitted = with_constants(machine, values)
        found[tested] = np.expm1(log_errors([rows[k] for k in tested], fitted))
    return found


def fit(machine: MachineSpec, measured: Sequence[KernelRow]) -> dict[str, MachineConstant]:
    """The fitted constants, rounded, and the spread of every class that has rows.

    Constants without rows stay as the machine has them, and are left out here.
    """
    constants: dict[str, MachineConstant] = {}
    errors: dict[str, Float64Array] = {}
    rows, steps = fit_rows(measured), steps_of(machine)
    seen = dict.fromkeys(each.kind for each in rows)
    steps |= {kind: [] for kind in seen if not any(kind in step.split(", ") for step in steps)}
    for step, names in steps.items():
        chosen = [each for each in rows if each.kind in step.split(", ")]
        if not chosen:
            continue
        start = start_of(machine, names, chosen)
        values = fit_step(machine, start, chosen) if start else start
        machine = with_constants(machine, values)
        found = cross_validated(machine, values, chosen)
        for name in dict.fromkeys(path.partition("@")[0] for path in values):
            constants[name] = _fitted(machine.constants[name], step, found, 0.5)
        kinds = np.array([each.kind for each in chosen])
        errors |= {kind: found[kinds == kind] for kind in set(kinds.tolist())}
    for kind, found in errors.items():
        name = f"spread.{kind}"
        constant = _fitted(machine.constants[name], kind, found, 2 / 3)
        changed = {"value": constant.spread, "spread": 0.0}
        constants[name] = msgspec.structs.replace(constant, **changed)
    return constants


def _fitted(
    constant: MachineConstant, kinds: str, errors: Float64Array, quantile: float
) -> MachineConstant:
    spread = rounded(np.quantile(np.abs(errors), quantile))
    source = f"fitted to {len(errors)} measured rows ({kinds}) by spyre.hw.cost.fit"
    return msgspec.structs.replace(
        constant, kind="measured", source=source, fitted_on=kinds, rows=len(errors), spread=spread
    )


def main() -> int:
    """Print the shipped machine with the fitted constants."""
    machine = default_machine()
    constants = fit(machine, measured_rows())
    sys.stdout.write(machine_text(machine.name, {**machine.constants, **constants}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
