"""The picture of a sweep: modelled time along one axis, a panel per subject, and the traffic."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from spyre.errors import SweepError
from spyre.sweep.point import Record
from spyre.whole_file import whole_file

MOST_PANELS = 11
MOST_LINES = 16
"""Lines that get an entry in the legend."""


def require_matplotlib() -> Any:
    """matplotlib without a display. SweepError SPY743 if it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise SweepError(
            "SPY743",
            "--plot needs matplotlib, which is not installed",
            hint="pip install 'spyre[plot]'",
        ) from error
    matplotlib.use("Agg")
    return matplotlib


def plot_axis(columns: Sequence[str], records: Sequence[Record]) -> str:
    """The column, other than the subject, with the most values; the first one of equals."""
    axes = [name for name in columns if name != "subject"]
    return max(axes, key=lambda name: len({str(r.get(name, "")) for r in records}))


def write_plot(
    path: Path, columns: Sequence[str], records: Sequence[Record], axis: str | None = None
) -> None:
    """Draw ``records`` over the column ``axis``; a line per combination of the others.

    A panel per subject, of which the first MOST_PANELS are shown, and one of time and traffic.
    Points with errors are left out. The ending of ``path`` says the format, as of matplotlib.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    chosen = axis or plot_axis(columns, records)
    drawn = [record for record in records if record.get("modelled_us") not in ("", None)]
    subjects: dict[str, list[Record]] = {}
    for record in drawn:
        subjects.setdefault(str(record["subject"]), []).append(record)
    shown = list(subjects.items())[:MOST_PANELS]
    across = min(len(shown) + 1, 3)
    down = ceil((len(shown) + 1) / across)
    figure = Figure(figsize=(5 * across, 4 * down), layout="constrained")
    places = figure.subplots(down, across, squeeze=False).flat
    *panels, last = places[: len(shown) + 1]
    for unused in places[len(shown) + 1 :]:
        unused.set_axis_off()
    for panel, (subject, rows) in zip(panels, shown, strict=True):
        _draw_subject(panel, subject, rows, columns, chosen)
    _draw_traffic(last, subjects)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as place:
        figure.savefig(place, dpi=100)


def _draw_subject(
    panel: Any, subject: str, records: Sequence[Record], columns: Sequence[str], axis: str
) -> None:
    for number, (label, rows) in enumerate(lines(columns, records, axis).items()):
        xs, ys = [row.get(axis, "") for row in rows], [row["modelled_us"] for row in rows]
        panel.plot(xs, ys, "o-", label=label if number < MOST_LINES else None)
    panel.set(xlabel=axis, ylabel="modelled time, µs", ylim=(0, None))
    panel.set_title(subject, fontsize="small")
    if panel.get_legend_handles_labels()[1]:
        panel.legend(fontsize="xx-small")


def _draw_traffic(panel: Any, subjects: dict[str, list[Record]]) -> None:
    for subject, rows in subjects.items():
        xs, ys = [row["hbm_bytes"] / 1e6 for row in rows], [row["modelled_us"] for row in rows]
        panel.scatter(xs, ys, label=subject, alpha=0.6)
    panel.set(xlabel="HBM traffic, MB", ylabel="modelled time, µs")
    panel.set_title("all subjects", fontsize="small")
    if subjects:
        panel.legend(fontsize="xx-small")


def lines(columns: Sequence[str], records: Sequence[Record], axis: str) -> dict[str, list[Record]]:
    """Records by what they have in common, along ``axis``: numbers rising, texts as they come."""
    varying = [
        name
        for name in columns
        if name != axis and len({str(r.get(name, "")) for r in records}) > 1
    ]
    found: dict[str, list[Record]] = {}
    for record in records:
        parts = [f"{name} {record[name]}" for name in varying if record.get(name, "") != ""]
        found.setdefault(", ".join(parts), []).append(record)
    if all(isinstance(record.get(axis), (int, float)) for record in records):
        found = {label: sorted(rows, key=lambda r: r[axis]) for label, rows in found.items()}
    return found
