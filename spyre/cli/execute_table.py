"""The table of executes: one row per execute statement, or per kind of execute when many.

:mod:`.text_report` prints it. ``host_ns`` is time on this machine, not on the card.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyre.hw.counters import Counters
from spyre.runtime.run_result import ExecuteReport
from spyre.runtime.units import format_bytes, format_count, format_ns

if TYPE_CHECKING:
    from rich.table import Table

MAX_ROWS = 24
"""More execute statements than this are shown by kind, unless ``-v`` is given."""


@dataclass(frozen=True, slots=True)
class ExecuteRow:
    """One row: ``label`` is the execute's index, or how many statements the row stands for."""

    label: str
    op: str
    shape: str
    cores: int
    executions: int
    counters: Counters
    host_ns: int | None


def rows_of(reports: Sequence[ExecuteReport], every: bool) -> tuple[ExecuteRow, ...]:
    """Rows in program order; by kind (operation, shape, cores) if there are too many."""
    if every or len(reports) <= MAX_ROWS:
        return tuple(_row(str(r.index), [r]) for r in reports)
    kinds: dict[tuple[str, str, int], list[ExecuteReport]] = {}
    for report in reports:
        kinds.setdefault((report.op, report.shape, report.cores), []).append(report)
    return tuple(_row(f"{len(same)} of", same) for same in kinds.values())


def make_table(rows: Sequence[ExecuteRow]) -> Table:
    """The rich table, with a line of totals."""
    from rich.box import SIMPLE
    from rich.table import Table

    total = _total(rows)
    table = Table(box=SIMPLE, show_footer=len(rows) > 1, pad_edge=False)
    right = ("#", "cores", "runs", "HBM in", "HBM out", "LX in", "LX out", "work", "host time")
    footers = ("", "total", "", "", *_numbers(total))
    titles = ("#", "operation", "shape", "cores", *right[2:])
    for title, footer in zip(titles, footers, strict=True):
        justify = "right" if title in right else "left"
        table.add_column(title, footer=footer, justify=justify, no_wrap=title != "shape")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(row.label, row.op, row.shape, str(row.cores), *_numbers(row))
    return table


def _row(label: str, reports: Sequence[ExecuteReport]) -> ExecuteRow:
    first = reports[0]
    return ExecuteRow(
        label,
        first.op,
        first.shape,
        first.cores,
        sum(r.executions for r in reports),
        sum((r.counters for r in reports), Counters()),
        _sum_ns(r.host_ns for r in reports),
    )


def _total(rows: Sequence[ExecuteRow]) -> ExecuteRow:
    return ExecuteRow(
        "",
        "total",
        "",
        0,
        sum(row.executions for row in rows),
        sum((row.counters for row in rows), Counters()),
        _sum_ns(row.host_ns for row in rows),
    )


def _sum_ns(times: Iterable[int | None]) -> int | None:
    known = list(times)
    return None if None in known else sum(t for t in known if t is not None)


def _numbers(row: ExecuteRow) -> tuple[str, ...]:
    c = row.counters
    sizes = (c.hbm_read_bytes, c.hbm_written_bytes, c.lx_read_bytes, c.lx_written_bytes)
    return (
        str(row.executions),
        *(format_bytes(size) for size in sizes),
        _work(c),
        format_ns(row.host_ns),
    )


def _work(counters: Counters) -> str:
    parts = []
    if counters.multiply_adds:
        parts.append(f"{format_count(counters.multiply_adds)} mac")
    if counters.element_operations or not parts:
        parts.append(f"{format_count(counters.element_operations)} el")
    return " + ".join(parts)
