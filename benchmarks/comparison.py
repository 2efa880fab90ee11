"""Compares two results and finds changes beyond noise.

The rule for times on the same machine: a run's time is its best sample, because other load only
adds to it. The machine may have changed it by any factor between the least and the largest by which
the best times of the reference loops changed in that section. Beyond that interval, a change is
reported if its factor exceeds 1 plus the largest of

- MARGIN;
- the variation of the quantity: (median - best) / best of its samples, which are spread over the
  section, added up over both runs;
- MACHINE_SHARE of the largest such variation of a reference loop, for a busy machine.

The loop on every CPU is not used for sections that use one CPU, nor for the last term, because it
varies most. Computed values change by more than a part in 10^6. Times on different machines are
not compared; ratios are, by MARGIN and their deviations.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.results import Measurement, Results
from benchmarks.sampling import EVERY_CPU, PROCESS
from benchmarks.suite import SECTIONS

MARGIN = 0.15
MACHINE_SHARE = 0.5
DEVIATIONS = 3.0
MARGIN_OF_EXACT = 1e-6
ONE_CPU = frozenset(section.name for section in SECTIONS if section.one_cpu)
Loops = Mapping[str, Sequence[float]]
NO_MACHINE = (1.0, 1.0)


@dataclass(frozen=True)
class Change:
    """A quantity in two runs.

    ``machine``: least and largest factor by which the machine alone may have changed it.
    ``noise``: factor beyond those up to which no change is reported.
    """

    section: str
    name: str
    unit: str
    before: float
    after: float
    machine: tuple[float, float]
    noise: float
    higher_is_better: bool

    @property
    def factor(self) -> float:
        if self.before == self.after:
            return 1.0
        return self.after / self.before if self.before else float("inf")

    @property
    def is_change(self) -> bool:
        low, high = self.machine
        return not low / self.noise <= self.factor <= high * self.noise

    @property
    def verdict(self) -> str:
        if not self.is_change:
            return ""
        return "better" if (self.factor > 1) == self.higher_is_better else "WORSE"


def compare(before: Results, after: Results) -> list[Change]:
    """Compare the quantities of both results; times on one machine, ratios on different ones."""
    if before.machine != after.machine:
        return [
            _computed(section, old, new) if new.exact else _of_ratio(section, old, new)
            for section, old, new in _pairs(before, after)
            if new.exact or new.unit == "x"
        ]
    machines = {section: machine_factors(section, before, after) for section in after.sections}
    return [
        _computed(section, old, new) if new.exact else _timed(section, old, new, machines[section])
        for section, old, new in _pairs(before, after)
        if new.compared
    ]


def _pairs(before: Results, after: Results) -> Iterator[tuple[str, Measurement, Measurement]]:
    for section, rows in after.sections.items():
        known = {row.name: row for row in before.sections.get(section, ())}
        for row in rows:
            old = known.get(row.name)
            if old is not None and old.unit == row.unit:
                yield section, old, row


@dataclass(frozen=True)
class MachineFactors:
    """Factors by which the machine's times changed between two runs of a section; variation."""

    least: float
    largest: float
    variation: float


def machine_factors(section: str, before: Results, after: Results) -> MachineFactors:
    """Return the machine's factors in a section, from the times of the reference loops."""
    runs = [result.reference.get(section, {}) for result in (before, after)]
    shared = [
        name for name in runs[0].keys() & runs[1].keys()
        if not (name == EVERY_CPU and section in ONE_CPU)
    ]  # fmt: skip
    factors = [min(runs[1][name]) / min(runs[0][name]) for name in shared] or [1.0]
    steady = [name for name in shared if name not in (EVERY_CPU, PROCESS)]
    variation = max((sum(varied(run[name]) for run in runs) for name in steady), default=0.0)
    return MachineFactors(min(factors), max(factors), variation)


def varied(values: Sequence[float]) -> float:
    """Return (median - best) / best."""
    return statistics.median(values) / min(values) - 1 if min(values) > 0 else 0.0


def _timed(section: str, old: Measurement, new: Measurement, machine: MachineFactors) -> Change:
    own = varied(old.values) + varied(new.values)
    noise = 1 + max(MARGIN, own, MACHINE_SHARE * machine.variation)
    factors = (machine.least, machine.largest) if new.is_time else NO_MACHINE
    return _change(section, new, min(old.values), min(new.values), factors, noise)


def _of_ratio(section: str, old: Measurement, new: Measurement) -> Change:
    share = sum(row.deviation / abs(row.median) if row.median else 0.0 for row in (old, new))
    noise = 1 + max(MARGIN, DEVIATIONS * share)
    return _change(section, new, old.median, new.median, NO_MACHINE, noise)


def _computed(section: str, old: Measurement, new: Measurement) -> Change:
    return _change(section, new, old.median, new.median, NO_MACHINE, 1 + MARGIN_OF_EXACT)


def _change(
    section: str,
    row: Measurement,
    before: float,
    after: float,
    machine: tuple[float, float],
    noise: float,
) -> Change:
    return Change(section, row.name, row.unit, before, after, machine, noise, row.higher_is_better)


def missing(before: Results, after: Results) -> list[str]:
    """Describe quantities that only one result has in a section of both, and failed sections."""
    found = []
    for section in before.sections.keys() & after.sections.keys():
        names = [{row.name for row in result.sections[section]} for result in (before, after)]
        found += [f"{section}: {name}: gone" for name in names[0] - names[1]]
        found += [f"{section}: {name}: new" for name in names[1] - names[0]]
    found += [f"{section}: failed: {text}" for section, text in after.errors.items()]
    return sorted(found)
