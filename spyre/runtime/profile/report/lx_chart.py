"""LX over time: contents of ranges of the scratchpads as rectangles of addresses and time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyre.runtime.profile.lx_accesses import LxLifetimes, lifetimes
from spyre.runtime.profile.profile_data import KernelProfile
from spyre.runtime.profile.report.svg import Frame, Markup, chart, linear_ticks, tag, x_axis, y_axis
from spyre.runtime.profile.table import time_text
from spyre.runtime.units import format_bytes

FRAME = Frame(height=300.0)
MAX_DRAWN = 1500
"""Contents that are drawn at most, from the beginning of the kernel."""
COLOURS = 8


def lx_chart(kernel: KernelProfile) -> Markup:
    """The first contents of the scratchpads in one launch, and how many there are more."""
    found = lifetimes(kernel.model.lx)
    total_ns, highest = kernel.model.total_ns, kernel.model.lx.highest
    drawn = np.argsort(found.first, kind="stable")[:MAX_DRAWN]
    pieces = [
        x_axis(FRAME, linear_ticks(total_ns, time_text), "time in the kernel"),
        y_axis(FRAME, linear_ticks(float(highest), _size, (1, 2, 4, 8, 16)), "LX address"),
        *_rectangles(kernel, found, drawn.tolist(), highest),
    ]
    label = f"LX of {kernel.name} over time: addresses upwards, time to the right"
    return chart(FRAME, label, pieces)


def left_out(kernel: KernelProfile) -> int:
    """Contents that are not drawn."""
    return max(len(lifetimes(kernel.model.lx)) - MAX_DRAWN, 0)


def _rectangles(
    kernel: KernelProfile, found: LxLifetimes, drawn: list[int], highest: int
) -> Iterator[Markup]:
    executions, total_ns = kernel.model.executions, kernel.model.total_ns
    begin, end = executions.begin_ns[found.first], executions.end_ns[found.last]
    ranges = np.unique(np.stack([found.low, found.high], axis=1), axis=0).tolist()
    colour = {tuple(each): k % COLOURS for k, each in enumerate(ranges)}
    for k in drawn:
        low, high = int(found.low[k]), int(found.high[k])
        x, right = FRAME.x(begin[k] / total_ns), FRAME.x(end[k] / total_ns)
        y, bottom = FRAME.y(high / highest), FRAME.y(low / highest)
        told = tag("title", _told(kernel, found, k, float(begin[k]), float(end[k])))
        yield tag(
            "rect",
            told,
            x=float(x),
            y=y,
            width=max(float(right - x), 0.75),
            height=max(bottom - y, 1.0),
            class_=f"content colour-{colour[low, high]}",
        )
        name = kernel.executes[int(found.writer[k])].model.op
        if right - x > 8 * len(name) + 8 and bottom - y > 16:
            yield tag("text", name, x=float(x) + 5, y=y + 14, class_="inner")


def _told(kernel: KernelProfile, found: LxLifetimes, k: int, begin: float, end: float) -> str:
    low, high = int(found.low[k]), int(found.high[k])
    writer = kernel.executes[int(found.writer[k])].model.op
    reader = kernel.executes[int(found.reader[k])].model.op
    source = f"written by {writer}" if found.written[k] else f"there before, read by {writer}"
    return (
        f"{low:#x} to {high:#x} ({format_bytes(high - low)}): {source}, last used by {reader}, "
        f"{time_text(begin)} to {time_text(end)}"
    )


def _size(value: float) -> str:
    return format_bytes(round(value)) if value else "0"
