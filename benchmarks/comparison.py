"""Two results side by side: what changed beyond noise.

The rule: medians differ by more than the larger of 5 % of the older one and three times the larger
median absolute deviation of the two. Of fewer than MIN_SAMPLES samples nobody knows the deviation:
then it takes 25 %. Computed values change when they differ by more than a part in 10^6. Times of
different machines are not compared; ratios and computed values are.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results import Measurement, Results

RELATIVE = 0.05
DEVIATIONS = 3.0
MIN_SAMPLES = 3
RELATIVE_OF_FEW = 0.25
RELATIVE_OF_EXACT = 1e-6


@dataclass(frozen=True)
class Change:
    """A quantity in two runs; ``noise``: the difference of medians that is none."""

    section: str
    name: str
    unit: str
    before: float
    after: float
    noise: float
    better: bool

    @property
    def is_change(self) -> bool:
        return abs(self.after - self.before) > self.noise

    @property
    def verdict(self) -> str:
        if not self.is_change:
            return ""
        return "better" if self.better else "WORSE"


def noise(before: Measurement, after: Measurement) -> float:
    """The difference of their medians up to which nothing is said to have changed."""
    scale = abs(before.median)
    if before.exact:
        return RELATIVE_OF_EXACT * scale
    if min(len(before.values), len(after.values)) < MIN_SAMPLES:
        return RELATIVE_OF_FEW * scale
    return max(RELATIVE * scale, DEVIATIONS * max(before.deviation, after.deviation))


def compare(before: Results, after: Results) -> list[Change]:
    """Every quantity both have, in the order of ``after``."""
    same = before.machine == after.machine
    changes = []
    for section, rows in after.sections.items():
        known = {row.name: row for row in before.sections.get(section, ())}
        for row in rows:
            old = known.get(row.name)
            if old is None or old.unit != row.unit or not (same or _is_portable(row)):
                continue
            better = (row.median > old.median) == row.higher_is_better
            changes.append(
                Change(section, row.name, row.unit, old.median, row.median, noise(old, row), better)
            )
    return changes


def missing(before: Results, after: Results) -> list[str]:
    """Quantities of the sections both have that only one has, and sections that failed."""
    found = []
    for section in before.sections.keys() & after.sections.keys():
        names = [{row.name for row in result.sections[section]} for result in (before, after)]
        found += [f"{section}: {name}: gone" for name in names[0] - names[1]]
        found += [f"{section}: {name}: new" for name in names[1] - names[0]]
    found += [f"{section}: failed: {text}" for section, text in after.errors.items()]
    return sorted(found)


def _is_portable(row: Measurement) -> bool:
    return row.exact or row.unit == "x"
