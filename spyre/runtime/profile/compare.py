"""Two runs side by side: sums, and times per operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from spyre.errors import JsonLocation, ProfileError
from spyre.runtime.profile.json_form import FORM
from spyre.runtime.profile.table import time_text
from spyre.runtime.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity of both runs, in the unit ``text`` shows."""

    name: str
    first: float
    second: float
    text: Callable[[float], str]

    @property
    def ratio(self) -> float | None:
        """The second by the first; None where the first is 0."""
        return self.second / self.first if self.first else None


def read_kept(path: Path) -> Object:
    """The profile in a file that ``spyre-run --profile --json`` wrote. ProfileError SPY781."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise _no_kept_run(path, str(error)) from error
    profile = found.get("profile") if isinstance(found, dict) else None
    if not isinstance(profile, dict) or profile.get("form") != FORM:
        raise _no_kept_run(path, "an object without such a profile")
    return profile


def _no_kept_run(path: Path, found: str) -> ProfileError:
    return ProfileError(
        "SPY781",
        "the file is no kept run",
        JsonLocation(str(path), "$.profile"),
        expected="what spyre-run --profile --json printed",
        found=found,
    )


def compare_profiles(first: Object, second: Object) -> tuple[Line, ...]:
    """Lines of two profiles, as `profile_object` has them."""
    a, b = first["totals"], second["totals"]
    sums = tuple(Line(name, of(a), of(b), text) for name, of, text in QUANTITIES)
    return (*sums, *_operations(first, second))


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _ratio(value: float) -> str:
    return f"{value:.3g}"


def _bytes(value: float) -> str:
    return format_bytes(round(value))


QUANTITIES: tuple[tuple[str, Callable[[Object], float], Callable[[float], str]], ...] = (
    ("from first to last", lambda t: t["makespan_ns"], time_text),
    ("on the cores", lambda t: t["compute_ns"], time_text),
    ("launching", lambda t: t["launch_ns"], time_text),
    ("HBM read", lambda t: t["rdmem_bytes"], _bytes),
    ("HBM written", lambda t: t["wrmem_bytes"], _bytes),
    ("HBM bytes", lambda t: t["rdmem_bytes"] + t["wrmem_bytes"], _bytes),
    ("LX bytes", lambda t: t["lx_read_bytes"] + t["lx_written_bytes"], _bytes),
    ("LX peak of a core", lambda t: t["lx_peak_bytes"], _bytes),
    ("HBM allocated at most", lambda t: t["hbm_peak_bytes"] or 0, _bytes),
    ("busiest core over mean", lambda t: t["imbalance"] or 0.0, _ratio),
    ("ring bytes", lambda t: t["ring_bytes"], _bytes),
    ("copied to the card", lambda t: t["copied_in_bytes"], _bytes),
    ("copied to the host", lambda t: t["copied_out_bytes"], _bytes),
    ("launches", lambda t: t["launches"], _number),
    ("executes", lambda t: t["executes"], _number),
    ("executions", lambda t: t["executions"], _number),
)
"""What is compared of the sums: name, value of ``totals``, text."""


def _operations(first: Object, second: Object) -> tuple[Line, ...]:
    """Time per operation, in order of appearance."""
    times = [_time_by_operation(profile) for profile in (first, second)]
    names = dict.fromkeys((*times[0], *times[1]))
    return tuple(
        Line(f"time of {name}", times[0].get(name, 0.0), times[1].get(name, 0.0), time_text)
        for name in names
    )


def _time_by_operation(profile: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in profile["executes"]:
        found[row["op"]] = found.get(row["op"], 0.0) + row["time_ns"]
    return found


def comparison_table(lines: tuple[Line, ...], first: str, second: str) -> Table:
    """A rich table; B/A below 1 is less in the second run."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for column in ("", f"A: {first}", f"B: {second}", "B - A", "B/A"):
        table.add_column(column, justify="right" if column else "left", overflow="fold")
    for line in lines:
        table.add_row(line.name, line.text(line.first), line.text(line.second), *_change(line))
    return table


def _change(line: Line) -> tuple[str, str]:
    change = line.second - line.first
    sign = "-" if change < 0 else "+"
    shown = f"{sign}{line.text(abs(change))}" if change else "="
    return shown, "-" if line.ratio is None else f"{line.ratio:.3g}"


def comparison_object(lines: tuple[Line, ...]) -> list[Object]:
    """The same for ``--json``."""
    return [
        {"name": each.name, "a": each.first, "b": each.second, "ratio": each.ratio}
        for each in lines
    ]
