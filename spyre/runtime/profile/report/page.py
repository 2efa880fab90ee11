"""The page: sections one below another, with style and script inside it.

It loads nothing and sends nothing; its security policy says so. All text is escaped on its way in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spyre import __version__
from spyre.hw.cost.times import Bound
from spyre.runtime.flex.trace_counters import region_name
from spyre.runtime.profile.files import write_whole
from spyre.runtime.profile.profile_data import LAUNCH, KernelProfile, ProfileData
from spyre.runtime.profile.report.core_charts import core_charts, quantities
from spyre.runtime.profile.report.document import document, theme_button
from spyre.runtime.profile.report.hbm_chart import hbm_chart, used_regions
from spyre.runtime.profile.report.lx_chart import MAX_DRAWN, left_out, lx_chart
from spyre.runtime.profile.report.roofline_chart import roofline_chart
from spyre.runtime.profile.report.svg import Markup, inside, tag
from spyre.runtime.profile.report.tables import (
    balance_text,
    core_table,
    counter_table,
    execute_table,
    kernel_table,
    legend,
)
from spyre.runtime.profile.report.timeline_chart import timeline_chart
from spyre.runtime.profile.roofline import roofline_of
from spyre.runtime.profile.rows import Row, total_row
from spyre.runtime.profile.table import reuse_text, summary_lines, time_text
from spyre.runtime.units import format_bytes

MAX_MAPS = 8
"""Kernels whose LX is shown: those that take longest."""


def write_report(path: Path | str, profile: ProfileData, title: str = "spyre profile") -> None:
    """Write the page; the file appears whole or not at all. ProfileError SPY782."""
    write_whole(path, report_page(profile, title).encode())


def report_page(profile: ProfileData, title: str = "spyre profile") -> str:
    """The page as text."""
    sections = list(_sections(profile))
    links = [tag("a", name, href=f"#{key}") for key, name, _ in sections]
    body = [
        tag("a", "Skip to the summary", href="#summary", class_="skip"),
        tag("header", [tag("h1", title), theme_button(), tag("p", _subtitle(profile))]),
        tag("nav", links, aria_label="Sections"),
        tag("main", [_section(key, name, content) for key, name, content in sections]),
        tag(
            "footer", f"spyre {__version__}. All times are modelled, of the card; none is measured."
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
    yield "kernels", "Kernels", _kernels(profile)
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
        ("HBM rate", _rate(total)),
        ("LX reuse", reuse_text(total)),
        ("LX peak of a core", format_bytes(profile.lx_peak_bytes)),
        ("HBM allocated", _hbm_peak(profile)),
        ("Mostly bound by", total.bound),
    )
    shown = [tag("div", [tag("dt", name), tag("dd", value)]) for name, value in tiles]
    lines = tag("ul", [tag("li", line) for line in summary_lines(profile)], class_="facts")
    names = (
        ("bound-memory", "copy to card"),
        ("bound-ring", "copy to host"),
        ("bound-launch", "launch"),
        ("bound-pt", "compute"),
    )
    timeline = [tag("h3", "Timeline"), timeline_chart(profile), legend(names)]
    return inside([tag("dl", shown, class_="tiles"), *timeline, lines])


def _hbm_peak(profile: ProfileData) -> str:
    return "-" if profile.hbm is None else f"{format_bytes(profile.hbm.peak_bytes)} at most"


def _rate(total: Row) -> str:
    if not total.hbm_gbps:
        return "-"
    return f"{total.hbm_gbps:.3g} GB/s, {total.hbm_gbps / total.hbm_roof:.0%} of peak"


def _kernels(profile: ProfileData) -> Markup:
    executes = [tag("summary", "Every execute"), execute_table(profile)]
    is_open = len(profile.kernels) == 1
    return inside([kernel_table(profile), tag("details", executes, open=is_open)])


def _roofline(profile: ProfileData) -> Markup:
    found = roofline_of(profile)
    names = [(f"bound-{bound}", f"bound by {bound}") for bound in (*Bound, LAUNCH)]
    used = {f"bound-{point.bound}" for point in found.points}
    text = (
        "Circles are products (multiply-adds on the pt arrays), squares everything else (points of "
        "the iteration space on the vector units). The larger, the more of the time. What moves "
        "nothing between HBM and the cores stands at the right edge."
    )
    shown = legend(entry for entry in names if entry[0] in used)
    return inside([roofline_chart(found), shown, tag("p", text)])


def _lx(profile: ProfileData) -> Markup:
    users = [kernel for kernel in profile.kernels if kernel.model.lx.highest]
    if not users:
        return tag("p", "No kernel uses the scratchpads.")
    longest = sorted(users, key=lambda kernel: -kernel.total_ns)[:MAX_MAPS]
    shown = [_map(kernel, number == 0) for number, kernel in enumerate(longest)]
    if len(users) > len(longest):
        shown.append(
            tag("p", f"{len(users) - len(longest)} kernels that take less time use LX too.")
        )
    text = (
        "One launch of each kernel: every rectangle is a range of the scratchpads from what writes "
        "it to its last use; point at one to see who that is."
    )
    return inside([tag("p", text), *shown])


def _map(kernel: KernelProfile, is_open: bool) -> Markup:
    peak = format_bytes(kernel.lx_peak_bytes)
    head = f"{kernel.name}: at most {peak} of a core in use, up to {kernel.model.lx.highest:#x}"
    parts = [tag("summary", head), lx_chart(kernel)]
    if left_out(kernel):
        parts.append(
            tag("p", f"The first {MAX_DRAWN}; {left_out(kernel)} later ones are left out.")
        )
    return tag("details", parts, open=is_open)


def _hbm(profile: ProfileData) -> Markup:
    """What is allocated when: a curve, and who it belongs to."""
    found = profile.hbm
    if found is None:
        return tag("p", "What was allocated in device memory has not been recorded.")
    first = time_text(found.peak_ns) if found.peak_ns else "the beginning"
    text = (
        f"At most {format_bytes(found.peak_bytes)} are allocated, first at {first}: tensors, pools "
        "and programs, with what was there before. Allocations and frees are in the order of the "
        "run, at the modelled end of what had ended before them."
    )
    names = (
        (f"colour-{k}", f"{region_name(k)}: {format_bytes(found.region_peak_bytes[k])}")
        for k in used_regions(found)
    )
    return inside([tag("p", text), hbm_chart(found, profile.makespan_ns), legend(names)])


def _cores(profile: ProfileData) -> Markup:
    shown = quantities(profile.per_core)
    text = (
        f"{balance_text(profile)} Dashed lines are means of the cores that have some; beside the "
        "name of a quantity is the core that has most over that mean."
    )
    table = tag("details", [tag("summary", "Every core"), core_table(shown)])
    return inside([tag("p", text), core_charts(shown), table])
