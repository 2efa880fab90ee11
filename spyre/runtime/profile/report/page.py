"""The page: sections with tables and charts one below another, with style and script inside it.

It loads nothing and sends nothing; its security policy says so. All text is escaped on its way
in. Columns of tables sort by what they mean: cells carry their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spyre import __version__
from spyre.hw.cost import CAVEAT, Bound
from spyre.runtime.first_divergence import FirstDivergence
from spyre.runtime.profile.bottlenecks import Bottleneck, bottlenecks_of
from spyre.runtime.profile.collectives import (
    CELLS as COLLECTIVE_CELLS,
    CollectiveRow,
    collective_rows,
)
from spyre.runtime.profile.data import ProfileData
from spyre.runtime.profile.files import write_whole
from spyre.runtime.profile.kernels import LAUNCH, KernelProfile
from spyre.runtime.profile.report.charts import (
    MAX_LIFETIMES,
    CoreQuantity,
    core_charts,
    core_quantities,
    hbm_chart,
    left_out,
    lx_chart,
    roofline_chart,
    timeline_chart,
    used_regions,
)
from spyre.runtime.profile.report.html import Markup, document, inside, tag, theme_button
from spyre.runtime.profile.report.mismatch import mismatch_section
from spyre.runtime.profile.roofline import program_names, roofline_of
from spyre.runtime.profile.sources import Places, SourceRow, source_rows
from spyre.runtime.profile.table import (
    CELLS,
    COLUMNS,
    LEFT as LEFT_COLUMNS,
    ProfileRow,
    execute_rows,
    kernel_rows,
    reuse_text,
    summary_lines,
    time_text,
    total_row,
)
from spyre.runtime.trace import region_name
from spyre.runtime.units import format_bytes

LEFT = (*LEFT_COLUMNS, "counter", "collective", "line", "module", "operations")
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
        class_="name" if head == "kernel" else None if head in LEFT else "number",
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
    executes = execute_rows(profile)
    if len(executes) > MAX_ROWS:
        longest = sorted(range(len(executes)), key=lambda k: -executes[k].time_ns)[:MAX_ROWS]
        executes = tuple(executes[k] for k in sorted(longest))
    heads = [c for c in COLUMNS if c != "kernel" or len(profile.kernels) > 1]
    rows = [[_row_cell(row, c, "#") for c in heads] for row in executes]
    if any(row.places for row in executes):
        place = heads.index("shape")
        heads.insert(place, "line")
        for cells, row in zip(rows, executes, strict=True):
            cells.insert(place, Cell(", ".join(map(str, row.places)) or "-"))
    return sortable("executes-table", "Executes: all runs in all launches", heads, rows)


def source_table(rows: Sequence[SourceRow]) -> Markup:
    """A row per line of the user's program."""
    heads = ("line", "module", "operations", "runs", "time", "share", "HBM")
    cells = (
        [
            Cell(row.line, None, True),
            Cell(row.module),
            Cell(row.operations),
            Cell(f"{row.counters.executions:,}", row.counters.executions),
            Cell(time_text(row.time_ns), row.time_ns),
            Cell(f"{row.share:.1%}", row.share),
            Cell(format_bytes(row.counters.memory_bytes), row.counters.memory_bytes),
        ]
        for row in rows
    )
    caption = "Lines of the program: executes that stand for them, without launching"
    return sortable("sources-table", caption, heads, cells)


def _row_cell(row: ProfileRow, column: str, head: str) -> Cell:
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


def core_table(shown: Sequence[CoreQuantity]) -> Markup:
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
    named = profile.counters.by_name
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


MAX_MAPS = 8
"""Kernels whose LX is shown: those that take longest."""


def write_report(
    path: Path | str,
    profile: ProfileData,
    title: str = "spyre profile",
    watched: FirstDivergence | None = None,
) -> None:
    """Write the page; the file appears whole or not at all. ProfileError SPY782.

    ``watched``: what a run that is wrong was watched by; the page then begins with its mismatch.
    """
    write_whole(path, report_page(profile, title, watched).encode())


def report_page(
    profile: ProfileData, title: str = "spyre profile", watched: FirstDivergence | None = None
) -> str:
    """The page as text."""
    sections = list(_sections(profile))
    if watched is not None:
        sections.insert(1, ("mismatch", "Mismatch", mismatch_section(watched)))
    links = [tag("a", name, href=f"#{key}") for key, name, _ in sections]
    body = [
        tag("a", "Skip to the summary", href="#summary", class_="skip"),
        tag("header", [tag("h1", title), theme_button(), tag("p", _subtitle(profile))]),
        tag("nav", [*links, _search()], aria_label="Sections"),
        tag("main", [_section(key, name, content) for key, name, content in sections]),
        tag(
            "footer",
            f"spyre {__version__}. All times of the card are modelled; "
            f"{'what ran on the CPU is' if profile.on_host else 'none is'} measured.",
        ),
    ]
    return document(title, body)


def _subtitle(profile: ProfileData) -> str:
    return (
        f"machine {profile.machine.name} · cost model {profile.cost_model} · {profile.overlap} · "
        f"{_plural(len(profile.kernels), 'kernel')}, "
        f"{_plural(len(profile.launches), 'launch', 'launches')}"
    )


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _section(key: str, name: str, content: Markup) -> Markup:
    heading = tag("h2", name, id=f"{key}-title")
    return tag("section", [heading, content], id=key, aria_labelledby=f"{key}-title")


def _sections(profile: ProfileData) -> Iterator[tuple[str, str, Markup]]:
    """Key, name and content of every section."""
    yield "summary", "Summary", _summary(profile)
    yield "bottlenecks", "Bottlenecks", _bottlenecks(profile)
    yield "kernels", "Kernels", _kernels(profile)
    if sources := source_rows(profile):
        yield "sources", "Lines", source_table(sources)
    if profile.collectives:
        yield "collectives", "Collectives", _collectives(profile)
    yield "roofline", "Roofline", _roofline(profile)
    yield "lx", "LX over time", _lx(profile)
    yield "hbm", "HBM over time", _hbm(profile)
    yield "cores", "Core balance", _cores(profile)
    yield "counters", "Counters", counter_table(profile)


def _summary(profile: ProfileData) -> Markup:
    total = total_row(profile)
    tiles = (
        ("First to last", time_text(profile.makespan_ns)),
        ("On the cores", time_text(profile.compute_ns)),
        ("Launching", time_text(profile.launch_ns)),
        ("HBM traffic", format_bytes(total.hbm_bytes)),
        ("HBM rate", _rate_text(total)),
        ("LX reuse", reuse_text(total)),
        ("LX peak of a core", format_bytes(profile.lx_peak_bytes)),
        ("HBM allocated", _hbm_peak(profile)),
        ("Mostly bound by", total.bound),
    )
    shown = [tag("div", [tag("dt", name), tag("dd", value)]) for name, value in tiles]
    lines = tag("ul", [tag("li", line) for line in summary_lines(profile)], class_="facts")
    names = [
        ("bound-memory", "copy to card"),
        ("bound-ring", "copy to host"),
        ("bound-launch", "launch"),
        ("bound-pt", "compute"),
    ]
    if profile.collectives:
        names += [("bound-lx", "exchange between cards"), ("bound-sfu", "adds of a collective")]
    timeline = [tag("h3", "Timeline"), timeline_chart(profile), _zoom(profile), legend(names)]
    return inside([tag("dl", shown, class_="tiles"), *timeline, lines])


def _zoom(profile: ProfileData) -> Markup:
    """Buttons for the timeline, shown where scripts run; its time is that of the whole axis."""
    names = (("in", "Zoom in"), ("out", "Zoom out"), ("back", "Earlier"), ("on", "Later"))
    buttons = [tag("button", name, type="button", data_do=key) for key, name in names]
    shown = tag("output", "", aria_live="polite")
    most = repr(float(profile.makespan_ns))
    return tag("div", [*buttons, shown], class_="zoom", data_ns=most, hidden=True)


def _search() -> Markup:
    """A field that leaves the rows of all tables that hold its words; without script it is not
    shown.
    """
    field = tag("input", type="search", id="search", placeholder="Search the tables",
                aria_label="Search the tables", hidden=True)  # fmt: skip
    return inside([field, tag("output", "", id="matches", for_="search")])


def _bottlenecks(profile: ProfileData) -> Markup:
    found = bottlenecks_of(profile)
    if not found:
        return tag("p", "Nothing ran on the cores.")
    several = len(profile.kernels) > 1
    return tag("ol", [tag("li", _bottleneck(each, several)) for each in found], class_="causes")


def _bottleneck(found: Bottleneck, with_kernel: bool) -> Markup:
    kernel = f" of {found.kernel}" if with_kernel and found.kernel else ""
    saved = f" (at most {time_text(found.saved_ns)} less)" if found.saved_ns else ""
    lines = [
        tag("strong", f"{found.name}{kernel}"),
        tag("span", f"{time_text(found.time_ns)}, {found.share:.0%} of the time: {found.why}."),
    ]
    if found.places:
        lines.append(tag("span", _places_text(found.places)))
    if found.help:
        lines.append(tag("span", f"What would help{saved}: {found.help}."))
    return inside(lines)


MAX_PLACES = 3


def _places_text(places: Places) -> str:
    """Lines that a bottleneck stands for, the first of many."""
    more = f" and {len(places) - MAX_PLACES} more" if len(places) > MAX_PLACES else ""
    return f"{', '.join(map(str, places[:MAX_PLACES]))}{more}."


def _hbm_peak(profile: ProfileData) -> str:
    return "-" if profile.hbm is None else f"{format_bytes(profile.hbm.peak_bytes)} at most"


def _rate_text(total: ProfileRow) -> str:
    if not total.hbm_gbps:
        return "-"
    return f"{total.hbm_gbps:.3g} GB/s, {total.hbm_gbps / total.hbm_roof:.0%} of peak"


def _kernels(profile: ProfileData) -> Markup:
    executes = [tag("summary", "Every execute"), execute_table(profile)]
    is_open = len(profile.kernels) == 1
    return inside([kernel_table(profile), tag("details", executes, open=is_open)])


def _collectives(profile: ProfileData) -> Markup:
    numbers: dict[str, Callable[[CollectiveRow], float]] = {
        "ranks": lambda row: row.ranks,
        "calls": lambda row: row.calls,
        "bytes": lambda row: row.size_bytes,
        "steps": lambda row: row.time.steps,
        "time": lambda row: row.total_ns,
        "busbw GB/s": lambda row: row.bus_gbps,
        "sent": lambda row: row.sent_bytes,
        "received": lambda row: row.received_bytes,
        "added": lambda row: row.combined_bytes,
    }
    rows = (
        [
            Cell(text(row), numbers[name](row) if name in numbers else None, name == "collective")
            for name, text in COLLECTIVE_CELLS.items()
        ]
        for row in collective_rows(profile)
    )
    caption = f"Collectives: time and bus bandwidth are {CAVEAT}"
    return sortable("collectives-table", caption, list(COLLECTIVE_CELLS), rows)


def _roofline(profile: ProfileData) -> Markup:
    roofline = roofline_of(profile)
    names = [(f"bound-{bound}", f"bound by {bound}") for bound in (*Bound, LAUNCH)]
    used = {f"bound-{point.bound}" for point in roofline.points}
    text = (
        "Circles are products (multiply-adds on the pt arrays), squares everything else (points of "
        "the iteration space on the vector units). The larger, the more of the time. What moves "
        "nothing between HBM and the cores stands at the right edge."
    )
    shown = legend(entry for entry in names if entry[0] in used)
    programs = tag("p", f"Executes of {program_names(profile)}:")
    return inside([programs, roofline_chart(roofline), shown, tag("p", text)])


def _lx(profile: ProfileData) -> Markup:
    users = [kernel for kernel in profile.kernels if kernel.model.lx.highest]
    if not users:
        return tag("p", "No kernel uses the scratchpads.")
    longest = sorted(users, key=lambda kernel: -kernel.total_ns)[:MAX_MAPS]
    shown = [_lx_map(kernel, number == 0) for number, kernel in enumerate(longest)]
    if len(users) > len(longest):
        shown.append(
            tag("p", f"{len(users) - len(longest)} kernels that take less time use LX too.")
        )
    text = (
        "One launch of each kernel: every rectangle is a range of the scratchpads from what writes "
        "it to its last use; point at one to see who that is."
    )
    return inside([tag("p", text), *shown])


def _lx_map(kernel: KernelProfile, is_open: bool) -> Markup:
    peak = format_bytes(kernel.lx_peak_bytes)
    head = f"{kernel.name}: at most {peak} of a core in use, up to {kernel.model.lx.highest:#x}"
    parts = [tag("summary", head), lx_chart(kernel)]
    if left_out(kernel):
        parts.append(
            tag("p", f"The first {MAX_LIFETIMES}; {left_out(kernel)} later ones are left out.")
        )
    return tag("details", parts, open=is_open)


def _hbm(profile: ProfileData) -> Markup:
    """What is allocated when: a curve, and who it belongs to."""
    occupancy = profile.hbm
    if occupancy is None:
        return tag("p", "What was allocated in device memory has not been recorded.")
    first = time_text(occupancy.peak_ns) if occupancy.peak_ns else "the beginning"
    text = (
        f"At most {format_bytes(occupancy.peak_bytes)} are allocated, first at {first}: "
        "tensors, pools and programs, with what was there before. Allocations and frees are in the "
        "order of the run, at the modelled end of what had ended before them."
    )
    names = (
        (f"colour-{k}", f"{region_name(k)}: {format_bytes(occupancy.region_peak_bytes[k])}")
        for k in used_regions(occupancy)
    )
    return inside([tag("p", text), hbm_chart(occupancy, profile.makespan_ns), legend(names)])


def _cores(profile: ProfileData) -> Markup:
    shown = core_quantities(profile.per_core)
    text = (
        f"{balance_text(profile)} Dashed lines are means of the cores that have some; beside the "
        "name of a quantity is the core that has most over that mean."
    )
    table = tag("details", [tag("summary", "Every core"), core_table(shown)])
    return inside([tag("p", text), core_charts(shown), table])
