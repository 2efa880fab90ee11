"""Measured kernels, shipped with the project, and which half of them constants are fitted on.

``measured_kernels.csv`` has a row per kernel: extents in elements, cores, microseconds on a card.
:mod:`.measured_counts` says what each of them counts.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

FILE = "measured_kernels.csv"


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One kernel on 32 cores or fewer, fp16 tensors.

    ``rows`` x ``columns``: extents of a tensor, columns in the stick dim; of a product those of
    its result, with ``depth`` reduced and its rows and columns divided among ``m_cores`` and
    ``n_cores``. ``inputs``: tensors read. ``tiles``: trips of a loop over rows. ``fitted``: in the
    half that constants are fitted on.
    """

    group: str
    kernel: str
    rows: int
    depth: int
    columns: int
    m_cores: int
    n_cores: int
    cores: int
    inputs: int
    tiles: int
    us: float
    fitted: bool

    @property
    def explained(self) -> bool:
        """False for products whose columns are no power of two: some take twice the time of their
        neighbours, and the published report knows no mechanism (hardware reference §5).
        """
        return not (self.group == "matmul" and self.columns & (self.columns - 1))

    @property
    def title(self) -> str:
        """Name and extents, e.g. ``mm 2048x2048x2048, cores 4x8``."""
        extents = [self.rows, self.depth, self.columns] if self.depth else [self.rows, self.columns]
        text = f"{self.kernel} {'x'.join(map(str, extents))}"
        if self.m_cores:
            text += f", cores {self.m_cores}x{self.n_cores}"
        return text + (f", {self.tiles} tiles" if self.tiles > 1 else "")


@cache
def measured_kernels() -> tuple[MeasuredKernel, ...]:
    """All rows. Of every group the first, third, fifth … row are fitted, the others reported.

    The file is sorted by group, kernel and extents (as text), so the rule looks at no time.
    """
    text = resources.files("spyre.hw.cost").joinpath(FILE).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    seen: dict[str, int] = {}
    found = []
    for row in csv.DictReader(lines):
        place = seen[row["group"]] = seen.get(row["group"], -1) + 1
        found.append(_kernel(row, place % 2 == 0))
    return tuple(found)


def _kernel(row: dict[str, str], fitted: bool) -> MeasuredKernel:
    def number(name: str) -> int:
        return int(row[name] or 0)

    return MeasuredKernel(
        group=row["group"],
        kernel=row["kernel"],
        rows=number("rows"),
        depth=number("depth"),
        columns=number("columns"),
        m_cores=number("m_cores"),
        n_cores=number("n_cores"),
        cores=number("cores"),
        inputs=number("inputs"),
        tiles=number("tiles"),
        us=float(row["us"]),
        fitted=fitted,
    )
