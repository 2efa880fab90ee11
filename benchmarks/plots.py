"""Pictures of a result: tiles, kernels, scaling. Needs matplotlib (extra plot)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.report import by_title, forms
from benchmarks.results import Measurement, Results

Rows = Sequence[Measurement]


def write_plots(results: Results, directory: Path) -> list[Path]:
    """A PNG per section there is a picture of; paths of those written."""
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    drawers: dict[str, Callable[[Any, Rows], None]] = {
        "tiled": _draw_tiled,
        "kernels": _draw_ratios,
        "scaling": _draw_scaling,
    }
    written = []
    for section, draw in drawers.items():
        rows = results.sections.get(section)
        if not rows:
            continue
        figure = Figure(layout="constrained")
        draw(figure, rows)
        figure.suptitle(f"{section}, commit {results.commit[:10]}", fontsize="small")
        written.append(directory / f"{section}.png")
        figure.savefig(written[-1], dpi=100)
    return written


def _grid(figure: Any, count: int, size: tuple[float, float] = (4.5, 3.5)) -> list[Any]:
    across = min(count, 3)
    down = ceil(count / across)
    figure.set_size_inches(size[0] * across, size[1] * down)
    places = list(figure.subplots(down, across, squeeze=False).flat)
    for unused in places[count:]:
        unused.set_axis_off()
    return places[:count]


def _draw_tiled(figure: Any, rows: Rows) -> None:
    """Times and traffic of every form, as parts of the untiled one's; LX peak on its own axis."""
    groups = by_title(forms(rows))
    for panel, (title, group) in zip(_grid(figure, len(groups)), groups.items(), strict=True):
        tiles, whole = [form.tiles for form in group], group[0]
        lines = {
            "host": [form.host_ms / whole.host_ms for form in group],
            "simulated": [form.simulated_us / whole.simulated_us for form in group],
            "HBM": [form.hbm_bytes / whole.hbm_bytes for form in group],
        }
        for kind, line in lines.items():
            panel.plot(tiles, line, "o-", label=kind)
        other = panel.twinx()
        other.plot(tiles, [f.lx_peak_bytes / 1024 for f in group], "s:", color="grey", alpha=0.6)
        other.set(ylabel="LX peak, KiB (dotted)", ylim=(0, None))
        panel.axhline(1.0, color="grey", linewidth=0.5)
        panel.set_xscale("log", base=2)
        panel.set(xlabel="tiles", ylabel="of untiled", ylim=(0, None))
        panel.set_title(title, fontsize="small")
        panel.legend(fontsize="x-small")


def _draw_ratios(figure: Any, rows: Rows) -> None:
    found = [row for row in rows if row.unit == "x"]
    (panel,) = _grid(figure, 1, (8, 0.35 * len(found) + 1))
    names = [row.name for row in found]
    panel.barh(names, [row.median for row in found])
    panel.axvline(1.0, color="grey", linewidth=0.5)
    panel.set_xscale("log")
    panel.invert_yaxis()
    panel.set(xlabel="times faster than the reference")


def _draw_scaling(figure: Any, rows: Rows) -> None:
    kinds = [(kind, axis) for axis in ("size", "cores") for kind in ("host", "simulated")]
    most = max(row.labels["cores"] for row in rows)
    fixed = sorted({row.labels["size"] for row in rows})[-2]
    for panel, (kind, axis) in zip(_grid(figure, len(kinds)), kinds, strict=True):
        at = {"size": ("cores", most), "cores": ("size", fixed)}[axis]
        for operation in dict.fromkeys(row.labels["operation"] for row in rows):
            line = sorted(
                (row.labels[axis], row.median) for row in rows
                if row.name.endswith(kind) and row.labels[at[0]] == at[1]
                and row.labels["operation"] == operation
            )  # fmt: skip
            panel.plot([x for x, _ in line], [y for _, y in line], "o-", label=operation)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set(xlabel=axis, ylabel="ms" if kind == "host" else "us")
        panel.set_title(f"{kind}, {at[0]} {at[1]}", fontsize="small")
        panel.legend(fontsize="x-small")
