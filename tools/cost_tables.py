"""Tables of docs/cost-model.md: constants with their sources, errors against measured kernels."""

from __future__ import annotations

from collections.abc import Iterator

from spyre.hw.cost.machine import Value, default_machine
from spyre.hw.cost.measured import group_errors, predictions

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
