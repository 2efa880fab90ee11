"""The report of a profile: one HTML page of sections with tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from spyre import __version__
from spyre.hw.cost import CAVEAT
from spyre.runtime.drawing import (
    Column,
    Frame,
    Markup,
    chart,
    document,
    html_table,
    inside,
    legend,
    tag,
    theme_button,
)
from spyre.runtime.first_divergence import Deviation, ExecuteVerdict, FirstDivergence
from spyre.runtime.profile.bottlenecks import Bottleneck, bottlenecks_of
from spyre.runtime.profile.charts import (
    MAX_LIFETIMES,
    CoreQuantity,
    core_charts,
    core_quantities,
    hbm_chart,
    left_out,
    lx_chart,
    timeline_chart,
    used_regions,
)
from spyre.runtime.profile.collectives import COLLECTIVE_COLUMNS, collective_rows
from spyre.runtime.profile.data import ProfileData
from spyre.runtime.profile.files import write_whole
from spyre.runtime.profile.kernels import Float64Array, KernelProfile
from spyre.runtime.profile.roofline import (
    EXPLANATION,
    FRAME,
    bound_names,
    program_names,
    roofline_chart,
    roofline_of,
)
from spyre.runtime.profile.sources import SOURCE_COLUMNS, Places, SourceRow, source_rows
from spyre.runtime.profile.table import (
    COLUMNS,
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

MAX_ROWS = 2000
"""The table shows at most so many executes, those that take longest."""


# --- executes and kernels -----------------------------------------------------------------------


Row = TypeVar("Row")


def _with_text(
    columns: Sequence[Column[Row]], name: str, text: Callable[[Row], str]
) -> list[Column[Row]]:
    """Return ``columns`` with other text in the column ``name``."""
    return [replace(column, text=text) if column.name == name else column for column in columns]


ROW_COLUMNS = _with_text(COLUMNS, "share", lambda row: f"{row.share:.1%}")


def kernel_table(profile: ProfileData) -> Markup:
    """Return a table with a row per kernel."""
    columns = [column for column in ROW_COLUMNS if column.name != "#"]
    caption = "Kernels: all launches of the same form together, without launching"
    return html_table("kernels-table", caption, columns, kernel_rows(profile), "kernel")


def execute_table(profile: ProfileData) -> Markup:
    """Return a table with a row per execute statement."""
    executes = execute_rows(profile)
    if len(executes) > MAX_ROWS:
        longest = sorted(range(len(executes)), key=lambda k: -executes[k].time_ns)[:MAX_ROWS]
        executes = tuple(executes[k] for k in sorted(longest))
    columns = [c for c in ROW_COLUMNS if c.name != "kernel" or len(profile.kernels) > 1]
    if any(row.places for row in executes):
        lines = Column[ProfileRow]("line", lambda row: ", ".join(map(str, row.places)) or "-")
        columns.insert([column.name for column in columns].index("shape"), lines)
    return html_table(
        "executes-table", "Executes: all runs in all launches", columns, executes, "#"
    )


def source_table(rows: Sequence[SourceRow]) -> Markup:
    """Return a table with a row per line of the user's program."""
    columns = _with_text(SOURCE_COLUMNS, "share", lambda row: f"{row.share:.1%}")
    caption = "Lines of the program: executes compiled from them, without launching"
    return html_table("sources-table", caption, columns, rows, "line")


# --- cores and counters -------------------------------------------------------------------------


def core_table(quantities: Sequence[CoreQuantity]) -> Markup:
    """Return a table with a row per core."""
    columns = [Column[int]("core", str, float), *map(_core_column, quantities)]
    cores = range(len(quantities[0][1]))
    return html_table("cores-table", "Work of every core", columns, cores, "core")


def _core_column(quantity: CoreQuantity) -> Column[int]:
    name, values, text = quantity
    return Column(name, lambda core: text(values[core]), lambda core: float(values[core]))


def counter_table(profile: ProfileData) -> Markup:
    """Return a table of the sums of all counters."""
    columns: tuple[Column[tuple[str, int]], ...] = (
        Column("counter", lambda row: row[0]),
        Column("sum", lambda row: f"{row[1]:,}", lambda row: row[1]),
    )
    rows = profile.counters.by_name.items()
    return html_table("counters-table", "Counters of all executes", columns, rows, "counter")


def balance_text(profile: ProfileData) -> str:
    """Describe how evenly the work is divided among the cores."""
    busy = profile.core_busy_ns
    if not busy.any():
        return "No core worked."
    used = busy[busy > 0]
    return (
        f"{len(used)} of {len(busy)} cores work; the busiest {time_text(float(busy.max()))}, on "
        f"average {time_text(float(np.mean(used)))} where they do "
        f"({float(np.mean(used) / busy.max()):.0%} of the busiest)."
    )


MAX_MAPS = 8
"""The page shows the LX of at most so many kernels, those that take longest."""


def write_report(
    path: Path | str,
    profile: ProfileData,
    title: str = "spyre profile",
    watched: FirstDivergence | None = None,
) -> None:
    """Write the page, completely or not at all. ProfileError SPY782.

    ``watched``: the observer of a run with wrong results; the page then shows the mismatch.
    """
    write_whole(path, report_page(profile, title, watched).encode())


def report_page(
    profile: ProfileData, title: str = "spyre profile", watched: FirstDivergence | None = None
) -> str:
    """Return the text of the page; parameters as of `write_report`."""
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
            f"{'times on the CPU are' if profile.on_host else 'none is'} measured.",
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
    """Yield the key, the name and the content of every section."""
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
    """Return the buttons of the timeline; the script of the page shows them."""
    names = (("in", "Zoom in"), ("out", "Zoom out"), ("back", "Earlier"), ("on", "Later"))
    buttons = [tag("button", name, type="button", data_do=key) for key, name in names]
    shown = tag("output", "", aria_live="polite")
    most = repr(float(profile.makespan_ns))
    return tag("div", [*buttons, shown], class_="zoom", data_ns=most, hidden=True)


def _search() -> Markup:
    """Return the field that searches all tables; the script of the page shows it."""
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
    """Return the source lines of a bottleneck, at most `MAX_PLACES` of them."""
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
    caption = f"Collectives: time and bus bandwidth are {CAVEAT}"
    return html_table(
        "collectives-table", caption, COLLECTIVE_COLUMNS, collective_rows(profile), "collective"
    )


def _roofline(profile: ProfileData) -> Markup:
    roofline = roofline_of(profile)
    label = "Roofline: work per nanosecond over work per byte of HBM traffic, both logarithmic"
    return inside(
        [
            tag("p", f"Executes of {program_names(profile)}:"),
            chart(FRAME, label, roofline_chart(roofline)),
            legend(bound_names(roofline)),
            tag("p", EXPLANATION),
        ]
    )


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
        "One launch of each kernel: every rectangle is a range of the scratchpads from the write "
        "to the last use, which the tooltip names."
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
    """Return the chart of allocated bytes, with the peak of each region."""
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


# --- the mismatch ---------------------------------------------------------------------------------

_BLOCKS = 32, 64
"""Rows and columns of the map at most."""
_CORE_FRAME = Frame(height=64.0, left=110.0, bottom=30.0)
_ELEMENT_FRAME = Frame(height=360.0, left=110.0)


def mismatch_section(watched: FirstDivergence) -> Markup:
    """Return the section on the deviation that ``watched`` found, if any."""
    found = watched.found
    if found is None:
        return tag("p", "No execute deviates from a value that the function has.")
    of = f"output {found.value}" if found.is_of_output else f"execute {found.number}"
    return inside(
        [
            tag("pre", str(found.to_finding())),
            tag("p", f"Wrong elements of {of}: the fuller a cell, the more of its elements."),
            _wrong_cores(found),
            _wrong_elements(found),
            tag("ul", map(_verdict, _before(watched)), class_="facts"),
        ]
    )


def _wrong_cores(found: Deviation) -> Markup:
    """Draw a cell per core, darker the more of its elements are wrong."""
    shares = found.by_core
    names = [f"core {core}" if core >= 0 else "no core" for core in shares]
    cells = list(_share_cells(_CORE_FRAME, np.array([list(shares.values())]), names))
    label = tag("text", "cores", x=_CORE_FRAME.left - 8, y=_CORE_FRAME.top + 14, class_="tick end")
    ends = [(names[0], _CORE_FRAME.left, "tick"), (names[-1], _CORE_FRAME.end, "tick end")]
    ticks = [
        tag("text", name, x=x, y=_CORE_FRAME.base + 16, class_=style)
        for name, x, style in ends[: len(names)]
    ]
    return chart(_CORE_FRAME, "Share of wrong elements per core", [label, *cells, *ticks])


def _wrong_elements(found: Deviation) -> Markup:
    """Draw the tile in blocks: rows are the steps of its outer dims, columns the innermost dim."""
    rows = found.wrong.reshape(-1, found.wrong.shape[-1])
    shares = np.array(
        [
            [part.mean() for part in np.array_split(block, min(_BLOCKS[1], rows.shape[1]), axis=1)]
            for block in np.array_split(rows, min(_BLOCKS[0], len(rows)), axis=0)
        ]
    )
    outer = " x ".join(f"{d} {n}" for d, n in zip(found.dims, found.wrong.shape, strict=True))
    *_, last = found.dims
    middle = (_ELEMENT_FRAME.left + _ELEMENT_FRAME.end) / 2
    names = [
        tag("text", text, x=x, y=y, class_=style)
        for text, x, y, style in (
            ("0", _ELEMENT_FRAME.left - 8, _ELEMENT_FRAME.top + 10, "tick end"),
            (f"{len(rows) - 1:,}", _ELEMENT_FRAME.left - 8, _ELEMENT_FRAME.base, "tick end"),
            ("0", _ELEMENT_FRAME.left, _ELEMENT_FRAME.base + 16, "tick"),
            (f"{rows.shape[1] - 1:,}", _ELEMENT_FRAME.end, _ELEMENT_FRAME.base + 16, "tick end"),
            (f"{outer}, {last} to the right", middle, _ELEMENT_FRAME.height - 6, "axis middle"),
        )
    ]
    return chart(
        _ELEMENT_FRAME, "Share of wrong elements", [*_share_cells(_ELEMENT_FRAME, shares), *names]
    )


def _share_cells(frame: Frame, shares: Float64Array, names: Sequence[str] = ()) -> Iterator[Markup]:
    rows, columns = shares.shape
    width, height = (frame.end - frame.left) / columns, (frame.base - frame.top) / rows
    for (row, column), share in np.ndenumerate(shares):
        name = f"{names[column]}: " if names else ""
        yield tag(
            "rect",
            tag("title", f"{name}{share:.0%} wrong"),
            x=frame.left + column * width,
            y=frame.top + row * height,
            width=width,
            height=height,
            class_="content colour-5",
            fill_opacity=f"{0.06 + 0.94 * share:.2f}",
        )


def _before(watched: FirstDivergence) -> Iterator[ExecuteVerdict]:
    for verdict in watched.verdicts.values():
        if verdict.deviated:
            return
        yield verdict


def _verdict(verdict: ExecuteVerdict) -> Markup:
    known = f"agrees with {verdict.value}" if verdict.agreed else "no value is known"
    return tag("li", f"before it, execute {verdict.number}: {verdict.operation}: {known}")
