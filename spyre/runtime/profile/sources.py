"""Modelled time by the lines and modules of the user's program.

Compiled kernels know what each of their executes stands for (:class:`LaunchOrigin`); eager
operations and bundles from files do not. Launches of one kernel may stand for different lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spyre.hw.counters import Counters
from spyre.runtime.flex import SourcePlace
from spyre.runtime.profile.data import ProfileData
from spyre.runtime.profile.kernels import ExecuteProfile, KernelProfile
from spyre.runtime.units import format_ns

if TYPE_CHECKING:
    from rich.table import Table

Places = tuple[SourcePlace, ...]
MAX_ROWS = 12
"""Lines that the text has; the report has all of them."""
UNKNOWN = "not compiled: no line is known"


@dataclass
class SourceRow:
    """``places``: lines that the executes stand for, together where one stands for several; none
    where no line is known. ``time_ns``: of all runs in all launches, without launching. ``share``:
    part of the time of all kernels, launching included.
    """

    places: Places
    ops: dict[str, None] = field(default_factory=dict)
    executes: int = 0
    counters: Counters = field(default_factory=Counters)
    time_ns: float = 0.0
    share: float = 0.0

    @property
    def module(self) -> str:
        """Modules, as the text shows them."""
        return ", ".join(dict.fromkeys(place.module_text for place in self.places))

    @property
    def line(self) -> str:
        """Lines, as the text shows them."""
        return ", ".join(dict.fromkeys(place.line_text for place in self.places)) or UNKNOWN

    @property
    def operations(self) -> str:
        """Operations of the card, the first ones by name."""
        names = list(self.ops)
        return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def source_rows(profile: ProfileData) -> tuple[SourceRow, ...]:
    """A row per line, those that take longest first; none where no line is known."""
    rows: dict[Places, SourceRow] = {}
    for kernel in profile.kernels:
        for execute in kernel.executes:
            for places, launches in _places_by_launches(kernel, execute):
                row = rows.setdefault(places, SourceRow(places))
                row.ops[execute.op] = None
                row.executes += 1
                row.counters = row.counters + execute.statement.counters.times(launches)
                row.time_ns += execute.launch_ns * launches
    if not any(rows):
        return ()
    for row in rows.values():
        row.share = row.time_ns / profile.kernel_ns if profile.kernel_ns else 0.0
    return tuple(sorted(rows.values(), key=lambda row: -row.time_ns))


def _places_by_launches(
    kernel: KernelProfile, execute: ExecuteProfile
) -> Iterator[tuple[Places, int]]:
    for origin, launches in kernel.origins:
        yield () if origin is None else origin.places_of(execute.statement.index), launches


def places_of(kernel: KernelProfile, executes: Sequence[ExecuteProfile]) -> Places:
    """All lines that executes of a kernel stand for, in all its launches."""
    rows = (row for execute in executes for row in _places_by_launches(kernel, execute))
    return tuple(dict.fromkeys(place for places, _ in rows for place in places))


def place_object(place: SourcePlace) -> dict[str, object]:
    """For JSON and traces."""
    return {
        "module": place.module,
        "file": place.file,
        "line": place.line,
        "backward": place.is_backward,
    }


def make_source_table(rows: Sequence[SourceRow]) -> Table:
    """The rich table of the rows that take longest."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for name in ("line", "module", "operations"):
        table.add_column(name, overflow="fold")
    for name in ("runs", "time", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows[:MAX_ROWS]:
        table.add_row(
            row.line,
            row.module,
            row.operations,
            str(row.counters.executions),
            format_ns(round(row.time_ns)),
            f"{row.share:.0%}",
        )
    return table
