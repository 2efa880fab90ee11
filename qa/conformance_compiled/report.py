"""The tables at the end of a run, and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qa.conformance_compiled.outcome import ROUNDED, SAME, Outcome, Setting


def as_json(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Return all results of a run as plain data."""
    failed = [outcome for outcome in outcomes if outcome.faults]
    return {
        "passed": len(outcomes) - len(failed),
        "total": len(outcomes),
        "functions": len({outcome.name for outcome in outcomes}),
        "seconds": round(seconds, 1),
        "outcomes": [outcome.as_json() for outcome in outcomes],
    }


def print_report(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print tables of failures, of functions that differ by rounding, and of totals by setting."""
    for table in (_failures(outcomes), _rounded(outcomes), _totals(outcomes)):
        if table.row_count:
            console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _failures(outcomes: Sequence[Outcome]) -> Table:
    table = _table("functions that do not pass", "function", "setting", "why")
    for outcome in sorted(outcomes, key=lambda o: o.name):
        if outcome.faults:
            setting = str(Setting(outcome.form, outcome.cores))
            why = "\n".join(fault.strip().splitlines()[-1] for fault in outcome.faults[:3])
            table.add_row(outcome.name, setting, escape(why))
    return table


def _rounded(outcomes: Sequence[Outcome]) -> Table:
    table = _table(
        "sums over K in other parts, so in another order",
        *("function", "setting", "K: parts", "difference / allowed"),
    )
    for outcome in sorted(outcomes, key=lambda o: o.name):
        if outcome.bits == ROUNDED:
            setting = str(Setting(outcome.form, outcome.cores))
            sums = ", ".join(f"{extent}: {parts}" for extent, parts in outcome.sums)
            table.add_row(outcome.name, setting, sums, f"{outcome.moved:.3f}")
    return table


def _totals(outcomes: Sequence[Outcome]) -> Table:
    table = _table(
        "by setting",
        *("addresses", "cores", "functions", "passing", SAME, ROUNDED),
        *("worst / allowed", "kernels", "operations", "most arguments", "calling the CPU"),
    )
    for setting in sorted({Setting(o.form, o.cores) for o in outcomes}, reverse=True):
        rows = [o for o in outcomes if Setting(o.form, o.cores) == setting]
        table.add_row(
            setting.form,
            str(setting.cores),
            str(len(rows)),
            str(sum(not o.faults for o in rows)),
            str(sum(o.bits == SAME for o in rows)),
            str(sum(o.bits == ROUNDED for o in rows)),
            f"{max(o.worst for o in rows):.3f}",
            str(sum(o.kernels for o in rows)),
            str(sum(o.operations for o in rows)),
            str(max(o.arguments for o in rows)),
            str(sum(bool(o.fallbacks) for o in rows)),
        )
    return table
