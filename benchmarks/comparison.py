"""Two results side by side: what changed beyond noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results import Measurement, Results

RELATIVE_OF_EXACT = 1e-6


@dataclass(frozen=True)
class Change:
    """A quantity in two runs.

    ``machine``: the least and the largest factor by which the machine alone may have changed it.
    ``noise``: the factor beyond those up to which nothing is said to have changed.
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
    return []


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
