"""The roofline of a profile: where every execute is, the roofs above it; and the picture that
matplotlib draws of it.

Work is multiply-adds for products, points of the iteration space for everything else; the two
have roofs of their own, the pt arrays' and the vector units'.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from textwrap import shorten
from typing import Any

from spyre.errors import ProfileError
from spyre.hw.cost import ideal_pt_ns, sfu_ns
from spyre.hw.counters import CostClass, Counters, OperationCounts
from spyre.runtime.profile.data import ProfileData
from spyre.runtime.profile.files import check_target, write_whole
from spyre.runtime.profile.kernels import ExecuteProfile


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """An execute: ``intensity`` in work per byte over the memory interface (None without any),
    ``rate`` in work per nanosecond; ``share`` of the time of all kernels."""

    label: str
    unit: str
    intensity: float | None
    rate: float
    share: float
    bound: str


@dataclass(frozen=True, slots=True)
class RooflineRoof:
    """Most work per nanosecond: ``rate``, or ``gbps`` times the intensity."""

    name: str
    rate: float = 0.0
    gbps: float = 0.0


@dataclass(frozen=True, slots=True)
class Roofline:
    """Points and roofs. ``x``, ``y``: ranges that show all of them, powers of ten."""

    points: tuple[RooflinePoint, ...]
    roofs: tuple[RooflineRoof, ...]
    x: tuple[float, float]
    y: tuple[float, float]


def roofline_of(profile: ProfileData) -> Roofline:
    """The roofline; executes that take no time or do no work are left out."""
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


def _roofline_point(profile: ProfileData, execute: ExecuteProfile) -> RooflinePoint:
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


def _roofs(profile: ProfileData) -> tuple[RooflineRoof, ...]:
    """Those of the machine; that of the pt arrays in the format of the products, if there are."""
    machine = profile.machine
    hw = machine.hardware
    formats = {e.counts.mac_format for _, e in profile.executes if e.counters.multiply_adds}
    roofs = [
        RooflineRoof(f"HBM peak, {hw.hbm_peak_gbps:g} GB/s", gbps=hw.hbm_peak_gbps),
        RooflineRoof(
            f"HBM as measured, {machine.calibration.stream_gbps:g} GB/s",
            gbps=machine.calibration.stream_gbps,
        ),
    ]
    one = OperationCounts(
        name="",
        cost_class=CostClass.POINTWISE,
        cores=hw.cores,
        counters=Counters(element_operations=1),
    )
    roofs.append(RooflineRoof("vector units", rate=1.0 / sfu_ns(one, hw)))
    for data_format in sorted(formats) or ["SEN169_FP16"]:
        mac = OperationCounts(
            name="",
            cost_class=CostClass.MATMUL,
            cores=hw.cores,
            counters=Counters(multiply_adds=1),
            mac_format=data_format,
        )
        roofs.append(RooflineRoof(f"pt arrays, {data_format}", rate=1.0 / ideal_pt_ns(mac, hw)))
    return tuple(roofs)


def _decades(values: list[float]) -> tuple[float, float]:
    """The powers of ten around positive values."""
    from math import ceil, floor, log10

    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


FORMATS = (".png", ".svg", ".pdf")


def require_plot(path: Path | str) -> None:
    """ProfileError SPY780 without matplotlib, SPY782 where no picture can be written."""
    suffix = check_target(path).suffix.lower()
    if suffix not in FORMATS:
        raise ProfileError(
            "SPY782", f"cannot write {path}", expected=f"one of {', '.join(FORMATS)}", found=suffix
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ProfileError(
            "SPY780",
            "pictures need matplotlib, which is not installed",
            expected="the extra plot: pip install 'spyre[plot]'",
            found=str(error),
            hint="--report draws the roofline without it",
        ) from error


def write_roofline(path: Path | str, profile: ProfileData) -> None:
    """Write the picture; its suffix says which kind. ProfileError as of `require_plot`."""
    require_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    roofline = roofline_of(profile)
    axes = figure.add_subplot(xscale="log", yscale="log", xlim=roofline.x, ylim=roofline.y)
    for roof in roofline.roofs:
        _draw_roof(axes, roofline, roof)
    for unit, marker in (("pt", "o"), ("sfu", "s")):
        _draw_points(axes, roofline, [p for p in roofline.points if p.unit == unit], marker)
    axes.set(xlabel="work per byte of HBM traffic", ylabel="work per ns")
    title = f"{program_names(profile)}\n{profile.machine.name}, {profile.cost_model}: modelled"
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    # Beside the plot: whatever corner it had, some program has its points there.
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    content = io.BytesIO()
    figure.savefig(content, format=Path(path).suffix.lower().removeprefix("."), dpi=150)
    write_whole(path, content.getvalue())


def program_names(profile: ProfileData) -> str:
    """The programs that are shown."""
    names = list(dict.fromkeys(kernel.name for kernel in profile.kernels))
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return shorten(", ".join(names[:2]), 80, placeholder="…") + more


def _draw_roof(axes: Any, roofline: Roofline, roof: RooflineRoof) -> None:
    if roof.rate:
        axes.axhline(roof.rate, linewidth=1, color="black")
        axes.annotate(roof.name, (roofline.x[0] * 1.1, roof.rate * 1.08), fontsize="small")
        return
    ends = [roofline.x[0], max(r.rate for r in roofline.roofs) / roof.gbps]
    axes.plot(ends, [x * roof.gbps for x in ends], linewidth=1, label=roof.name)


def _draw_points(axes: Any, roofline: Roofline, points: list[RooflinePoint], marker: str) -> None:
    if not points:
        return
    x = [roofline.x[1] if p.intensity is None else p.intensity for p in points]
    sizes = [30.0 + 250.0 * sqrt(p.share) for p in points]
    name = "products (multiply-adds)" if marker == "o" else "others (elements)"
    axes.scatter(x, [p.rate for p in points], sizes, marker=marker, alpha=0.7, label=name)
    for point, intensity in sorted(zip(points, x, strict=True), key=lambda each: -each[0].share)[
        :8
    ]:
        axes.annotate(
            point.label.split(" (")[0],
            (intensity, point.rate),
            xytext=(6, 6),
            textcoords="offset points",
            fontsize="x-small",
        )
