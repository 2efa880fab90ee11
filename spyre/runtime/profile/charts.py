"""The charts of the report: timeline, contents of LX and of HBM over time, work of every core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from spyre.hw.cost import Resource, TaskKind
from spyre.hw.counters import LxLifetimes, lifetimes
from spyre.hw.spec import REGIONS
from spyre.layout import Int64Array
from spyre.runtime.drawing import (
    COLOURS,
    Frame,
    Markup,
    category_scale,
    chart,
    inside,
    linear_ticks,
    plot,
    rectangle,
    tag,
    x_axis,
    y_axis,
)
from spyre.runtime.profile.kernels import CoreBalance, Float64Array, KernelProfile, imbalance
from spyre.runtime.profile.profile import HbmOccupancy, Profile
from spyre.runtime.profile.table import imbalance_text, time_text
from spyre.runtime.trace import region_name
from spyre.runtime.units import format_bytes

TIMELINE_FRAME = Frame(height=190.0)
LANES = tuple(Resource)
MAX_SPANS = 1500
"""The timeline shows at most so many spans, the longest."""


def timeline_chart(profile: Profile) -> Markup:
    """Draw a lane per resource."""
    most = profile.makespan_ns or 1.0
    lanes = category_scale("", [str(lane) for lane in reversed(LANES)])
    pieces = [
        x_axis(TIMELINE_FRAME, linear_ticks(most, time_text), "time"),
        y_axis(TIMELINE_FRAME, lanes.ticks, lanes.title),
        plot(TIMELINE_FRAME, _timeline_spans(profile, most)),
    ]
    return chart(TIMELINE_FRAME, "Timeline of host, DMA engine, launching and cores", pieces)


def _timeline_spans(profile: Profile, most: float) -> Iterator[Markup]:
    timeline = profile.timeline
    longest = sorted(range(len(timeline.tasks)), key=lambda k: -timeline.tasks[k].duration_ns)
    for number in sorted(longest[:MAX_SPANS]):
        task, span = timeline.tasks[number], timeline.spans[number]
        activity = profile.activities[profile.owners[number]]
        lane = LANES.index(task.resource)
        x = TIMELINE_FRAME.x(span.begin_ns / most)
        top = TIMELINE_FRAME.y((len(LANES) - lane - 0.15) / len(LANES))
        bottom = TIMELINE_FRAME.y((len(LANES) - lane - 0.85) / len(LANES))
        size = f", {format_bytes(activity.size_bytes)}" if activity.size_bytes else ""
        description = (
            f"{task.kind} {activity.name}{size}, stream {activity.stream}: "
            f"{time_text(span.begin_ns)} to {time_text(span.end_ns)}"
        )
        width = max(TIMELINE_FRAME.x(span.end_ns / most) - x, 0.75)
        style = f"span {_TASK_CLASSES[task.kind]}"
        yield rectangle(x, top, width, bottom - top, style, description, radius=None)


_TASK_CLASSES = {
    TaskKind.HOST: "bound-runs",
    TaskKind.COPY_IN: "bound-memory",
    TaskKind.COPY_OUT: "bound-ring",
    TaskKind.LAUNCH: "bound-launch",
    TaskKind.COMPUTE: "bound-pt",
    TaskKind.EXCHANGE: "bound-lx",
    TaskKind.ADD: "bound-sfu",
}

BINARY = (1, 2, 4, 8, 16)
"""Round numbers of bytes, see `linear_ticks`."""
LX_FRAME = Frame(height=300.0)
MAX_LIFETIMES = 1500
"""The chart shows at most so many contents, from the beginning of the kernel."""


def lx_chart(kernel: KernelProfile) -> Markup:
    """Draw the first `MAX_LIFETIMES` contents of the scratchpads in one launch."""
    contents = lifetimes(kernel.view.lx_accesses)
    total_ns, highest = kernel.one_ns, kernel.view.lx_accesses.highest
    drawn = np.argsort(contents.first, kind="stable")[:MAX_LIFETIMES]
    pieces = [
        x_axis(LX_FRAME, linear_ticks(total_ns, time_text), "time in the kernel"),
        y_axis(LX_FRAME, linear_ticks(float(highest), format_bytes, BINARY), "LX address"),
        *_lifetime_rectangles(kernel, contents, drawn.tolist(), highest),
    ]
    label = f"LX of {kernel.name} over time: addresses upwards, time to the right"
    return chart(LX_FRAME, label, pieces)


def left_out(kernel: KernelProfile) -> int:
    """Return how many contents `lx_chart` does not draw."""
    return max(len(lifetimes(kernel.view.lx_accesses)) - MAX_LIFETIMES, 0)


def _lifetime_rectangles(
    kernel: KernelProfile, contents: LxLifetimes, drawn: list[int], highest: int
) -> Iterator[Markup]:
    total_ns = kernel.one_ns
    begin, end = kernel.begin_ns[contents.first], kernel.end_ns[contents.last]
    ranges = np.unique(np.stack([contents.low, contents.high], axis=1), axis=0).tolist()
    colour = {tuple(each): k % COLOURS for k, each in enumerate(ranges)}
    for k in drawn:
        low, high = int(contents.low[k]), int(contents.high[k])
        x, right = LX_FRAME.x(begin[k] / total_ns), LX_FRAME.x(end[k] / total_ns)
        y, bottom = LX_FRAME.y(high / highest), LX_FRAME.y(low / highest)
        title = _lifetime_text(kernel, contents, k, float(begin[k]), float(end[k]))
        size, style = max(float(right - x), 0.75), f"content colour-{colour[low, high]}"
        yield rectangle(float(x), y, size, max(bottom - y, 1.0), style, title, radius=None)
        name = kernel.by_statement[int(contents.writer[k])].op
        if right - x > 8 * len(name) + 8 and bottom - y > 16:
            yield tag("text", name, x=float(x) + 5, y=y + 14, class_="inner")


def _lifetime_text(
    kernel: KernelProfile, contents: LxLifetimes, k: int, begin: float, end: float
) -> str:
    low, high = int(contents.low[k]), int(contents.high[k])
    writer = kernel.by_statement[int(contents.writer[k])].op
    reader = kernel.by_statement[int(contents.reader[k])].op
    source = f"written by {writer}" if contents.written[k] else f"there before, read by {writer}"
    return (
        f"{low:#x} to {high:#x} ({format_bytes(high - low)}): {source}, last used by {reader}, "
        f"{time_text(begin)} to {time_text(end)}"
    )


HBM_FRAME = Frame(height=260.0)
MAX_STEPS = 1000
"""The chart shows at most so many moments, of neighbours the fullest."""


def hbm_chart(occupancy: HbmOccupancy, makespan_ns: float) -> Markup:
    """Draw an area per used region, over the whole time."""
    thin = occupancy.thinned()
    times, rows = _fullest(thin.time_ns, thin.allocated_bytes)
    end = max(makespan_ns, float(times[-1])) or 1.0
    most = float(max(occupancy.peak_bytes, 1))
    ticks = linear_ticks(most, format_bytes, BINARY)
    pieces = [
        x_axis(HBM_FRAME, linear_ticks(end, time_text), "time"),
        y_axis(HBM_FRAME, ticks, "allocated"),
        *_region_areas(np.append(times, end) / end, rows, most),
    ]
    return chart(HBM_FRAME, "Bytes allocated in the regions of HBM over time", pieces)


def _fullest(times: Float64Array, rows: Int64Array) -> tuple[Float64Array, Int64Array]:
    """Return at most `MAX_STEPS` moments: of neighbours the one with the most bytes."""
    if len(times) <= MAX_STEPS:
        return times, rows
    edges = np.linspace(0, len(times), MAX_STEPS + 1).astype(np.int64)[:-1]
    # Of neighbours the fullest is drawn: a picture must not hide the peak.
    group = np.searchsorted(edges, np.arange(len(times)), side="right")
    order = np.lexsort((-rows.sum(axis=1), group))
    chosen = order[np.append(True, np.diff(group[order]) > 0)]
    return times[np.sort(chosen)], rows[np.sort(chosen)]


def _region_areas(parts: Float64Array, rows: Int64Array, most: float) -> Iterator[Markup]:
    """Draw stacked areas: each from the sum of the regions before it to the sum including it."""
    above = np.cumsum(rows, axis=1)
    x = np.repeat([HBM_FRAME.x(part) for part in parts.tolist()], 2)[1:-1]
    for region in range(REGIONS):
        if not rows[:, region].any():
            continue
        upper, lower = (
            np.repeat(HBM_FRAME.y(0) + (HBM_FRAME.y(1) - HBM_FRAME.y(0)) * edge / most, 2)
            for edge in (above[:, region], (above - rows)[:, region])
        )
        corners = [*zip(x, upper, strict=True), *zip(x[::-1], lower[::-1], strict=True)]
        description = f"{region_name(region)}: at most {format_bytes(int(rows[:, region].max()))}"
        yield tag(
            "polygon",
            tag("title", description),
            points=" ".join(f"{a:.1f},{b:.1f}" for a, b in corners),
            class_=f"content colour-{region}",
        )


CORE_FRAME = Frame(width=460.0, height=132.0, left=8.0, right=8.0, top=10.0, bottom=22.0)
CoreQuantity = tuple[str, Int64Array | Float64Array, Callable[[float], str]]
"""Name, values [CORES], and the text of a value."""


def core_quantities(cores: CoreBalance) -> tuple[CoreQuantity, ...]:
    """Return the quantities shown per core, in the order of the charts and the table's columns."""
    return (
        ("busy", cores.busy_ns, time_text),
        ("HBM read", cores.count("hbm_read_bytes"), format_bytes),
        ("HBM written", cores.count("hbm_written_bytes"), format_bytes),
        ("LX read", cores.count("lx_read_bytes"), format_bytes),
        ("LX written", cores.count("lx_written_bytes"), format_bytes),
        ("sent over the ring", cores.count("ring_bytes"), format_bytes),
        ("multiply-adds", cores.count("multiply_adds"), _number_text),
        ("element operations", cores.count("element_operations"), _number_text),
        ("sticks", cores.sticks, _number_text),
    )


def core_charts(quantities: Sequence[CoreQuantity]) -> Markup:
    """Draw a chart per quantity that some core has; name the others below."""
    used = [quantity for quantity in quantities if quantity[1].any()]
    unused = [name for name, values, _ in quantities if not values.any()]
    pieces = [tag("div", [_figure(*quantity) for quantity in used], class_="cores")]
    if unused:
        pieces.append(tag("p", f"No core has any of: {', '.join(unused)}."))
    return inside(pieces)


def _figure(name: str, values: Int64Array | Float64Array, text: Callable[[float], str]) -> Markup:
    used = values[values > 0]
    mean = float(used.mean())
    even = imbalance_text(imbalance(values))
    description = f"{text(float(values.max()))} at most, {text(mean)} mean of {len(used)} cores"
    label = f"{name} of every core: {description}, {even}"
    drawn = tag(
        "svg",
        [tag("title", label), *_bars(values.tolist(), text, mean)],
        viewBox=f"0 0 {CORE_FRAME.width:g} {CORE_FRAME.height:g}",
        role="img",
        aria_label=label,
        class_="chart",
    )
    head = [tag("strong", f"{name}, {even}"), tag("span", description)]
    return tag("figure", [tag("figcaption", head), drawn])


def _bars(values: Sequence[float], text: Callable[[float], str], mean: float) -> Iterator[Markup]:
    """Draw a bar per core, the number of every fourth core, and a line at the mean."""
    most, width = max(values), 1.0 / len(values)
    for core, value in enumerate(values):
        left, right = CORE_FRAME.x((core + 0.12) * width), CORE_FRAME.x((core + 0.88) * width)
        top = CORE_FRAME.y(value / most)
        height, title = CORE_FRAME.base - top, f"core {core}: {text(value)}"
        yield rectangle(left, top, right - left, height, "bar", title, radius=None)
        if core % 4 == 0:
            middle = (left + right) / 2
            yield tag("text", str(core), x=middle, y=CORE_FRAME.height - 6, class_="tick middle")
    y = CORE_FRAME.y(mean / most)
    yield tag("line", x1=CORE_FRAME.left, x2=CORE_FRAME.end, y1=y, y2=y, class_="mean")


def _number_text(value: float) -> str:
    return f"{round(value):,}" if value else "-"
