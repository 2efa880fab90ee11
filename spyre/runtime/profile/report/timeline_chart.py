"""The timeline of the report: what its resources do when."""

from __future__ import annotations

from collections.abc import Iterator

from spyre.hw.cost.timeline.task import Kind, Resource
from spyre.runtime.profile.profile_data import ProfileData
from spyre.runtime.profile.report.svg import Frame, Markup, chart, linear_ticks, tag, x_axis, y_axis
from spyre.runtime.profile.table import time_text
from spyre.runtime.units import format_bytes

TIME_FRAME = Frame(height=190.0)
LANES = tuple(Resource)
MAX_SPANS = 1500
"""Spans of the timeline that are drawn at most: the longest."""


def timeline_chart(profile: ProfileData) -> Markup:
    """A lane per resource."""
    most = profile.makespan_ns or 1.0
    names = [((len(LANES) - k - 0.5) / len(LANES), lane) for k, lane in enumerate(LANES)]
    pieces = [
        x_axis(TIME_FRAME, linear_ticks(most, time_text), "time"),
        y_axis(TIME_FRAME, [(part, str(lane)) for part, lane in names], ""),
        *_spans(profile, most),
    ]
    return chart(TIME_FRAME, "What host, DMA engine, launching and cores do when", pieces)


def _spans(profile: ProfileData, most: float) -> Iterator[Markup]:
    timeline = profile.timeline
    longest = sorted(range(len(timeline.tasks)), key=lambda k: -timeline.tasks[k].duration_ns)
    for number in sorted(longest[:MAX_SPANS]):
        task, span = timeline.tasks[number], timeline.spans[number]
        activity = profile.activities[profile.owners[number]]
        lane = LANES.index(task.resource)
        x = TIME_FRAME.x(span.begin_ns / most)
        top = TIME_FRAME.y((len(LANES) - lane - 0.15) / len(LANES))
        bottom = TIME_FRAME.y((len(LANES) - lane - 0.85) / len(LANES))
        size = f", {format_bytes(activity.size_bytes)}" if activity.size_bytes else ""
        told = (
            f"{task.kind} {activity.name}{size}, stream {activity.stream}: "
            f"{time_text(span.begin_ns)} to {time_text(span.end_ns)}"
        )
        yield tag(
            "rect",
            tag("title", told),
            x=x,
            y=top,
            width=max(TIME_FRAME.x(span.end_ns / most) - x, 0.75),
            height=bottom - top,
            class_=f"span {_CLASSES[task.kind]}",
        )


_CLASSES = {
    Kind.HOST: "bound-runs",
    Kind.COPY_IN: "bound-memory",
    Kind.COPY_OUT: "bound-ring",
    Kind.LAUNCH: "bound-launch",
    Kind.COMPUTE: "bound-pt",
}
