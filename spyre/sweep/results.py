"""The result of a sweep: a table with a row per point, as CSV or Parquet."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spyre.errors import SweepError
from spyre.sweep.point import MEASURED, Record
from spyre.whole_file import whole_file

SUFFIXES = (".csv", ".parquet")


def write_results(path: Path, columns: Sequence[str], records: Sequence[Record]) -> None:
    """Write ``records`` with ``columns`` and those of what was measured; the ending says how.

    SweepError SPY743 for Parquet without pyarrow.
    """
    names = (*columns, *MEASURED)
    rows = [[record.get(name, "") for name in names] for record in records]
    write = _write_parquet if path.suffix == ".parquet" else _write_csv
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as place:
        write(place, names, rows)


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
    values = [[None if cell == "" else cell for cell in column] for column in columns]
    pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, values, strict=True))), path)
