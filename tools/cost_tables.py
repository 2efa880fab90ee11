"""Tables of docs/cost-model.md: constants with their sources, errors against measured kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw.cost.machine import Value, default_machine
from spyre.hw.cost.measured import Prediction, predictions

Rows = Iterator[tuple[object, ...]]
CONSTANTS_HEAD = ("constant", "value", "unit", "kind", "source")
ERRORS_HEAD = (
    *("group", "fitted rows", "RMS", "reported rows", "RMS", "mean of all", "farthest"),
    "RMS of `ideal`, all rows",
)
ROWS_HEAD = ("kernel", "half", "measured, µs", "calibrated, µs", "error", "ideal, µs")


def constants() -> Rows:
    """Every constant of the shipped machine."""
    for name, constant in default_machine().constants.items():
        yield f"`{name}`", _value(constant.value), constant.unit, constant.kind, constant.source


def _value(value: Value) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{x:g}: {y:g}" for x, y in value)
    return str(value) if isinstance(value, int) else f"{value:g}"


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


def group_errors(predicted: Sequence[Prediction]) -> tuple[GroupError, ...]:
    """A line per group of rows that have a mechanism, then groups with the others included."""
    groups = tuple(dict.fromkeys(p.row.group for p in predicted))
    lines = [
        _group_error(group, [p for p in predicted if p.row.group == group and p.row.explained])
        for group in groups
    ]
    for group in groups:
        members = [p for p in predicted if p.row.group == group]
        if not all(p.row.explained for p in members):
            lines.append(_group_error(f"{group}, all rows", members))
    return tuple(lines)


def rms(errors: Sequence[float]) -> float | None:
    """Root mean square; None of nothing."""
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else None


def _group_error(group: str, predicted: Sequence[Prediction]) -> GroupError:
    errors = [p.error for p in predicted]
    fitted = [p.error for p in predicted if p.row.fitted]
    reported = [p.error for p in predicted if not p.row.fitted]
    return GroupError(
        group,
        len(fitted),
        rms(fitted),
        len(reported),
        rms(reported),
        float(np.mean(errors)),
        max(errors, key=abs),
    )


def errors() -> Rows:
    """Errors per group of measured kernels, both models."""
    machine = default_machine()
    lines = group_errors(predictions(machine))
    plain = group_errors(predictions(machine, "ideal"))
    for line, other in zip(lines, plain, strict=True):
        halves = (line.fitted_rows, _percent(line.fitted_rms), line.reported_rows)
        both = [
            (other.fitted_rms or 0.0) ** 2 * other.fitted_rows,
            (other.reported_rms or 0.0) ** 2 * other.reported_rows,
        ]
        whole = (sum(both) / (other.fitted_rows + other.reported_rows)) ** 0.5
        yield (
            line.group,
            *halves,
            _percent(line.reported_rms),
            _signed(line.mean),
            _signed(line.worst),
            _percent(whole),
        )


def measured_rows() -> Rows:
    """Every measured kernel with both predictions."""
    machine = default_machine()
    both = zip(predictions(machine), predictions(machine, "ideal"), strict=True)
    for found, plain in both:
        half = "fitted" if found.row.fitted else "reported"
        if not found.row.explained:
            half = "left out"
        title = f"{found.row.group}: {found.row.title}"
        times = (f"{found.row.us:g}", f"{found.us:.1f}", _signed(found.error), f"{plain.us:.1f}")
        yield title, half, *times


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f} %"
