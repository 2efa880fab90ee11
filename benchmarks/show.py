"""Results and comparisons on the terminal."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import Change, compare, machine_factors, missing
from benchmarks.results import TIMES
from benchmarks.tile_forms import HEADS, LEFT, SECTION, by_title, cells, forms, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import JustifyMethod

    from benchmarks.results import Measurement, Results

WIDTH = 124
SEEN = 1.5
"""Sections in half of whose times a change of this factor would not be seen are named."""
LEFT_HEADS = (*LEFT, "", "unit")


def show(results: Results) -> None:
    """A table per section."""
    console = Console(width=WIDTH)
    for section, rows in results.sections.items():
        console.print(tiled_table(rows) if section == SECTION else section_table(section, rows))
    for section, text in results.errors.items():
        console.print(f"{section} failed: {text}", style="red", markup=False)


def section_table(section: str, rows: Sequence[Measurement]) -> Table:
    """A row per quantity."""
    table = _table(section, ("", "median", "unit", "deviation", "target"))
    for row in rows:
        cells_of_row = (row.name, row.shown, row.unit, row.shown_deviation, row.shown_target)
        table.add_row(*cells_of_row, style="yellow" if row.missed else "")
    return table


def tiled_table(rows: Sequence[Measurement]) -> Table:
    """A row per workload, dim and number of tiles."""
    table = _table(SECTION, HEADS)
    for group in by_title(forms(rows)).values():
        for form in group:
            values = zip(HEADS, cells(form, group[0]), strict=True)
            table.add_row(*(shown(head, value) for head, value in values))
        table.add_section()
    return table


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, box=SIMPLE, pad_edge=False)
    for head in heads:
        justify: JustifyMethod = "left" if head in LEFT_HEADS else "right"
        table.add_column(head, justify=justify, no_wrap=True)
    return table


def show_comparison(before: Results, after: Results) -> None:
    """What changed beyond noise."""
    print("\n".join(comparison_lines(before, after)))


def comparison_lines(before: Results, after: Results) -> list[str]:
    """What changed beyond noise, and what only one of the two has."""
    changes = compare(before, after)
    lines = [f"since {before.commit[:10]} of {before.ended}:"]
    if before.machine != after.machine:
        lines.append("  another machine: times are not compared, ratios and computed values are")
    if before.quick != after.quick:
        lines.append("  one of the two is a quick run: few quantities have the same sizes")
    lines += [f"  {line}" for line in machine_lines(before, after, changes)]
    changed = [change for change in changes if change.is_change]
    lines += [f"  {describe(change)}" for change in changed]
    lines.append(f"  {len(changed)} of {len(changes)} quantities changed beyond noise")
    return lines + [f"  {line}" for line in missing(before, after)]


def machine_lines(before: Results, after: Results, changes: Sequence[Change]) -> list[str]:
    """Sections in whose times small changes would not have been seen, and why."""
    lines = []
    for section in dict.fromkeys(change.section for change in changes):
        needed = [
            change.noise * change.machine[1] for change in changes
            if change.section == section and change.unit in TIMES and change.noise > 1.1
        ]  # fmt: skip
        if needed and statistics.median(needed) > SEEN:
            found = machine_factors(section, before, after)
            lines.append(
                f"{section}: the machine was not steady (now {found.least:.2f} to "
                f"{found.largest:.2f} times as slow): of half its times, only changes of more "
                f"than {statistics.median(needed):.2f}x would be seen"
            )
    return lines


def describe(change: Change) -> str:
    """A line on a change."""
    machine = ""
    if change.machine != (1.0, 1.0):
        machine = "; machine {:.2f} to {:.2f}x".format(*change.machine)
    return (
        f"{change.verdict:<7}{change.section}: {change.name}: {change.before:.4g} -> "
        f"{change.after:.4g} {change.unit} "
        f"({change.factor:.2f}x; noise {change.noise:.2f}x{machine})"
    )
