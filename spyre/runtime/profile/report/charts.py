"""The charts of the report as SVG: timeline, roofline, contents of LX and of HBM over time, work
of every core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import atan2, degrees, log10, sqrt

import numpy as np

from spyre.hw.cost import Resource, TaskKind
from spyre.hw.counters import LxLifetimes, lifetimes
from spyre.hw.spec import REGIONS
from spyre.layout import Int64Array
from spyre.runtime.profile.data import HbmOccupancy, ProfileData
from spyre.runtime.profile.kernels import CoreBalance, Float64Array, KernelProfile, imbalance
from spyre.runtime.profile.report.html import (
    Frame,
    Markup,
    chart,
    decade_ticks,
    inside,
    linear_ticks,
    plot,
    tag,
    x_axis,
    x_axis as axis_of_x,
    y_axis,
    y_axis as axis_of_y,
)
from spyre.runtime.profile.roofline import Roofline, RooflinePoint, RooflineRoof
from spyre.runtime.profile.table import imbalance_text, time_text
from spyre.runtime.trace import region_name
from spyre.runtime.units import format_bytes

TIMELINE_FRAME = Frame(height=190.0)
LANES = tuple(Resource)
MAX_SPANS = 1500
"""Spans of the timeline that are drawn at most: the longest."""


def timeline_chart(profile: ProfileData) -> Markup:
    """A lane per resource."""
    most = profile.makespan_ns or 1.0
    names = [((len(LANES) - k - 0.5) / len(LANES), lane) for k, lane in enumerate(LANES)]
    pieces = [
        x_axis(TIMELINE_FRAME, linear_ticks(most, time_text), "time"),
        y_axis(TIMELINE_FRAME, [(part, str(lane)) for part, lane in names], ""),
        plot(TIMELINE_FRAME, _timeline_spans(profile, most)),
    ]
    return chart(TIMELINE_FRAME, "What host, DMA engine, launching and cores do when", pieces)


def _timeline_spans(profile: ProfileData, most: float) -> Iterator[Markup]:
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
        yield tag(
            "rect",
            tag("title", description),
            x=x,
            y=top,
            width=max(TIMELINE_FRAME.x(span.end_ns / most) - x, 0.75),
            height=bottom - top,
            class_=f"span {_TASK_CLASSES[task.kind]}",
        )


_TASK_CLASSES = {
    TaskKind.HOST: "bound-runs",
    TaskKind.COPY_IN: "bound-memory",
    TaskKind.COPY_OUT: "bound-ring",
    TaskKind.LAUNCH: "bound-launch",
    TaskKind.COMPUTE: "bound-pt",
    TaskKind.EXCHANGE: "bound-lx",
    TaskKind.ADD: "bound-sfu",
}

ROOFLINE_FRAME = Frame(height=440.0)
MAX_POINTS = 400
"""Executes that are drawn at most: those that take longest."""


def roofline_chart(roofline: Roofline) -> Markup:
    """The chart; what has no traffic to HBM is drawn at the right edge."""
    points = sorted(roofline.points, key=lambda point: -point.share)[:MAX_POINTS]
    pieces = [
        axis_of_x(ROOFLINE_FRAME, decade_ticks(*roofline.x), "work per byte of HBM traffic"),
        axis_of_y(ROOFLINE_FRAME, decade_ticks(*roofline.y), "work per ns"),
        *(_drawn_roof(roofline, roof, number) for number, roof in enumerate(roofline.roofs)),
        *(_drawn_point(roofline, point) for point in points),
    ]
    label = "Roofline: work per nanosecond over work per byte of HBM traffic, both logarithmic"
    return chart(ROOFLINE_FRAME, label, pieces)


def _log_part(value: float, ends: tuple[float, float]) -> float:
    low, high = (log10(end) for end in ends)
    return min(max((log10(value) - low) / (high - low), 0.0), 1.0)


def _drawn_roof(roofline: Roofline, roof: RooflineRoof, number: int) -> Markup:
    line = list(_roof_line(roofline, roof))
    path = " ".join(f"{ROOFLINE_FRAME.x(x):.1f},{ROOFLINE_FRAME.y(y):.1f}" for x, y in line)
    drawn = tag("polyline", points=path, class_="roof dashed" if number == 1 else "roof")
    if roof.rate:
        y = ROOFLINE_FRAME.y(line[0][1])
        name = tag("text", roof.name, x=ROOFLINE_FRAME.end - 4, y=y - 5, class_="name end")
    else:
        (x, y), (right, top) = ((ROOFLINE_FRAME.x(a), ROOFLINE_FRAME.y(b)) for a, b in line)
        angle = degrees(atan2(top - y, right - x))
        turned = f"translate({(x + right) / 2:.1f} {(y + top) / 2:.1f}) rotate({angle:.2f})"
        name = tag(
            "text", roof.name, y=15 if number else -6, transform=turned, class_="name middle"
        )
    return inside([drawn, name])


def _roof_line(roofline: Roofline, roof: RooflineRoof) -> Iterator[tuple[float, float]]:
    """Two ends, as parts of the plot: a roof of bandwidth ends below the highest rate."""
    if roof.rate:
        y = _log_part(roof.rate, roofline.y)
        yield from ((0.0, y), (1.0, y))
        return
    low = max(roofline.x[0], roofline.y[0] / roof.gbps)
    high = min(roofline.x[1], max(r.rate for r in roofline.roofs) / roof.gbps)
    for x in (low, high):
        yield _log_part(x, roofline.x), _log_part(x * roof.gbps, roofline.y)


def _drawn_point(roofline: Roofline, point: RooflinePoint) -> Markup:
    x = ROOFLINE_FRAME.x(1.0 if point.intensity is None else _log_part(point.intensity, roofline.x))
    y, size = ROOFLINE_FRAME.y(_log_part(point.rate, roofline.y)), 5.0 + 14.0 * sqrt(point.share)
    where = "no HBM traffic" if point.intensity is None else f"{point.intensity:.3g} per byte"
    title = tag(
        "title",
        f"{point.label}: {point.rate:.3g} per ns, {where}, {point.share:.1%} of the time, "
        f"bound by {point.bound}",
    )
    shape = f"bound-{point.bound} point"
    if point.unit == "pt":
        return tag("circle", title, cx=x, cy=y, r=size, class_=shape)
    side = 1.8 * size
    return tag("rect", title, x=x - side / 2, y=y - side / 2, width=side, height=side, class_=shape)


LX_FRAME = Frame(height=300.0)
MAX_LIFETIMES = 1500
"""Contents that are drawn at most, from the beginning of the kernel."""
COLOURS = 8


def lx_chart(kernel: KernelProfile) -> Markup:
    """The first contents of the scratchpads in one launch, and how many there are more."""
    contents = lifetimes(kernel.model.lx)
    total_ns, highest = kernel.model.total_ns, kernel.model.lx.highest
    drawn = np.argsort(contents.first, kind="stable")[:MAX_LIFETIMES]
    pieces = [
        x_axis(LX_FRAME, linear_ticks(total_ns, time_text), "time in the kernel"),
        y_axis(LX_FRAME, linear_ticks(float(highest), _size_text, (1, 2, 4, 8, 16)), "LX address"),
        *_lifetime_rectangles(kernel, contents, drawn.tolist(), highest),
    ]
    label = f"LX of {kernel.name} over time: addresses upwards, time to the right"
    return chart(LX_FRAME, label, pieces)


def left_out(kernel: KernelProfile) -> int:
    """Contents that are not drawn."""
    return max(len(lifetimes(kernel.model.lx)) - MAX_LIFETIMES, 0)


def _lifetime_rectangles(
    kernel: KernelProfile, contents: LxLifetimes, drawn: list[int], highest: int
) -> Iterator[Markup]:
    model, total_ns = kernel.model, kernel.model.total_ns
    begin, end = model.begin_ns[contents.first], model.end_ns[contents.last]
    ranges = np.unique(np.stack([contents.low, contents.high], axis=1), axis=0).tolist()
    colour = {tuple(each): k % COLOURS for k, each in enumerate(ranges)}
    for k in drawn:
        low, high = int(contents.low[k]), int(contents.high[k])
        x, right = LX_FRAME.x(begin[k] / total_ns), LX_FRAME.x(end[k] / total_ns)
        y, bottom = LX_FRAME.y(high / highest), LX_FRAME.y(low / highest)
        title = tag("title", _lifetime_text(kernel, contents, k, float(begin[k]), float(end[k])))
        yield tag(
            "rect",
            title,
            x=float(x),
            y=y,
            width=max(float(right - x), 0.75),
            height=max(bottom - y, 1.0),
            class_=f"content colour-{colour[low, high]}",
        )
        name = kernel.execute_of(int(contents.writer[k])).op
        if right - x > 8 * len(name) + 8 and bottom - y > 16:
            yield tag("text", name, x=float(x) + 5, y=y + 14, class_="inner")


def _lifetime_text(
    kernel: KernelProfile, contents: LxLifetimes, k: int, begin: float, end: float
) -> str:
    low, high = int(contents.low[k]), int(contents.high[k])
    writer = kernel.execute_of(int(contents.writer[k])).op
    reader = kernel.execute_of(int(contents.reader[k])).op
    source = f"written by {writer}" if contents.written[k] else f"there before, read by {writer}"
    return (
        f"{low:#x} to {high:#x} ({format_bytes(high - low)}): {source}, last used by {reader}, "
        f"{time_text(begin)} to {time_text(end)}"
    )


def _size_text(value: float) -> str:
    return format_bytes(round(value)) if value else "0"


HBM_FRAME = Frame(height=260.0)
MAX_STEPS = 1000
"""Moments that are drawn at most; of several the fullest."""
BINARY = (1, 2, 4, 8, 16)


def hbm_chart(occupancy: HbmOccupancy, makespan_ns: float) -> Markup:
    """An area per region that is used, over the whole time."""
    thin = occupancy.thinned()
    times, rows = _fullest(thin.time_ns, thin.allocated_bytes)
    end = max(makespan_ns, float(times[-1])) or 1.0
    most = float(max(occupancy.peak_bytes, 1))
    ticks = linear_ticks(most, lambda value: format_bytes(round(value)) if value else "0", BINARY)
    pieces = [
        x_axis(HBM_FRAME, linear_ticks(end, time_text), "time"),
        y_axis(HBM_FRAME, ticks, "allocated"),
        *_region_areas(np.append(times, end) / end, rows, most),
    ]
    return chart(HBM_FRAME, "Bytes allocated in the regions of HBM over time", pieces)


def used_regions(occupancy: HbmOccupancy) -> list[int]:
    """Regions that hold something at some time."""
    return [k for k, size_bytes in enumerate(occupancy.region_peak_bytes) if size_bytes]


def _fullest(times: Float64Array, rows: Int64Array) -> tuple[Float64Array, Int64Array]:
    """At most `MAX_STEPS` moments, those with the most bytes of their neighbours."""
    if len(times) <= MAX_STEPS:
        return times, rows
    edges = np.linspace(0, len(times), MAX_STEPS + 1).astype(np.int64)[:-1]
    # Of neighbours the fullest is drawn: a picture must not hide the peak.
    group = np.searchsorted(edges, np.arange(len(times)), side="right")
    order = np.lexsort((-rows.sum(axis=1), group))
    chosen = order[np.append(True, np.diff(group[order]) > 0)]
    return times[np.sort(chosen)], rows[np.sort(chosen)]


def _region_areas(parts: Float64Array, rows: Int64Array, most: float) -> Iterator[Markup]:
    """Areas from the sum of the regions before to the sum with this one, in steps."""
    above = np.cumsum(rows, axis=1)
    x = np.repeat([HBM_FRAME.x(part) for part in parts.tolist()], 2)[1:-1]
    for region in range(REGIONS):
        if not rows[:, region].any():
            continue
        upper = np.repeat(
            HBM_FRAME.y(0) + (HBM_FRAME.y(1) - HBM_FRAME.y(0)) * above[:, region] / most, 2
        )
        lower = np.repeat(
            HBM_FRAME.y(0) + (HBM_FRAME.y(1) - HBM_FRAME.y(0)) * (above - rows)[:, region] / most, 2
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


@dataclass(frozen=True, eq=False)
class CoreQuantity:
    """``values``: [CORES]; ``text``: how one of them is shown."""

    name: str
    values: Int64Array | Float64Array
    text: Callable[[float], str]

    @property
    def imbalance(self) -> float | None:
        """The most over the mean of the cores that have some."""
        return imbalance(self.values)


def core_quantities(cores: CoreBalance) -> tuple[CoreQuantity, ...]:
    """What is shown of cores, in the order of the charts and of the table's columns."""
    return (
        CoreQuantity("busy", cores.busy_ns, time_text),
        CoreQuantity("HBM read", cores.count("hbm_read_bytes"), _bytes_text),
        CoreQuantity("HBM written", cores.count("hbm_written_bytes"), _bytes_text),
        CoreQuantity("LX read", cores.count("lx_read_bytes"), _bytes_text),
        CoreQuantity("LX written", cores.count("lx_written_bytes"), _bytes_text),
        CoreQuantity("sent over the ring", cores.count("ring_bytes"), _bytes_text),
        CoreQuantity("multiply-adds", cores.count("multiply_adds"), _number_text),
        CoreQuantity("element operations", cores.count("element_operations"), _number_text),
        CoreQuantity("sticks", cores.sticks, _number_text),
    )


def core_charts(shown: Sequence[CoreQuantity]) -> Markup:
    """A chart per quantity that any core has; what none has is named below."""
    used = [quantity for quantity in shown if quantity.values.any()]
    unused = [quantity.name for quantity in shown if not quantity.values.any()]
    pieces = [tag("div", [_figure(quantity) for quantity in used], class_="cores")]
    if unused:
        pieces.append(tag("p", f"No core has any of: {', '.join(unused)}."))
    return inside(pieces)


def _figure(quantity: CoreQuantity) -> Markup:
    values = quantity.values
    used = values[values > 0]
    most, mean = (quantity.text(float(value)) for value in (values.max(), used.mean()))
    even = imbalance_text(quantity.imbalance)
    description = f"{most} at most, {mean} mean of {len(used)} cores"
    label = f"{quantity.name} of every core: {description}, {even}"
    box = f"0 0 {CORE_FRAME.width:g} {CORE_FRAME.height:g}"
    drawn = tag(
        "svg",
        [tag("title", label), *_bars(quantity, float(used.mean()))],
        viewBox=box,
        role="img",
        aria_label=label,
        class_="chart",
    )
    head = [tag("strong", f"{quantity.name}, {even}"), tag("span", description)]
    return tag("figure", [tag("figcaption", head), drawn])


def _bars(quantity: CoreQuantity, mean: float) -> Iterator[Markup]:
    """A bar per core, the number of every fourth, and a line at the mean."""
    values = quantity.values.tolist()
    most, width = max(values), 1.0 / len(values)
    for core, value in enumerate(values):
        left, right = CORE_FRAME.x((core + 0.12) * width), CORE_FRAME.x((core + 0.88) * width)
        top = CORE_FRAME.y(value / most)
        yield tag(
            "rect",
            tag("title", f"core {core}: {quantity.text(value)}"),
            x=left,
            y=top,
            width=right - left,
            height=CORE_FRAME.base - top,
            class_="bar",
        )
        if core % 4 == 0:
            middle = (left + right) / 2
            yield tag("text", str(core), x=middle, y=CORE_FRAME.height - 6, class_="tick middle")
    y = CORE_FRAME.y(mean / most)
    yield tag("line", x1=CORE_FRAME.left, x2=CORE_FRAME.end, y1=y, y2=y, class_="mean")


def _bytes_text(value: float) -> str:
    return format_bytes(round(value)) if value else "-"


def _number_text(value: float) -> str:
    return f"{round(value):,}" if value else "-"
