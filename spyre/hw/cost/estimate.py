"""Modelled times of rows of kernels, and how they compare with measured ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import combinations
from pathlib import Path

import numpy as np

from spyre.hw.cost.divisions import CLOSE
from spyre.hw.cost.machine import MachineSpec, default_machine
from spyre.hw.cost.models import KernelTime, kernel_ns, measured_class, size_us
from spyre.hw.cost.rows import MOVES, KernelRow, counts_of, read_rows


@dataclass(frozen=True)
class Estimate:
    """A row and its modelled time. ``us``: None for a row with a finding.

    ``kind``, ``spread``: class, and its relative error: two of three rows are within it. ``split``:
    the fastest division of a product whose row names none.
    """

    row: KernelRow
    us: float | None = None
    kind: str = ""
    spread: float | None = None
    split: str = ""
    time: KernelTime | None = None

    @property
    def error(self) -> float | None:
        """Modelled over measured, less 1; None if one of them is unknown."""
        return self.us / self.row.us - 1.0 if self.us and self.row.us else None


@dataclass(frozen=True, slots=True)
class ClassError:
    """Relative errors of a class: median and 90th percentile of magnitudes (``tenth``: a tenth is
    larger), and the signed median.
    """

    name: str
    rows: int
    median: float
    tenth: float
    bias: float


@dataclass(frozen=True, slots=True)
class Choice:
    """One problem and its measured divisions. ``cost``: the measured time of the one that the model
    chooses over that of the fastest, less 1. ``pairs``: those more than `CLOSE` apart on the card,
    ``ordered``: alike in the model. ``is_close``: its two best are too close to call.
    """

    title: str
    rows: int
    chosen: str
    best: str
    cost: float
    ordered: int
    pairs: int
    is_close: bool


@dataclass(frozen=True)
class Estimates:
    """Modelled times of the rows of a file, in its order."""

    rows: tuple[Estimate, ...]

    @cached_property
    def compared(self) -> tuple[tuple[KernelRow, float, float], ...]:
        """Rows with both times, modelled and measured in microseconds, outliers left out."""
        rows = ((each.row, each.us, each.row.us) for each in self.rows)
        return tuple((row, a, b) for row, a, b in rows if a and b and "outlier" not in row.note)

    @property
    def errors(self) -> tuple[ClassError, ...]:
        """Errors by class of the file, then of all rows."""
        groups: dict[str, list[float]] = {}
        for row, us, measured_us in self.compared:
            name = row.cells.get("group") or row.kernel
            groups.setdefault(name, []).append(us / measured_us - 1.0)
        every = [error for errors in groups.values() for error in errors]
        groups |= {"all": every} if every else {}
        found = []
        for name, errors in groups.items():
            median, tenth = np.quantile(np.abs(errors), (0.5, 0.9)).tolist()
            found.append(ClassError(name, len(errors), median, tenth, float(np.median(errors))))
        return tuple(found)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Problems with more than one measured division."""
        problems: dict[object, list[tuple[KernelRow, float, float]]] = {}
        for each in (each for each in self.compared if each[0].split is not None):
            stated = (each[0].cells.get(name) for name in ("source", "shapes", "dtype"))
            key = ("3d2d" in each[0].kernel, each[0].lx_fraction, *stated)
            problems.setdefault(key, []).append(each)
        return tuple(choice(rows) for rows in problems.values() if len(rows) > 1)


def choice(rows: Sequence[tuple[KernelRow, float, float]]) -> Choice:
    """Return the division of one problem that the model finds fastest, among the measured ones."""
    modelled = sorted(rows, key=lambda each: each[1])
    best = min(rows, key=lambda each: each[2])
    apart = [
        (a[1] < b[1]) == (a[2] < b[2])
        for a, b in combinations(rows, 2)
        if max(a[2], b[2]) > (1 + CLOSE) * min(a[2], b[2])
    ]
    return Choice(
        f"{rows[0][0].kernel} {rows[0][0].cells['shapes']} {rows[0][0].cells['dtype']}",
        len(rows),
        modelled[0][0].title,
        best[0].title,
        modelled[0][2] / best[2] - 1.0,
        sum(apart),
        len(apart),
        modelled[1][1] < (1 + CLOSE) * modelled[0][1],
    )


def estimate_file(path: str | Path, machine: MachineSpec | None = None) -> Estimates:
    """Modelled times of all rows of a CSV file; EstimateError SPY763 if it cannot be read."""
    return estimate_rows(read_rows(path), machine)


def estimate_rows(rows: Iterable[KernelRow], machine: MachineSpec | None = None) -> Estimates:
    """Modelled times of rows, on the machine with the LX fraction that a row states."""
    shared = cache(partial(machine_with, machine or default_machine()))
    return Estimates(tuple(estimate(row, shared(row.lx_fraction)) for row in rows))


def machine_with(machine: MachineSpec, lx_fraction: float | None) -> MachineSpec:
    """The machine with another LX fraction, if there is one."""
    changed = {} if lx_fraction is None else {"hardware.lx_fraction": lx_fraction}
    return machine.with_values(changed, "stated by the row") if changed else machine


def estimate(row: KernelRow, machine: MachineSpec) -> Estimate:
    """The modelled time of a row."""
    if row.finding is not None:
        return Estimate(row)
    if row.kernel in MOVES:
        name, cal = MOVES[row.kernel], machine.calibration
        us = size_us(cal.copy_out_us if name == "copy" else cal.memset_us, row.shape[0])
        return Estimate(row, us, name, getattr(machine.spread, name))
    times = (
        (kernel_ns(counts, machine), split, measured_class(counts))
        for split, counts in counts_of(row)
    )
    time, split, kind = min(times, key=lambda each: each[0].total_ns)
    chosen = " ".join(f"{dim}{cores}" for dim, cores in (split or {}).items() if cores > 1)
    chosen = chosen if row.split is None else ""
    return Estimate(row, time.total_ns / 1e3, kind, time.spread, chosen, time)
