"""The roofline of a profile: where every execute is, and the roofs above it.

Work is multiply-adds for products, points of the iteration space for everything else; the two have
roofs of their own, the pt arrays' and the vector units'.
"""

from __future__ import annotations

from dataclasses import dataclass

from spyre.hw.cost.ideal import pt_ns, sfu_ns
from spyre.hw.cost.operation_counts import CostClass, OperationCounts
from spyre.runtime.profile.profile_data import ExecuteProfile, ProfileData


@dataclass(frozen=True, slots=True)
class Point:
    """An execute: ``intensity`` in work per byte over the memory interface (None without any),
    ``rate`` in work per nanosecond; ``share`` of the time of all kernels."""

    label: str
    unit: str
    intensity: float | None
    rate: float
    share: float
    bound: str


@dataclass(frozen=True, slots=True)
class Roof:
    """Most work per nanosecond: ``rate``, or ``gbps`` times the intensity."""

    name: str
    rate: float = 0.0
    gbps: float = 0.0


@dataclass(frozen=True, slots=True)
class Roofline:
    """Points and roofs. ``x``, ``y``: ranges that show all of them, powers of ten."""

    points: tuple[Point, ...]
    roofs: tuple[Roof, ...]
    x: tuple[float, float]
    y: tuple[float, float]


def roofline_of(profile: ProfileData) -> Roofline:
    """The roofline; executes that take no time or do no work are left out."""
    points = tuple(
        _point(profile, e) for _, e in profile.executes if e.total_ns and _work(e.counts)
    )
    roofs = _roofs(profile)
    xs = [p.intensity for p in points if p.intensity is not None]
    flat = [roof.rate for roof in roofs if roof.rate]
    gbps = max(roof.gbps for roof in roofs)
    knees = [rate / gbps for rate in flat]
    rates = [p.rate for p in points] + flat
    return Roofline(
        points, roofs, _decades([*xs, *knees]), _decades([*rates, min(xs + knees) * gbps])
    )


def _point(profile: ProfileData, execute: ExecuteProfile) -> Point:
    counts, model = execute.counts, execute.model
    work = _work(counts)
    return Point(
        f"{execute.index} {model.op} ({model.shape})",
        "pt" if counts.multiply_adds else "sfu",
        work / counts.hbm_bytes if counts.hbm_bytes else None,
        work / model.total_ns,
        execute.total_ns / profile.kernel_ns,
        str(execute.bound),
    )


def _work(counts: OperationCounts) -> int:
    return counts.multiply_adds or counts.element_operations


def _roofs(profile: ProfileData) -> tuple[Roof, ...]:
    """Those of the machine; that of the pt arrays in the format of the products, if there are."""
    machine = profile.machine
    hw = machine.hardware
    formats = {e.counts.mac_format for _, e in profile.executes if e.counts.multiply_adds}
    roofs = [
        Roof(f"HBM peak, {hw.hbm_peak_gbps:g} GB/s", gbps=hw.hbm_peak_gbps),
        Roof(
            f"HBM as measured, {machine.calibration.stream_gbps:g} GB/s",
            gbps=machine.calibration.stream_gbps,
        ),
    ]
    one = OperationCounts(
        name="", cost_class=CostClass.POINTWISE, cores=hw.cores, element_operations=1
    )
    roofs.append(Roof("vector units", rate=1.0 / sfu_ns(one, hw)))
    for data_format in sorted(formats) or ["SEN169_FP16"]:
        mac = OperationCounts(
            name="",
            cost_class=CostClass.MATMUL,
            cores=hw.cores,
            multiply_adds=1,
            mac_format=data_format,
        )
        roofs.append(Roof(f"pt arrays, {data_format}", rate=1.0 / pt_ns(mac, hw)))
    return tuple(roofs)


def _decades(values: list[float]) -> tuple[float, float]:
    """The powers of ten around positive values."""
    from math import ceil, floor, log10

    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)
