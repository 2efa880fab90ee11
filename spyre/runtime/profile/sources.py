"""Modelled time by the lines and modules of the user's program.

The source lines of an execute are known for compiled kernels (:class:`SourceLines`), not for eager
operations and bundles from files. Launches of one kernel may come from different lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spyre.hw.counters import Counters
from spyre.runtime.drawing import Column
from spyre.runtime.flex import SourcePlace
from spyre.runtime.profile.data import ProfileData
from spyre.runtime.profile.kernels import ExecuteProfile, KernelProfile
from spyre.runtime.units import format_bytes, format_ns

Places = tuple[SourcePlace, ...]
UNKNOWN = "not compiled: no line is known"


@dataclass
class SourceRow:
    """The executes that were compiled from ``places``, which are several lines if they were fused.

    ``places`` is empty if no line is known. ``time_ns``: all runs in all launches, without
    launching. ``share``: part of the time of all kernels, launching included.
    """

    places: Places
    ops: dict[str, None] = field(default_factory=dict)
    executes: int = 0
    counters: Counters = field(default_factory=Counters)
    time_ns: float = 0.0
    share: float = 0.0

    @property
    def module(self) -> str:
        """The modules as text."""
        return ", ".join(dict.fromkeys(place.module_text for place in self.places))

    @property
    def line(self) -> str:
        """The lines as text."""
        return ", ".join(dict.fromkeys(place.line_text for place in self.places)) or UNKNOWN

    @property
    def operations(self) -> str:
        """The names of at most four device operations."""
        names = list(self.ops)
        return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def source_rows(profile: ProfileData) -> tuple[SourceRow, ...]:
    """Return a row per line, the longest time first; no rows if no line is known."""
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
    """Return the lines that ``executes`` were compiled from, over all launches of the kernel."""
    rows = (row for execute in executes for row in _places_by_launches(kernel, execute))
    return tuple(dict.fromkeys(place for places, _ in rows for place in places))


def place_object(place: SourcePlace) -> dict[str, object]:
    """Return the object for JSON and traces."""
    return {
        "module": place.module,
        "file": place.file,
        "line": place.line,
        "backward": place.is_backward,
    }


SOURCE_COLUMNS: tuple[Column[SourceRow], ...] = (
    Column("line", lambda row: row.line),
    Column("module", lambda row: row.module),
    Column("operations", lambda row: row.operations),
    Column("runs", lambda row: str(row.counters.executions), lambda row: row.counters.executions),
    Column("time", lambda row: format_ns(round(row.time_ns)), lambda row: row.time_ns),
    Column("share", lambda row: f"{row.share:.0%}", lambda row: row.share),
    Column("HBM", lambda row: format_bytes(row.counters.memory_bytes),
           lambda row: row.counters.memory_bytes),
)  # fmt: skip
