"""Tables of the report. Columns sort by what they mean: cells carry their number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw.counters import Counters
from spyre.runtime.profile.profile_data import ProfileData
from spyre.runtime.profile.report.core_charts import Quantity
from spyre.runtime.profile.report.svg import Markup, inside, tag
from spyre.runtime.profile.rows import Row, execute_rows, kernel_rows
from spyre.runtime.profile.table import CELLS, COLUMNS, time_text
from spyre.runtime.profile.table import LEFT as LEFT_COLUMNS

LEFT = (*LEFT_COLUMNS, "counter")
MAX_ROWS = 2000
"""Executes that are listed at most: those that take longest."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is shown, and what it sorts by: a number, or None for text."""

    shown: str
    number: float | None = None
    is_head: bool = False


def sortable(
    identifier: str, caption: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]]
) -> Markup:
    """A table whose columns sort by a click or a key."""
    head = [
        tag(
            "th",
            tag(
                "button", [name, tag("span", "", class_="arrow", aria_hidden="true")], type="button"
            ),
            scope="col",
            class_=None if name in LEFT else "number",
        )
        for name in heads
    ]
    body = [tag("tr", [_cell(name, c) for name, c in zip(heads, row, strict=True)]) for row in rows]
    table = tag(
        "table",
        [tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", body)],
        class_="sortable",
        id=identifier,
    )
    return tag("div", table, class_="wide", role="region", tabindex="0", aria_label=caption)


def _cell(head: str, content: Cell) -> Markup:
    kind = "th" if content.is_head else "td"
    return tag(
        kind,
        content.shown,
        scope="row" if content.is_head else None,
        data_value=None if content.number is None else repr(float(content.number)),
        class_=None if head in LEFT else "number",
    )


# --- executes and kernels -----------------------------------------------------------------------


def kernel_table(profile: ProfileData) -> Markup:
    """A row per kernel."""
    heads = [c for c in COLUMNS if c != "#"]
    rows = ([_row_cell(row, c, "kernel") for c in heads] for row in kernel_rows(profile))
    caption = "Kernels: all launches of the same form together, without launching"
    return sortable("kernels-table", caption, heads, rows)


def execute_table(profile: ProfileData) -> Markup:
    """A row per execute statement."""
    found = execute_rows(profile)
    if len(found) > MAX_ROWS:
        longest = sorted(range(len(found)), key=lambda k: -found[k].time_ns)[:MAX_ROWS]
        found = tuple(found[k] for k in sorted(longest))
    heads = [c for c in COLUMNS if c != "kernel" or len(profile.kernels) > 1]
    rows = ([_row_cell(row, c, "#") for c in heads] for row in found)
    return sortable("executes-table", "Executes: all runs in all launches", heads, rows)


def _row_cell(row: Row, column: str, head: str) -> Cell:
    numbers = {
        "#": float(row.label) if row.label.isdigit() else None,
        "cores": row.cores,
        "runs": row.runs,
        "time": row.time_ns,
        "share": row.share,
        "HBM": row.hbm_bytes,
        "GB/s": row.hbm_gbps,
        "MAC/ns": row.macs_per_ns,
        "LX reuse": -1.0 if not row.lx_bytes else row.lx_reuse or float("1e30"),
        "imbalance": row.per_core.imbalance or 0.0,
    }
    shown = CELLS[column](row)
    if column == "share":
        shown = f"{row.share:.1%}"
    return Cell(shown, numbers.get(column), column == head)


# --- cores and counters -------------------------------------------------------------------------


def core_table(shown: Sequence[Quantity]) -> Markup:
    """What every core did."""
    heads = ("core", *(quantity.name for quantity in shown))
    columns = [quantity.values.tolist() for quantity in shown]
    rows = (
        [
            Cell(str(core), core, True),
            *(Cell(q.text(value), value) for q, value in zip(shown, values, strict=True)),
        ]
        for core, values in enumerate(zip(*columns, strict=True))
    )
    return sortable("cores-table", "Work of every core", heads, rows)


def counter_table(profile: ProfileData) -> Markup:
    """All counters, summed up."""
    named = dict(zip(Counters.__slots__, profile.counters.values, strict=True))
    named["sticks"] = profile.counters.sticks
    rows = ([Cell(name, None, True), Cell(f"{value:,}", value)] for name, value in named.items())
    return sortable("counters-table", "Counters of all executes", ("counter", "sum"), rows)


def balance_text(profile: ProfileData) -> str:
    """How evenly the cores work."""
    busy = profile.core_busy_ns
    if not busy.any():
        return "No core worked."
    used = busy[busy > 0]
    return (
        f"{len(used)} of {len(busy)} cores work; the busiest {time_text(float(busy.max()))}, on "
        f"average {time_text(float(np.mean(used)))} where they do "
        f"({float(np.mean(used) / busy.max()):.0%} of the busiest)."
    )


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Colours and what they stand for: (class, name)."""
    items = (
        tag("li", inside([tag("span", "", class_=f"swatch {style}", aria_hidden="true"), name]))
        for style, name in entries
    )
    return tag("ul", items, class_="legend")
