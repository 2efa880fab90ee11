"""The roofline as SVG: logarithmic axes, an area per execute by its share of time."""

from __future__ import annotations

from collections.abc import Iterator
from math import atan2, degrees, log10, sqrt

from spyre.runtime.profile.report.svg import Frame, Markup, chart, decade_ticks, inside, tag
from spyre.runtime.profile.report.svg import x_axis as axis_of_x
from spyre.runtime.profile.report.svg import y_axis as axis_of_y
from spyre.runtime.profile.roofline import Point, Roof, Roofline

FRAME = Frame(height=440.0)
MAX_POINTS = 400
"""Executes that are drawn at most: those that take longest."""


def roofline_chart(found: Roofline) -> Markup:
    """The chart; what has no traffic to HBM is drawn at the right edge."""
    points = sorted(found.points, key=lambda point: -point.share)[:MAX_POINTS]
    pieces = [
        axis_of_x(FRAME, decade_ticks(*found.x), "work per byte of HBM traffic"),
        axis_of_y(FRAME, decade_ticks(*found.y), "work per ns"),
        *(_roof(found, roof, number) for number, roof in enumerate(found.roofs)),
        *(_point(found, point) for point in points),
    ]
    label = "Roofline: work per nanosecond over work per byte of HBM traffic, both logarithmic"
    return chart(FRAME, label, pieces)


def _part(value: float, ends: tuple[float, float]) -> float:
    low, high = (log10(end) for end in ends)
    return min(max((log10(value) - low) / (high - low), 0.0), 1.0)


def _roof(found: Roofline, roof: Roof, number: int) -> Markup:
    line = list(_line(found, roof))
    path = " ".join(f"{FRAME.x(x):.1f},{FRAME.y(y):.1f}" for x, y in line)
    drawn = tag("polyline", points=path, class_="roof dashed" if number == 1 else "roof")
    if roof.rate:
        y = FRAME.y(line[0][1])
        name = tag("text", roof.name, x=FRAME.end - 4, y=y - 5, class_="name end")
    else:
        (x, y), (right, top) = ((FRAME.x(a), FRAME.y(b)) for a, b in line)
        angle = degrees(atan2(top - y, right - x))
        turned = f"translate({(x + right) / 2:.1f} {(y + top) / 2:.1f}) rotate({angle:.2f})"
        name = tag(
            "text", roof.name, y=15 if number else -6, transform=turned, class_="name middle"
        )
    return inside([drawn, name])


def _line(found: Roofline, roof: Roof) -> Iterator[tuple[float, float]]:
    """Two ends, as parts of the plot: a roof of bandwidth ends below the highest rate."""
    if roof.rate:
        y = _part(roof.rate, found.y)
        yield from ((0.0, y), (1.0, y))
        return
    low = max(found.x[0], found.y[0] / roof.gbps)
    high = min(found.x[1], max(r.rate for r in found.roofs) / roof.gbps)
    for x in (low, high):
        yield _part(x, found.x), _part(x * roof.gbps, found.y)


def _point(found: Roofline, point: Point) -> Markup:
    x = FRAME.x(1.0 if point.intensity is None else _part(point.intensity, found.x))
    y, size = FRAME.y(_part(point.rate, found.y)), 5.0 + 14.0 * sqrt(point.share)
    where = "no HBM traffic" if point.intensity is None else f"{point.intensity:.3g} per byte"
    told = tag(
        "title",
        f"{point.label}: {point.rate:.3g} per ns, {where}, {point.share:.1%} of the time, "
        f"bound by {point.bound}",
    )
    shape = f"bound-{point.bound} point"
    if point.unit == "pt":
        return tag("circle", told, cx=x, cy=y, r=size, class_=shape)
    side = 1.8 * size
    return tag("rect", told, x=x - side / 2, y=y - side / 2, width=side, height=side, class_=shape)
