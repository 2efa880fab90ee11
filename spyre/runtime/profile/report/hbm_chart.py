"""HBM over time: bytes allocated, region upon region."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyre.hw.nest import Int64Array
from spyre.hw.spec import REGIONS
from spyre.runtime.flex.trace_counters import region_name
from spyre.runtime.profile.hbm_occupancy import HbmOccupancy
from spyre.runtime.profile.kernel_model import Float64Array
from spyre.runtime.profile.report.svg import Frame, Markup, chart, linear_ticks, tag, x_axis, y_axis
from spyre.runtime.profile.table import time_text
from spyre.runtime.units import format_bytes

FRAME = Frame(height=260.0)
MAX_STEPS = 1000
"""Moments that are drawn at most; of several the fullest."""
BINARY = (1, 2, 4, 8, 16)


def hbm_chart(found: HbmOccupancy, makespan_ns: float) -> Markup:
    """An area per region that is used, over the whole time."""
    thin = found.thinned()
    times, rows = _fullest(thin.time_ns, thin.allocated_bytes)
    end = max(makespan_ns, float(times[-1])) or 1.0
    most = float(max(found.peak_bytes, 1))
    ticks = linear_ticks(most, lambda value: format_bytes(round(value)) if value else "0", BINARY)
    pieces = [
        x_axis(FRAME, linear_ticks(end, time_text), "time"),
        y_axis(FRAME, ticks, "allocated"),
        *_areas(np.append(times, end) / end, rows, most),
    ]
    return chart(FRAME, "Bytes allocated in the regions of HBM over time", pieces)


def used_regions(found: HbmOccupancy) -> list[int]:
    """Regions that hold something at some time."""
    return [k for k, size_bytes in enumerate(found.region_peak_bytes) if size_bytes]


def _fullest(times: Float64Array, rows: Int64Array) -> tuple[Float64Array, Int64Array]:
    """At most `MAX_STEPS` moments, those with the most bytes of their neighbours."""
    if len(times) <= MAX_STEPS:
        return times, rows
    edges = np.linspace(0, len(times), MAX_STEPS + 1).astype(np.int64)[:-1]
    group = np.searchsorted(edges, np.arange(len(times)), side="right")
    order = np.lexsort((-rows.sum(axis=1), group))
    chosen = order[np.append(True, np.diff(group[order]) > 0)]
    return times[np.sort(chosen)], rows[np.sort(chosen)]


def _areas(parts: Float64Array, rows: Int64Array, most: float) -> Iterator[Markup]:
    """Areas from the sum of the regions before to the sum with this one, in steps."""
    above = np.cumsum(rows, axis=1)
    x = np.repeat([FRAME.x(part) for part in parts.tolist()], 2)[1:-1]
    for region in range(REGIONS):
        if not rows[:, region].any():
            continue
        upper = np.repeat(FRAME.y(0) + (FRAME.y(1) - FRAME.y(0)) * above[:, region] / most, 2)
        lower = np.repeat(
            FRAME.y(0) + (FRAME.y(1) - FRAME.y(0)) * (above - rows)[:, region] / most, 2
        )
        corners = [*zip(x, upper, strict=True), *zip(x[::-1], lower[::-1], strict=True)]
        told = f"{region_name(region)}: at most {format_bytes(int(rows[:, region].max()))}"
        yield tag(
            "polygon",
            tag("title", told),
            points=" ".join(f"{a:.1f},{b:.1f}" for a, b in corners),
            class_=f"content colour-{region}",
        )
