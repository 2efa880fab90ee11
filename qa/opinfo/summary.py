"""Counts results per way and dtype, and decides whether the run meets the bar."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from qa.opinfo import outcome as o
from qa.opinfo.deliver import DELIVERED
from qa.opinfo.known import KNOWN, Known, is_new, known_failure
from qa.opinfo.outcome import OpResult
from qa.opinfo.ways import WAYS

BAR = 0.97
"""Share of the operators that must pass with all samples in dtypes other than float32, for which
`.ways` has a bar per way."""


@dataclass(frozen=True)
class Summary:
    """Numbers of one way and dtype: operators that count, and outcomes."""

    way: str
    dtype: str
    ops: int
    counts: dict[str, int]
    unreferenced: int
    samples: int

    @property
    def passed(self) -> int:
        return self.counts.get(o.PASSED, 0)

    @property
    def supported(self) -> int:
        """Number of operators that need no dtype or layout unknown to the device."""
        return self.ops - sum(self.counts.get(name, 0) for name in (o.UNSUPPORTED, o.LAYOUT))

    @property
    def share(self) -> float:
        """Share of the supported operators that pass; 1 if none is supported."""
        return self.passed / self.supported if self.supported else 1.0

    @property
    def bar(self) -> float:
        return WAYS[self.way].bar if self.dtype == "float32" else BAR


@dataclass(frozen=True)
class Delivered:
    """An operator that must run on the cores, in one dtype."""

    promise: str
    result: OpResult

    @property
    def ok(self) -> bool:
        return self.result.passes and not self.result.fallbacks


def summaries(results: list[OpResult]) -> list[Summary]:
    """One summary per way and dtype, in the order in which they first appear."""
    groups: dict[tuple[str, str], list[OpResult]] = {}
    for result in results:
        groups.setdefault((result.way, result.dtype), []).append(result)
    return [_summary(way, dtype, group) for (way, dtype), group in groups.items()]


def delivered(results: list[OpResult]) -> list[Delivered]:
    """The results of operators that must run on the cores, in the order of their promises."""
    order = {op: place for place, op in enumerate(DELIVERED)}
    found = [
        Delivered(DELIVERED[r.op], r)
        for r in results
        if r.way == "forward" and r.op in DELIVERED and r.counted
    ]
    return sorted(found, key=lambda one: order[one.result.op])


def shortcomings(results: list[OpResult], known: Known = KNOWN) -> list[str]:
    """Return the reasons why the run misses the bar, one sentence each.

    Known failures do not count; a test limits their number.
    """
    others = [one for one in results if known_failure(one, known) is None]
    found = [
        f"{one.way} {one.dtype}: {one.share:.1%} of the supported operators pass, not {one.bar:.1%}"
        for one in summaries(others)
        if one.share < one.bar
    ]
    for outcome in (o.CRASHED, o.TIMEOUT, o.WRONG):
        count = sum(result.outcome == outcome for result in others)
        if count:
            found.append(f"{count} operators: {outcome}")
    new = [f"{one.op} ({one.way} {one.dtype})" for one in results if is_new(one, known)]
    if new:
        found.append(f"not known to fail: {', '.join(new)}")
    late = sum(not one.ok for one in delivered(others))
    if late:
        found.append(f"{late} operators that must run on the cores fail or fall back")
    return found or ([] if results else ["nothing ran"])


def _summary(way: str, dtype: str, results: list[OpResult]) -> Summary:
    counted = [result for result in results if result.counted]
    return Summary(
        way,
        dtype,
        len(counted),
        dict(Counter(result.outcome for result in counted)),
        len(results) - len(counted),
        sum(result.samples for result in results),
    )
