"""The roofline as a picture, drawn by matplotlib: the extra ``plot``."""

from __future__ import annotations

import io
from math import sqrt
from pathlib import Path
from typing import Any

from spyre.errors import ProfileError
from spyre.runtime.profile.files import check_target, write_whole
from spyre.runtime.profile.profile_data import ProfileData
from spyre.runtime.profile.roofline import Point, Roof, Roofline, roofline_of

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
    found = roofline_of(profile)
    axes = figure.add_subplot(xscale="log", yscale="log", xlim=found.x, ylim=found.y)
    for roof in found.roofs:
        _draw_roof(axes, found, roof)
    for unit, marker in (("pt", "o"), ("sfu", "s")):
        _draw_points(axes, found, [p for p in found.points if p.unit == unit], marker)
    axes.set(xlabel="work per byte of HBM traffic", ylabel="work per ns")
    axes.set_title(f"{profile.machine.name}, {profile.cost_model}: modelled")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    content = io.BytesIO()
    figure.savefig(content, format=Path(path).suffix.lower().removeprefix("."), dpi=150)
    write_whole(path, content.getvalue())


def _draw_roof(axes: Any, found: Roofline, roof: Roof) -> None:
    if roof.rate:
        axes.axhline(roof.rate, linewidth=1, color="black")
        axes.annotate(roof.name, (found.x[0] * 1.1, roof.rate * 1.08), fontsize="small")
        return
    ends = [found.x[0], max(r.rate for r in found.roofs) / roof.gbps]
    axes.plot(ends, [x * roof.gbps for x in ends], linewidth=1, label=roof.name)


def _draw_points(axes: Any, found: Roofline, points: list[Point], marker: str) -> None:
    if not points:
        return
    x = [found.x[1] if p.intensity is None else p.intensity for p in points]
    sizes = [30.0 + 250.0 * sqrt(p.share) for p in points]
    name = "products (multiply-adds)" if marker == "o" else "others (elements)"
    axes.scatter(x, [p.rate for p in points], sizes, marker=marker, alpha=0.7, label=name)
    for point, place in sorted(zip(points, x, strict=True), key=lambda each: -each[0].share)[:8]:
        axes.annotate(
            point.label.split(" (")[0],
            (place, point.rate),
            xytext=(6, 6),
            textcoords="offset points",
            fontsize="x-small",
        )
