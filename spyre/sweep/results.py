"""The result of a sweep: a table with a row per point, as CSV or Parquet, and an SVG picture."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spyre.errors import SweepError
from spyre.files import atomic_write
from spyre.runtime.drawing import (
    Block,
    Frame,
    Line,
    Scale,
    category_scale,
    chart_block,
    grid_block,
    legend_block,
    line_chart,
    linear_scale,
    picture,
    stack,
    text_block,
    value_scale,
)
from spyre.sweep.point import MEASURED, Record


def write_results(path: Path, columns: Sequence[str], records: Sequence[Record]) -> None:
    """Write ``records`` with ``columns`` and the measured columns as .csv or .parquet.

    SweepError SPY743 for Parquet without pyarrow, SPY746 if the file cannot be written.
    """
    names = (*columns, *MEASURED)
    rows = [[record.get(name, "") for name in names] for record in records]
    write = _write_parquet if path.suffix == ".parquet" else _write_csv
    with writing(path), atomic_write(path) as temporary:
        write(temporary, names, rows)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the directory of ``path``. SweepError SPY746 for an OSError there or in the block."""
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
    """Return pyarrow with its parquet module. SweepError SPY743 if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        message = "a Parquet file needs pyarrow, which is not installed"
        hint = "pip install pyarrow, or give --out a name in .csv"
        raise SweepError("SPY743", message, hint=hint) from error
    return pyarrow


def _write_parquet(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    pyarrow = require_parquet()
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    # Parquet has no empty number.
    values = [[None if cell == "" else cell for cell in column] for column in columns]
    pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, values, strict=True))), path)


MOST_PANELS = 11
MOST_LINES = 16
"""Lines of a panel with an entry in the legend."""
FRAME = Frame(width=480.0, height=300.0, left=60.0)
TIME = "modelled time, µs"


def check_plot_file(path: Path) -> None:
    """SweepError SPY740 if the name of a picture does not end in .svg."""
    if path.suffix.lower() != ".svg":
        raise SweepError("SPY740", "--plot is no SVG", expected="a name in .svg", found=str(path))


def plot_axis(columns: Sequence[str], records: Sequence[Record]) -> str:
    """Return the column, other than the subject, with the most values; of equals the first."""
    axes = [name for name in columns if name != "subject"]
    return max(axes, key=lambda name: len({str(r.get(name, "")) for r in records}))


def write_plot(
    path: Path, columns: Sequence[str], records: Sequence[Record], axis: str | None = None
) -> None:
    """Draw modelled time over the column ``axis`` (default: `plot_axis`) as SVG.

    There is a panel per subject, at most `MOST_PANELS`, with a line per combination of the other
    columns, and a panel of time over HBM traffic. Points with errors are left out. SweepError
    SPY746 if the file cannot be written.
    """
    chosen = axis or plot_axis(columns, records)
    subjects: dict[str, list[Record]] = {}
    for record in records:
        if record.get("modelled_us") not in ("", None):
            subjects.setdefault(str(record["subject"]), []).append(record)
    shown = list(subjects.items())[:MOST_PANELS]
    panels = [_subject_panel(subject, rows, columns, chosen) for subject, rows in shown]
    panels.append(_traffic_panel(subjects))
    grid = grid_block(panels, min(len(panels), 3))
    drawn = picture(path.stem, f"Modelled time over {chosen}", [grid], grid.width)
    with writing(path), atomic_write(path) as temporary:
        temporary.write_text(drawn.svg, encoding="utf-8")


def _subject_panel(
    subject: str, records: Sequence[Record], columns: Sequence[str], axis: str
) -> Block:
    found = lines(columns, records, axis)
    values = [record.get(axis, "") for record in records]
    names = list(dict.fromkeys(map(str, values)))
    is_numeric = all(isinstance(value, (int, float)) for value in values)
    x = value_scale(axis, values) if is_numeric else category_scale(axis, names)

    def position(value: Any) -> float:
        return float(value) if is_numeric else names.index(str(value))

    drawn = [
        Line.numbered(
            label or subject, [(position(r.get(axis, "")), r["modelled_us"]) for r in rows], number
        )
        for number, (label, rows) in enumerate(found.items())
    ]
    return _panel(subject, drawn, x, drawn[:MOST_LINES] if len(drawn) > 1 else ())


def _traffic_panel(subjects: Mapping[str, Sequence[Record]]) -> Block:
    drawn = [
        Line.numbered(subject, [(r["hbm_bytes"] / 1e6, r["modelled_us"]) for r in rows], number)
        for number, (subject, rows) in enumerate(subjects.items())
    ]
    most = max((x for line in drawn for x, _ in line.points), default=1.0)
    return _panel("all subjects", drawn, linear_scale("HBM traffic, MB", most), drawn, False)


def _panel(
    title: str, drawn: Sequence[Line], x: Scale, named: Sequence[Line], is_joined: bool = True
) -> Block:
    most = max((y for line in drawn for _, y in line.points), default=1.0)
    content = line_chart(FRAME, drawn, x, linear_scale(TIME, 1.05 * most), is_joined)
    blocks = [text_block(title, "", FRAME.width), chart_block(FRAME, content)]
    if named:
        blocks.append(legend_block([(line.style, line.name) for line in named], FRAME.width))
    return stack(blocks)


def lines(columns: Sequence[str], records: Sequence[Record], axis: str) -> dict[str, list[Record]]:
    """Return the records of each line of a panel, by its label.

    A label names the values of all columns that vary, but for ``axis``. The points of a line are
    sorted along ``axis`` if its values are numbers.
    """
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
