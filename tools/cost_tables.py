"""Tables of docs/cost-model.md: constants with their sources, errors against measured kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from spyre.hw.cost.estimate import Estimates, estimate_rows
from spyre.hw.cost.machine import Spread, Value, default_machine
from spyre.hw.cost.rows import measured_rows

Rows = Iterator[tuple[object, ...]]
CONSTANTS_HEAD = ("constant", "value", "unit", "kind", "rows", "error", "source")
SPREADS_HEAD = ("class", "rows", "error bar")
ERRORS_HEAD = ("kernels", "rows", "median", "nine of ten within", "bias")
CHOICES_HEAD = ("problem", "rows", "cost of the choice", "pairs in order", "chosen", "")


def constants() -> Rows:
    """Every constant of the shipped machine that is no error bar."""
    for name, constant in default_machine().constants.items():
        if not name.startswith("spread."):
            error = f"{constant.spread:.1%}" if constant.spread else ""
            known = (_value(constant.value), constant.unit, constant.kind, constant.rows or "")
            yield f"`{name}`", *known, error, constant.source


def _value(value: Value) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{x:g}: {y:g}" for x, y in value)
    return str(value) if isinstance(value, int) else f"{value:g}"


def spreads() -> Rows:
    """The error bar of every class."""
    known = default_machine().constants
    for field in fields(Spread):
        constant = known[f"spread.{field.name}"]
        assert isinstance(constant.value, float)
        yield field.name.replace("_", " "), constant.rows, f"±{constant.value:.0%}"


def estimates() -> Estimates:
    """The shipped rows."""
    return estimate_rows(measured_rows())


def errors() -> Rows:
    """Errors per group of measured kernels."""
    for each in estimates().errors:
        numbers = (f"{each.median:.1%}", f"{each.tenth:.1%}", f"{each.bias:+.1%}")
        yield each.name, each.rows, *numbers


def choices() -> Rows:
    """Problems of three measured divisions or more."""
    for each in estimates().choices:
        if each.rows > 2:
            numbers = (f"{each.cost:.1%}", f"{each.ordered} of {each.pairs}")
            close = "too close to call" if each.is_close else ""
            yield each.title, each.rows, *numbers, each.chosen, close
