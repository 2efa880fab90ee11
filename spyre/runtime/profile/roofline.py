"""The roofline of a profile: the executes, the roofs above them, and the chart of both.

Work is multiply-adds for products and points of the iteration space for other operations. The roof
of the first is the rate of the pt arrays, the roof of the others that of the vector units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import atan2, ceil, cos, degrees, floor, log10, sin, sqrt
from pathlib import Path
from textwrap import shorten

import msgspec

from spyre.errors import ProfileError
from spyre.hw.cost import Bound
from spyre.hw.counters import OperationCounts
from spyre.runtime.drawing import (
    Frame,
    Markup,
    Scale,
    axes,
    chart_block,
    inside,
    legend_block,
    log_scale,
    picture,
    tag,
    text_block,
)
from spyre.runtime.profile.files import check_target, write_whole
from spyre.runtime.profile.kernels import LAUNCH, ExecuteProfile
from spyre.runtime.profile.profile import Profile


class RooflinePoint(msgspec.Struct, frozen=True):
    """An execute. ``unit``: "pt" or "sfu". ``intensity``: work per byte over the memory interface,
    None without traffic. ``rate``: work per nanosecond. ``share``: part of the time of all kernels.
    """

    label: str
    unit: str
    intensity: float | None
    rate: float
    share: float
    bound: str


class RooflineRoof(msgspec.Struct, frozen=True):
    """An upper bound of the work per nanosecond: ``rate``, or ``gbps`` times the intensity."""

    name: str
    rate: float = 0.0
    gbps: float = 0.0


class Roofline(msgspec.Struct, frozen=True):
    """Points and roofs. ``x``, ``y``: ranges of the axes, powers of ten."""

    points: tuple[RooflinePoint, ...]
    roofs: tuple[RooflineRoof, ...]
    x: tuple[float, float]
    y: tuple[float, float]


def roofline_of(profile: Profile) -> Roofline:
    """Return the roofline; executes that take no time or do no work are left out."""
    points = tuple(
        _roofline_point(profile, e) for _, e in profile.executes if e.total_ns and _work(e.counts)
    )
    roofs = _roofs(profile)
    xs = [p.intensity for p in points if p.intensity is not None]
    flat = [roof.rate for roof in roofs if roof.rate]
    gbps = max(roof.gbps for roof in roofs)
    # Where the slanted roof meets the flat ones has to be in the picture, points or not.
    knees = [rate / gbps for rate in flat]
    rates = [p.rate for p in points] + flat
    return Roofline(
        points, roofs, _decades([*xs, *knees]), _decades([*rates, min(xs + knees) * gbps])
    )


def _roofline_point(profile: Profile, execute: ExecuteProfile) -> RooflinePoint:
    counts = execute.counts
    work = _work(counts)
    return RooflinePoint(
        f"{execute.index} {execute.op} ({execute.shape})",
        "pt" if counts.counters.multiply_adds else "sfu",
        work / counts.hbm_bytes if counts.hbm_bytes else None,
        work / execute.time.total_ns,
        execute.total_ns / profile.kernel_ns,
        str(execute.bound),
    )


def _work(counts: OperationCounts) -> int:
    return counts.counters.multiply_adds or counts.counters.element_operations


def _roofs(profile: Profile) -> tuple[RooflineRoof, ...]:
    """Return the roofs of the machine, that of the pt arrays for each format of the products."""
    machine = profile.machine
    hw = machine.hardware
    formats = {e.counts.mac_format for _, e in profile.executes if e.counters.multiply_adds}
    measured_gbps = machine.calibration.stream_gbps
    return (
        RooflineRoof(f"HBM peak, {hw.hbm_peak_gbps:g} GB/s", gbps=hw.hbm_peak_gbps),
        RooflineRoof(f"HBM as measured, {measured_gbps:g} GB/s", gbps=measured_gbps),
        RooflineRoof("vector units", rate=hw.cores * hw.sfu_per_ns),
        *(
            RooflineRoof(f"pt arrays, {each}", rate=hw.cores * hw.pt_per_ns(each))
            for each in sorted(formats) or ["SEN169_FP16"]
        ),
    )


def _decades(values: list[float]) -> tuple[float, float]:
    """Return the powers of ten below and above positive values."""
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


# --- the chart ------------------------------------------------------------------------------------

FRAME = Frame(height=440.0)
MAX_POINTS = 400
"""The chart shows at most so many executes, those that take longest."""
MAX_LABELS = 8
"""Executes whose name is written beside the point, those that take longest."""
_NEAR = 4.0
"""Distance of positions, in units of the chart, within which points share a label."""
EXPLANATION = (
    "Circles are products (multiply-adds on the pt arrays), squares all other operations (points "
    "of the iteration space on the vector units). Larger marks take more of the time. Executes "
    "that move no bytes between HBM and the cores are at the right edge."
)


def roofline_chart(roofline: Roofline) -> Markup:
    """Return the content of the chart, both scales logarithmic."""
    x = log_scale("work per byte of HBM traffic", *roofline.x)
    y = log_scale("work per ns", *roofline.y)
    points = sorted(roofline.points, key=lambda point: -point.share)[:MAX_POINTS]
    drawn = [(point, *_position(point, x, y)) for point in points]
    roofs = [_roof(roofline, roof, number, x, y) for number, roof in enumerate(roofline.roofs)]
    occupied = [box for _, boxes in roofs for box in boxes]
    occupied += [(px - s, py - s, px + s, py + s) for p, px, py in drawn for s in [_size(p)]]
    return inside(
        [
            axes(FRAME, x, y),
            *(markup for markup, _ in roofs),
            *(_point(point, px, py) for point, px, py in drawn),
            *_labels(drawn[:MAX_LABELS], occupied),
        ]
    )


def bound_names(roofline: Roofline) -> list[tuple[str, str]]:
    """Return the legend of the colours that the points have: (CSS class, name)."""
    used = {point.bound for point in roofline.points}
    return [(f"bound-{b}", f"bound by {b}") for b in (*Bound, LAUNCH) if b in used]


_Box = tuple[float, float, float, float]
"""Left, top, right and lower edge."""


def _roof(
    roofline: Roofline, roof: RooflineRoof, number: int, x: Scale, y: Scale
) -> tuple[Markup, list[_Box]]:
    """Return the line with its name, and boxes around the name. The second roof is dashed."""
    (left, base), (right, top) = (
        (FRAME.x(x.part(a)), FRAME.y(y.part(b))) for a, b in _roof_ends(roofline, roof)
    )
    points = f"{left:.1f},{base:.1f} {right:.1f},{top:.1f}"
    line = tag("polyline", points=points, class_="roof dashed" if number == 1 else "roof")
    length = 6.5 * len(roof.name)
    if roof.rate:
        name = tag("text", roof.name, x=FRAME.end - 4, y=top - 5, class_="name end")
        return inside([line, name]), [(FRAME.end - 4 - length, top - 16, FRAME.end, top + 2)]
    middle_x = (left + right) / 2
    middle_y = (base + top) / 2
    angle = atan2(top - base, right - left)
    turned = f"translate({middle_x:.1f} {middle_y:.1f}) rotate({degrees(angle):.2f})"
    name = tag("text", roof.name, y=15 if number else -6, transform=turned, class_="name middle")
    steps = [length * (k / 10 - 0.5) for k in range(11)]
    centres = [(middle_x + step * cos(angle), middle_y + step * sin(angle)) for step in steps]
    return inside([line, name]), [(a - 12, b - 16, a + 12, b + 16) for a, b in centres]


def _roof_ends(roofline: Roofline, roof: RooflineRoof) -> tuple[tuple[float, float], ...]:
    """Return both ends of a roof; one of bandwidth ends at the highest rate."""
    if roof.rate:
        return tuple((x, roof.rate) for x in roofline.x)
    low = max(roofline.x[0], roofline.y[0] / roof.gbps)
    high = min(roofline.x[1], max(r.rate for r in roofline.roofs) / roof.gbps)
    return tuple((x, x * roof.gbps) for x in (low, high))


def _position(point: RooflinePoint, x: Scale, y: Scale) -> tuple[float, float]:
    part = 1.0 if point.intensity is None else x.part(point.intensity)
    return FRAME.x(part), FRAME.y(y.part(point.rate))


def _point(point: RooflinePoint, x: float, y: float) -> Markup:
    size = _size(point)
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


def _size(point: RooflinePoint) -> float:
    """Return the radius of the mark, in units of the chart."""
    return 5.0 + 14.0 * sqrt(point.share)


def _labels(
    points: Sequence[tuple[RooflinePoint, float, float]], occupied: list[_Box]
) -> Iterator[Markup]:
    """Yield the number and operation of each execute, in a free place beside its point.

    Executes at nearly the same position have one label. A label without a free place is left out:
    the tooltip of the point has the same text.
    """
    places: dict[tuple[float, float, float], dict[str, list[str]]] = {}
    for point, x, y in points:
        number, op = point.label.split(" (")[0].split(" ", 1)
        near = (k for k in places if abs(k[0] - x) + abs(k[1] - y) < _NEAR)
        place = places.setdefault(next(near, (x, y, _size(point))), {})
        place.setdefault(op, []).append(number)
    for (x, y, size), executes in places.items():
        names = [f"{', '.join(numbers)} {op}" for op, numbers in executes.items()]
        text = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        gap, length = size + 6.0, 6.7 * len(text)
        lefts = (x + gap, x - gap - length)
        rows = [(left, y + 4.0 + 14.0 * row) for left in lefts for row in (0, 1, -1)]
        over = [(x - length / 2, y + sign * (gap + 5.0) + 4.0) for sign in (-1, 1)]
        for left, base in rows + over:
            box = left, base - 11.0, left + length, base + 3.0
            if (
                FRAME.left < left
                and box[2] < FRAME.end
                and not any(_overlap(box, b) for b in occupied)
            ):
                occupied.append(box)
                yield tag("text", text, x=left, y=base, class_="tick over")
                break


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def check_roofline_file(path: Path | str) -> None:
    """ProfileError SPY782 if ``path`` does not end in .svg or cannot be written."""
    suffix = check_target(path).suffix
    if suffix.lower() != ".svg":
        raise ProfileError(
            "SPY782", f"cannot write {path}", expected="a name in .svg", found=suffix or "no suffix"
        )


def write_roofline(path: Path | str, profile: Profile) -> None:
    """Write the chart as an SVG file. ProfileError as of `check_roofline_file`."""
    check_roofline_file(path)
    roofline, width = roofline_of(profile), FRAME.width
    subtitle = f"{profile.machine.name}, {profile.cost_model}: modelled"
    blocks = [
        text_block(subtitle, "faint", width),
        chart_block(FRAME, roofline_chart(roofline)),
        legend_block(bound_names(roofline), width),
        text_block(EXPLANATION, "faint", width),
    ]
    title = f"Roofline of {program_names(profile)}"
    write_whole(path, picture("roofline", title, blocks, width).svg.encode())


def program_names(profile: Profile) -> str:
    """Return the names of the first two programs, and how many more there are."""
    names = list(dict.fromkeys(kernel.name for kernel in profile.kernels))
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return shorten(", ".join(names[:2]), 80, placeholder="…") + more
