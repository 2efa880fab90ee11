"""The report of a profile: one HTML page of sections with tables, charts and bottlenecks.

Executes of one kernel with the same operation and shape count as one bottleneck, since they are
often one unrolled loop. The advice follows from the terms of the cost model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import starmap
from operator import add
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre import __version__
from spyre.hw.cost import CAVEAT, TERMS_OF, Bound
from spyre.runtime.drawing import (
    Column,
    Markup,
    Section,
    breakable,
    chart,
    document,
    html_table,
    inside,
    legend,
    tag,
    theme_button,
)
from spyre.runtime.profile.charts import (
    MAX_LIFETIMES,
    core_charts,
    core_quantities,
    hbm_chart,
    left_out,
    lx_chart,
    timeline_chart,
)
from spyre.runtime.profile.collectives import COLLECTIVE_COLUMNS, collective_rows
from spyre.runtime.profile.kernels import PART, ExecuteProfile, KernelProfile
from spyre.runtime.profile.profile import Profile
from spyre.runtime.profile.roofline import (
    EXPLANATION,
    FRAME,
    bound_names,
    program_names,
    roofline_chart,
    roofline_of,
)
from spyre.runtime.profile.table import (
    COLUMNS,
    SOURCE_COLUMNS,
    Places,
    ProfileRow,
    SourceRow,
    execute_rows,
    kernel_rows,
    places_of,
    reuse_text,
    source_rows,
    summary_lines,
    time_text,
    total_row,
)
from spyre.runtime.trace import region_name
from spyre.runtime.units import format_bytes, format_count

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


def execute_table(profile: Profile) -> Markup:
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


def _core_column(name: str, values: npt.NDArray[Any], text: Callable[[float], str]) -> Column[int]:
    return Column(name, lambda core: text(values[core]), lambda core: float(values[core]))


def counter_table(profile: Profile) -> Markup:
    """Return a table of the sums of all counters."""
    columns: tuple[Column[tuple[str, int]], ...] = (
        Column("counter", lambda row: row[0]),
        Column("sum", lambda row: f"{row[1]:,}", lambda row: row[1]),
    )
    rows = profile.counters.by_name.items()
    return html_table("counters-table", "Counters of all executes", columns, rows, "counter")


def balance_text(profile: Profile) -> str:
    """Describe how evenly the work is divided among the cores."""
    busy = profile.per_core.busy_ns
    if not busy.any():
        return "No core worked."
    used = busy[busy > 0]
    return (
        f"{len(used)} of {len(busy)} cores work; the busiest {time_text(float(busy.max()))}, on "
        f"average {time_text(float(np.mean(used)))} where they do "
        f"({float(np.mean(used) / busy.max()):.0%} of the busiest)."
    )


# --- bottlenecks --------------------------------------------------------------------------------

MOST = 5
_UNEVEN = 1.2
"""Work of the busiest core over the mean, above which another division of the work is advised."""


class Bottleneck(msgspec.Struct, frozen=True):
    """``share``: part of the time of kernels, launches and operations on the host. ``saved_ns``:
    upper bound of the time that could be saved, None if unknown. ``places``: lines of the program.
    """

    name: str
    kernel: str
    time_ns: float
    share: float
    why: str
    help: str
    saved_ns: float | None = None
    places: Places = ()


def bottlenecks_of(profile: Profile) -> tuple[Bottleneck, ...]:
    """Return at most `MOST` bottlenecks, the largest first."""
    found = [
        *_launching_bottleneck(profile),
        *_execute_bottlenecks(profile),
        *_host_bottlenecks(profile),
    ]
    found.sort(key=lambda each: -each.time_ns)
    return tuple(each for each in found[:MOST] if each.time_ns)


def _whole_ns(profile: Profile) -> float:
    """The time of which bottlenecks are shares: of kernels, launches and operations on the host."""
    return profile.kernel_ns + sum(each.seconds for each in profile.on_host) * 1e9 or 1.0


def _launching_bottleneck(profile: Profile) -> Iterator[Bottleneck]:
    launches = len(profile.launches)
    if not launches:
        return
    each_ns = profile.launch_ns / launches
    time, times = time_text(each_ns), "launch" if launches == 1 else "launches"
    yield Bottleneck(
        "launching",
        "",
        profile.launch_ns,
        profile.launch_ns / _whole_ns(profile),
        f"{launches:,} {times}, {time} for each, however little it computes",
        "fewer and larger programs: torch.compile makes one of many operations; larger batches",
    )


def _host_bottlenecks(profile: Profile) -> Iterator[Bottleneck]:
    """Yield operations that ran on the host, whose time is measured and beside that of kernels."""
    for each in profile.on_host:
        time_ns = each.seconds * 1e9
        calls = "call" if each.calls == 1 else "calls"
        yield Bottleneck(
            f"{each.name} on the host",
            "",
            time_ns,
            time_ns / _whole_ns(profile),
            f"{each.calls:,} {calls} without a kernel on the card, measured on this host with its "
            "copies, not modelled",
            "operations with a kernel on the card; SPYRE_FALLBACK=error raises at the first call",
        )


def _execute_bottlenecks(profile: Profile) -> Iterator[Bottleneck]:
    groups: dict[tuple[int, str, str, int], list[tuple[KernelProfile, ExecuteProfile]]] = {}
    for kernel, execute in profile.executes:
        key = id(kernel), execute.op, execute.shape, len(execute.cores)
        groups.setdefault(key, []).append((kernel, execute))
    for members in groups.values():
        (kernel, first), executes = members[0], [execute for _, execute in members]
        time_ns = sum(execute.total_ns for execute in executes)
        alike = f" (and {len(executes) - 1} more like it)" if len(executes) > 1 else ""
        yield Bottleneck(
            f"execute {first.index}{alike}: {first.op} ({first.shape})",
            kernel.name,
            time_ns,
            time_ns / _whole_ns(profile),
            _why(profile, executes),
            "; ".join(_helps(profile, first)),
            sum(_saved(execute) for execute in executes),
            places_of(kernel, executes),
        )


def _why(profile: Profile, executes: list[ExecuteProfile]) -> str:
    work = reduce(add, (execute.counters for execute in executes))
    rate = work.memory_bytes / (sum(execute.total_ns for execute in executes) or 1.0)
    peak = rate / profile.machine.hardware.hbm_peak_gbps
    moved, lx, ring = map(format_bytes, (work.memory_bytes, work.lx_bytes, work.ring_bytes))
    return {
        Bound.MEMORY: f"waits for HBM: {moved}, {rate:.3g} GB/s, {peak:.0%} of peak",
        Bound.RING: f"waits for the ring between the cores: {ring}",
        Bound.RUNS: f"begins {work.executions:,} runs, each over little work",
        Bound.PT: f"computes products: {format_count(work.multiply_adds)} multiply-adds",
        Bound.LX: f"waits for the scratchpads: {lx}",
        Bound.SFU: f"computes on the vector units: {format_count(work.element_operations)} element "
        "operations",
    }[executes[0].bound]


def _helps(profile: Profile, execute: ExecuteProfile) -> Iterator[str]:
    """Yield advice for an execute, the most specific first."""
    cores, used = profile.machine.hardware.cores, len(execute.cores)
    if used < cores:
        yield f"divide it among more cores: {used} of {cores} work"
    most = float(execute.core_shares.max()) / float(execute.core_shares[list(execute.cores)].mean())
    if most > _UNEVEN:
        yield f"divide it evenly: the busiest core does {most:.2g} times the mean"
    terms, total = execute.time.terms, execute.time.total_ns or 1.0
    if terms.tile > PART * total:
        yield "tiles of another height: rows of this one are read in short pieces"
    if terms.spill > PART * total:
        yield "another division or layout of the product: its operands are read again"
    in_lx = "more of its" if execute.counters.lx_bytes else "its"
    yield {
        Bound.MEMORY: f"keep {in_lx} operands or its result in LX between executes",
        Bound.RING: "divide another dim than the one it sums over, so that no partial sums meet",
        Bound.RUNS: "larger tiles, so that loops have fewer trips",
        Bound.PT: "formats of 8 or 4 bits, which the arrays multiply faster",
        Bound.SFU: "fewer operations per element",
        Bound.LX: "fewer passes over what is in the scratchpads",
    }[execute.bound]


def _saved(execute: ExecuteProfile) -> float:
    """Return the time, in ns, that all launches would save without the term it is bound by."""
    terms = execute.time.terms
    # Without the largest term, the terms that overlapped with it are no longer hidden.
    without = replace(terms, overlap=0.0, **dict.fromkeys(TERMS_OF[execute.bound], 0.0))
    return max(terms.total - without.total, 0.0) * execute.launches


# --- the page -------------------------------------------------------------------------------------

MAX_MAPS = 8
"""The page shows the LX of at most so many kernels, those that take longest."""


def report_page(
    profile: Profile, title: str = "spyre profile", more: Sequence[Section] = ()
) -> str:
    """Return the text of the page; parameters as of `Profile.report`."""
    summary, *others = _sections(profile)
    sections = [summary, *more, *others]
    subtitle = (
        f"machine {profile.machine.name} · cost model {profile.cost_model} · {profile.overlap} · "
        f"{_plural(len(profile.kernels), 'kernel')}, "
        f"{_plural(len(profile.launches), 'launch', 'launches')}"
    )
    links = [tag("a", name, href=f"#{key}") for key, name, _ in sections]
    body = [
        tag("a", "Skip to the summary", href="#summary", class_="skip"),
        tag("header", [tag("h1", breakable(title)), theme_button(), tag("p", subtitle)]),
        tag("nav", [*links, *SEARCH], aria_label="Sections"),
        tag("main", [_section(key, name, content) for key, name, content in sections]),
        tag(
            "footer",
            f"spyre {__version__}. All times of the card are modelled; "
            f"{'times on the CPU are' if profile.on_host else 'none is'} measured.",
        ),
    ]
    return document(title, body)


SEARCH = (
    tag("input", type="search", id="search", placeholder="Search the tables",
        aria_label="Search the tables", hidden=True),
    tag("output", "", id="matches", for_="search"),
)  # fmt: skip
"""The field that searches all tables, which the script of the page shows."""


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _section(key: str, name: str, content: Markup) -> Markup:
    heading = tag("h2", name, id=f"{key}-title")
    return tag("section", [heading, content], id=key, aria_labelledby=f"{key}-title")


def _sections(profile: Profile) -> Iterator[Section]:
    """Yield the key, the name and the content of every section."""
    yield "bottlenecks", "Bottlenecks", _bottlenecks(profile)
    yield "summary", "Summary", _summary(profile)
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


def _summary(profile: Profile) -> Markup:
    total = total_row(profile)
    hbm_peak = "-" if profile.hbm is None else f"{format_bytes(profile.hbm.peak_bytes)} at most"
    tiles = (
        ("First to last", time_text(profile.makespan_ns)),
        ("On the cores", time_text(profile.compute_ns)),
        ("Launching", time_text(profile.launch_ns)),
        ("HBM traffic", format_bytes(total.hbm_bytes)),
        ("HBM rate", _rate_text(total)),
        ("LX reuse", reuse_text(total)),
        ("LX peak of a core", format_bytes(profile.lx_peak_bytes)),
        ("HBM allocated", hbm_peak),
    )
    shown = [
        tag("div", [tag("dt", name), tag("dd", value)]) for name, value in tiles if value != "-"
    ]
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


def _zoom(profile: Profile) -> Markup:
    """Return the buttons of the timeline; the script of the page shows them."""
    names = (("in", "Zoom in"), ("out", "Zoom out"), ("back", "Earlier"), ("on", "Later"))
    buttons = [tag("button", name, type="button", data_do=key) for key, name in names]
    shown = tag("output", "", aria_live="polite")
    most = repr(float(profile.makespan_ns))
    return tag("div", [*buttons, shown], class_="zoom", data_ns=most, hidden=True)


def _bottlenecks(profile: Profile) -> Markup:
    found = bottlenecks_of(profile)
    if not found:
        return tag("p", "Nothing ran on the cores.")
    several = len(profile.kernels) > 1
    return tag("ol", [tag("li", _bottleneck(each, several)) for each in found], class_="causes")


def _bottleneck(found: Bottleneck, with_kernel: bool) -> Markup:
    kernel = f" of {found.kernel}" if with_kernel and found.kernel else ""
    saved = f" (at most {time_text(found.saved_ns)} less)" if found.saved_ns else ""
    bar = tag("i", "", style=f"width: {min(found.share, 1.0):.1%}")
    lines = [
        tag("strong", f"{found.name}{kernel}"),
        tag("span", bar, class_="share", aria_hidden="true"),
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


def _rate_text(total: ProfileRow) -> str:
    if not total.hbm_gbps:
        return "-"
    return f"{total.hbm_gbps:.3g} GB/s, {total.hbm_gbps / total.hbm_roof:.0%} of peak"


def _kernels(profile: Profile) -> Markup:
    executes = [tag("summary", "Every execute"), execute_table(profile)]
    is_open = len(profile.kernels) == 1
    columns = [column for column in ROW_COLUMNS if column.name != "#"]
    caption = "Kernels: all launches of the same form together, without launching"
    table = html_table("kernels-table", caption, columns, kernel_rows(profile), "kernel")
    return inside([table, tag("details", executes, open=is_open)])


def _collectives(profile: Profile) -> Markup:
    caption = f"Collectives: time and bus bandwidth are {CAVEAT}"
    return html_table(
        "collectives-table", caption, COLLECTIVE_COLUMNS, collective_rows(profile), "collective"
    )


def _roofline(profile: Profile) -> Markup:
    roofline = roofline_of(profile)
    label = "Roofline: work per nanosecond over work per byte of HBM traffic, both logarithmic"
    return inside(
        [
            tag("p", breakable(f"Executes of {program_names(profile)}:")),
            chart(FRAME, label, roofline_chart(roofline)),
            legend(bound_names(roofline)),
            tag("p", EXPLANATION),
        ]
    )


def _lx(profile: Profile) -> Markup:
    users = [kernel for kernel in profile.kernels if kernel.view.lx_accesses.highest]
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
    highest = kernel.view.lx_accesses.highest
    head = f"{kernel.name}: at most {peak} of a core in use, up to {highest:#x}"
    parts = [tag("summary", breakable(head)), lx_chart(kernel)]
    if left_out(kernel):
        parts.append(
            tag("p", f"The first {MAX_LIFETIMES}; {left_out(kernel)} later ones are left out.")
        )
    return tag("details", parts, open=is_open)


def _hbm(profile: Profile) -> Markup:
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
        (f"colour-{k}", f"{region_name(k)}: {format_bytes(size_bytes)}")
        for k, size_bytes in enumerate(occupancy.region_peak_bytes)
        if size_bytes
    )
    return inside([tag("p", text), hbm_chart(occupancy, profile.makespan_ns), legend(names)])


def _cores(profile: Profile) -> Markup:
    shown = core_quantities(profile.per_core)
    text = (
        f"{balance_text(profile)} Dashed lines are means of the cores that have some; beside the "
        "name of a quantity is the core that has most over that mean."
    )
    columns = [Column[int]("core", str, float), *starmap(_core_column, shown)]
    cores = range(len(profile.per_core.busy_ns))
    table = html_table("cores-table", "Work of every core", columns, cores, "core")
    table = tag("details", [tag("summary", "Every core"), table])
    return inside([tag("p", text), core_charts(shown), table])
