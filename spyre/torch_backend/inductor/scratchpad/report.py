"""What came of a plan: peak, average, fragmentation, places, and how far from the best it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spyre.torch_backend.inductor.scratchpad.accesses import LiveBuffer, Places
from spyre.torch_backend.inductor.scratchpad.plan import ScratchpadPlan
from spyre.torch_backend.inductor.scratchpad.solvers import MAX_BUFFERS, peak_bound, solve_optimal

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a plan is, bytes of one core: less in HBM is better, then the lower peak."""

    spilled_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class ScratchpadReport:
    """Measures of a plan, bytes of one core.

    ``quality.peak_bytes``: the highest byte used. ``live_peak_bytes``: most bytes alive at one
    operation; ``average_bytes``: alive on average over the operations. ``fragmentation``: share,
    over all operations, of the bytes below the highest living one that nobody uses.
    ``best``: of the optimal plan, None where that is too long a search.
    ``bound_bytes``: the peak no plan that keeps everything in LX can be below.
    """

    plan: ScratchpadPlan
    quality: Quality
    live_peak_bytes: int
    average_bytes: float
    fragmentation: float
    best: Quality | None
    bound_bytes: int


def quality_of(buffers: Sequence[LiveBuffer], places: Places) -> Quality:
    """Bytes that stay in HBM, and the highest byte used in LX."""
    tops = [at + b.size_bytes for b in buffers if (at := places[b.name]) is not None]
    spilled = sum(b.size_bytes for b in buffers if places[b.name] is None)
    return Quality(spilled, max(tops, default=0))


def report_of(plan: ScratchpadPlan) -> ScratchpadReport:
    """The measures of ``plan``; up to `MAX_BUFFERS` buffers, the optimal plan is found too."""
    live, top = _occupancy(plan)
    best = None
    if len(plan.buffers) <= MAX_BUFFERS:
        best = quality_of(plan.buffers, solve_optimal(plan.buffers, plan.capacity_bytes))
    reached = int(top.sum())
    return ScratchpadReport(
        plan,
        quality_of(plan.buffers, plan.places),
        int(live.max(initial=0)),
        float(live.mean()) if live.size else 0.0,
        1.0 - int(live.sum()) / reached if reached else 0.0,
        best,
        peak_bound(plan.buffers),
    )


def _occupancy(plan: ScratchpadPlan) -> tuple[np.ndarray, np.ndarray]:
    """Bytes alive in LX, and the highest one alive, at every operation."""
    time = np.arange(plan.steps)
    live, top = np.zeros((2, plan.steps), dtype=np.int64)
    by_name = {b.name: b for b in plan.buffers}
    for buffer in plan.buffers:
        place = plan.places[buffer.name]
        if place is None:
            continue
        alive = (buffer.start <= time) & (time < buffer.end)
        top[alive] = np.maximum(top[alive], place + buffer.size_bytes)
        parent = by_name.get(buffer.in_place_of or "")
        if parent is not None and plan.places[parent.name] == place:
            alive &= time >= parent.end
        live[alive] += buffer.size_bytes
    return live, top


def report_text(plan: ScratchpadPlan, width: int = 120) -> str:
    """``plan`` and its measures as text: a summary, and a line per buffer."""
    from rich.console import Console

    console = Console(width=width, color_system=None, highlight=False, markup=False)
    with console.capture() as captured:
        for line in _summary(report_of(plan)):
            console.print(line)
        if plan.buffers or plan.refused:
            console.print(_table(plan))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).rstrip() + "\n"


def _summary(report: ScratchpadReport) -> list[str]:
    plan, quality = report.plan, report.quality
    return [
        f"LX plan by {plan.solver}, rule {plan.rule}: "
        f"{len(plan.allocations)} of {len(plan.buffers) + len(plan.refused)} buffers in LX",
        f"peak {quality.peak_bytes:,} of {plan.capacity_bytes:,} bytes per core, "
        f"average {report.average_bytes:,.0f}, fragmentation {report.fragmentation:.0%}",
        f"{quality.spilled_bytes:,} bytes did not fit",
        _distance(report),
    ]


def _distance(report: ScratchpadReport) -> str:
    quality, best = report.quality, report.best
    if best is None:
        return (
            f"optimal: not searched for with {len(report.plan.buffers)} buffers; "
            f"all of them need {report.bound_bytes:,} bytes at least"
        )
    if best == quality:
        return "optimal: this plan is"
    if quality.spilled_bytes > best.spilled_bytes:
        more = f"leaves {quality.spilled_bytes - best.spilled_bytes:,} bytes more in HBM"
    else:
        more = f"reaches {quality.peak_bytes - best.peak_bytes:,} bytes higher"
    return (
        f"optimal: peak {best.peak_bytes:,} bytes, {best.spilled_bytes:,} bytes do not fit; "
        f"this plan {more}"
    )


def _table(plan: ScratchpadPlan) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for title in ("buffer", "bytes per core", "place", "lives", "uses", "why"):
        right = title in ("bytes per core", "place")
        table.add_column(
            title, justify="right" if right else "left", no_wrap=not title.startswith("w")
        )
    for buffer in plan.buffers:
        table.add_row(*_row(buffer, plan.places))
    for name, why in plan.refused.items():
        table.add_row(name, "", "HBM", "", "", why)
    return table


def _row(buffer: LiveBuffer, places: Places) -> tuple[str, ...]:
    place = places[buffer.name]
    why = "does not fit" if place is None else ""
    parent = buffer.in_place_of
    if place is not None and parent is not None and places.get(parent) == place:
        why = f"in place of {parent}"
    return (
        buffer.name,
        f"{buffer.size_bytes:,}",
        "HBM" if place is None else f"{place:,}",
        f"{buffer.start}-{buffer.end - 1}",
        ", ".join(map(str, buffer.uses)),
        why,
    )
