"""The picture of a sweep: modelled time along one axis, and time against HBM traffic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spyre.errors import SweepError
from spyre.sweep.point import Record
from spyre.sweep.results import replace_file

MOST_LINES = 12
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
    """The column with the most values; the first one of equals."""
    return max(columns, key=lambda name: len({str(r.get(name, "")) for r in records}))


def write_plot(
    path: Path, columns: Sequence[str], records: Sequence[Record], axis: str | None = None
) -> None:
    """Draw ``records`` over the column ``axis``; a line per combination of the others.

    Points with errors are left out. The ending of ``path`` says the format, as of matplotlib.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    chosen = axis or plot_axis(columns, records)
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    drawn = [record for record in records if record.get("modelled_us") not in ("", None)]
    for number, (label, rows) in enumerate(lines(columns, drawn, chosen).items()):
        shown = label if number < MOST_LINES else None
        xs = [row.get(chosen, "") for row in rows]
        left.plot(xs, [row["modelled_us"] for row in rows], "o-", label=shown)
        right.scatter([row["hbm_bytes"] / 1e6 for row in rows],
                      [row["modelled_us"] for row in rows], label=shown)  # fmt: skip
    left.set(xlabel=chosen, ylabel="modelled time, µs", title="time", ylim=(0, None))
    right.set(xlabel="HBM traffic, MB", ylabel="modelled time, µs", title="time and traffic")
    right.set_ylim(0, None)
    if drawn:
        left.legend(fontsize="x-small")
    replace_file(path, lambda place: figure.savefig(place, dpi=120))


def lines(columns: Sequence[str], records: Sequence[Record], axis: str) -> dict[str, list[Record]]:
    """Records by what they have in common, along ``axis``: numbers rising, texts as they come."""
    varying = [
        name
        for name in columns
        if name != axis and len({str(r.get(name, "")) for r in records}) > 1
    ]
    found: dict[str, list[Record]] = {}
    for record in records:
        label = ", ".join(
            str(record.get(name, "")) if name == "subject" else f"{name} {record.get(name, '')}"
            for name in varying
            if record.get(name, "") != ""
        )
        found.setdefault(label, []).append(record)
    numeric = all(isinstance(record.get(axis), (int, float)) for record in records)
    if numeric:
        found = {label: sorted(rows, key=lambda r: r[axis]) for label, rows in found.items()}
    return found
