"""Counts results per dtype and says whether the run meets the bar."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.opinfo import outcome as o
from tests.opinfo.deliver import DELIVERED
from tests.opinfo.outcome import OpResult

BAR = 0.97
"""Part of the operators of a dtype that must pass with all samples."""


@dataclass(frozen=True)
class DtypeSummary:
    """One dtype: operators that count, and how many of them have each outcome."""

    dtype: str
    ops: int
    counts: dict[str, int]
    unreferenced: int
    samples: int

    @property
    def passed(self) -> int:
        """Operators that pass: all samples right, or refused as documented."""
        return self.counts.get(o.PASSED, 0) + self.counts.get(o.REFUSED, 0)

    @property
    def share(self) -> float:
        return self.passed / self.ops if self.ops else 0.0


@dataclass(frozen=True)
class Delivered:
    """An operator that must run on the cores, in one dtype."""

    promise: str
    result: OpResult

    @property
    def ok(self) -> bool:
        return self.result.passes and not self.result.fallbacks


def summaries(results: list[OpResult]) -> list[DtypeSummary]:
    """One summary per dtype, in the order in which dtypes first appear."""
    return [
        _summary(dtype, [result for result in results if result.dtype == dtype])
        for dtype in dict.fromkeys(result.dtype for result in results)
    ]


def delivered(results: list[OpResult]) -> list[Delivered]:
    """The results of operators that must run on the cores, in the order of their promises."""
    order = {op: place for place, op in enumerate(DELIVERED)}
    found = [Delivered(DELIVERED[r.op], r) for r in results if r.op in DELIVERED and r.counted]
    return sorted(found, key=lambda one: order[one.result.op])


def shortcomings(results: list[OpResult]) -> list[str]:
    """Why the run misses the bar, one sentence each; empty when it meets it."""
    found = [
        f"{one.dtype}: {one.share:.1%} of the operators pass, not {BAR:.0%}"
        for one in summaries(results)
        if one.share < BAR
    ]
    for outcome in (o.CRASHED, o.TIMEOUT, o.WRONG):
        count = sum(result.outcome == outcome for result in results)
        if count:
            found.append(f"{count} operators: {outcome}")
    late = sum(not one.ok for one in delivered(results))
    if late:
        found.append(f"{late} operators that must run on the cores fail or fall back")
    return found or ([] if results else ["nothing ran"])


def _summary(dtype: str, results: list[OpResult]) -> DtypeSummary:
    counted = [result for result in results if result.counted]
    return DtypeSummary(
        dtype,
        len(counted),
        dict(Counter(result.outcome for result in counted)),
        len(results) - len(counted),
        sum(result.samples for result in results),
    )
