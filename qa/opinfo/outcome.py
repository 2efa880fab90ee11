"""What can become of a sample and of an operator, as data that goes through JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

PASSED, UNREFERENCED = "passed", "unreferenced"
UNSUPPORTED, LAYOUT = "unsupported dtype", "unsupported layout"
REFUSED = "refused by code"
RAISED, WRONG, TIMEOUT, CRASHED = "raised", "wrong", "timeout", "crashed"

SEVERITY = (UNREFERENCED, PASSED, UNSUPPORTED, LAYOUT, REFUSED, RAISED, WRONG, TIMEOUT, CRASHED)
"""Outcomes from harmless to worst; an operator has the worst of its samples.

``unreferenced``: no CPU can run the operator in this way, so there is nothing to compare with.
``unsupported dtype``: the device says it does not support a dtype that the documents say it does
not support, and the sample needs that dtype; it counts as a pass. ``unsupported layout``: the same
of tensors that are not strided. ``refused by code``: any other refusal with a code
(:mod:`spyre.codes`), which is no pass, but no wrong number either.
"""

KEPT_FAILURES = 5
"""How many failing samples of an operator keep their reason in the report."""


@dataclass(frozen=True)
class SampleResult:
    """Outcome of one sample: its number, why, and the largest error in units of what is allowed."""

    index: int
    outcome: str
    reason: str = ""
    sample: str = ""
    error: float = 0.0


@dataclass(frozen=True)
class OpResult:
    """Outcome of one operator in one dtype and one way: the worst of its samples."""

    op: str
    dtype: str
    outcome: str
    counts: dict[str, int]
    failures: list[SampleResult] = field(default_factory=list)
    fallbacks: dict[str, int] = field(default_factory=dict)
    error: float = 0.0
    seconds: float = 0.0
    way: str = "forward"

    @property
    def samples(self) -> int:
        return sum(self.counts.values())

    @property
    def counted(self) -> bool:
        """Whether the operator counts at all: the CPU gives a result for one of its samples."""
        return self.outcome != UNREFERENCED

    @property
    def passes(self) -> bool:
        return self.outcome in (PASSED, UNSUPPORTED, LAYOUT)

    @property
    def reason(self) -> str:
        """Why the first of the worst samples failed; empty for those that pass."""
        worst = [failure for failure in self.failures if failure.outcome == self.outcome]
        return worst[0].reason if worst else ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> OpResult:
        failures = [SampleResult(**failure) for failure in data["failures"]]
        return OpResult(**{**data, "failures": failures})


def worst(outcomes: list[str]) -> str:
    """The worst of ``outcomes``; an operator without samples is unreferenced."""
    return max(outcomes, key=SEVERITY.index, default=UNREFERENCED)


def summarised(
    op: str,
    dtype: str,
    results: list[SampleResult],
    fallbacks: dict[str, int],
    seconds: float,
    way: str = "forward",
) -> OpResult:
    """The result of an operator from those of its samples, the worst failures first."""
    outcomes = [result.outcome for result in results]
    counts = {name: outcomes.count(name) for name in SEVERITY if name in outcomes}
    failures = [result for result in results if result.outcome != PASSED]
    failures.sort(key=lambda result: -SEVERITY.index(result.outcome))
    error = max((result.error for result in results), default=0.0)
    kept = failures[:KEPT_FAILURES]
    seconds = round(seconds, 3)
    return OpResult(op, dtype, worst(outcomes), counts, kept, fallbacks, error, seconds, way)
