"""The result of a sweep: a table with a row per point, as CSV or Parquet, and a picture of it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

from spyre.errors import SweepError
from spyre.files import atomic_write
from spyre.sweep.point import MEASURED, Record

SUFFIXES = (".csv", ".parquet")


def write_results(path: Path, columns: Sequence[str], records: Sequence[Record]) -> None:
    """Write ``records`` with ``columns`` and those of what was measured; the ending says how.

    SweepError SPY743 for Parquet without pyarrow, SPY746 when it cannot be written.
    """
    names = (*columns, *MEASURED)
    rows = [[record.get(name, "") for name in names] for record in records]
    write = _write_parquet if path.suffix == ".parquet" else _write_csv
    with writing(path), atomic_write(path) as temporary:
        write(temporary, names, rows)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Makes the directory of ``path``; SweepError SPY746 for an OSError there or in the block."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise SweepError(
            "SPY746", f"cannot write {path}", found=error.strerror or str(error)
        ) from error


def _write_csv(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def require_parquet() -> Any:
    """pyarrow with its parquet module. SweepError SPY743 if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SweepError(
            "SPY743",
            "a Parquet file needs pyarrow, which is not installed",
            hint="pip install 'spyre[cluster]', or give --out a name in .csv",
        ) from error
    return pyarrow


def _write_parquet(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    pyarrow = require_parquet()
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    # Parquet has no empty number.
    values = [[None if cell == "" else cell for cell in column] for column in columns]
    pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, values, strict=True))), path)


MOST_PANELS = 11
MOST_LINES = 16
"""Lines that get an entry in the legend."""


def check_picture(path: Path) -> None:
    """SweepError SPY743 without matplotlib, SPY740 where its ending names no format."""
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        expected = f"a name in one of .{', .'.join(known)}"
        raise SweepError("SPY740", "--plot is no picture", expected=expected, found=str(path))


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
    SweepError SPY746 when it cannot be written.
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
    with writing(path), atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=100)


def _draw_subject(
    panel: Any, subject: str, records: Sequence[Record], columns: Sequence[str], axis: str
) -> None:
    for number, (label, rows) in enumerate(lines(columns, records, axis).items()):
        xs, ys = [row.get(axis, "") for row in rows], [row["modelled_us"] for row in rows]
        panel.plot(xs, ys, "o-", label=label if number < MOST_LINES else None)
    panel.set(xlabel=axis, ylabel="modelled time, µs", ylim=(0, None))
    panel.set_title(subject, fontsize="small")
    if panel.get_legend_handles_labels()[1]:
        _legend(panel)


def _draw_traffic(panel: Any, subjects: dict[str, list[Record]]) -> None:
    for subject, rows in subjects.items():
        xs, ys = [row["hbm_bytes"] / 1e6 for row in rows], [row["modelled_us"] for row in rows]
        panel.scatter(xs, ys, label=subject, alpha=0.6)
    panel.set(xlabel="HBM traffic, MB", ylabel="modelled time, µs")
    panel.set_title("all subjects", fontsize="small")
    if subjects:
        _legend(panel)


def _legend(panel: Any) -> None:
    """Below the panel, where it covers no line; the layout makes room for it."""
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize="xx-small")


def lines(columns: Sequence[str], records: Sequence[Record], axis: str) -> dict[str, list[Record]]:
    """Records by what they have in common, along ``axis``: numbers rising, texts as they come."""
    varying = [
        name
        for name in columns
        if name != axis and len({str(r.get(name, "")) for r in records}) > 1
    ]
    by_label: dict[str, list[Record]] = {}
    for record in records:
        parts = [f"{name} {record[name]}" for name in varying if record.get(name, "") != ""]
        by_label.setdefault(", ".join(parts), []).append(record)
    if all(isinstance(record.get(axis), (int, float)) for record in records):
        by_label = {label: sorted(rows, key=lambda r: r[axis]) for label, rows in by_label.items()}
    return by_label
