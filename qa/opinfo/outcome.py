"""Outcomes of samples and operators, as data that can be stored as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

PASSED, UNREFERENCED = "passed", "unreferenced"
UNSUPPORTED, LAYOUT = "unsupported dtype", "unsupported layout"
REFUSED = "refused by code"
RAISED, WRONG, TIMEOUT, CRASHED = "raised", "wrong", "timeout", "crashed"

SEVERITY = (UNREFERENCED, PASSED, UNSUPPORTED, LAYOUT, REFUSED, RAISED, WRONG, TIMEOUT, CRASHED)
"""Outcomes from harmless to worst; an operator has the worst of its samples.

``unreferenced``: the CPU cannot run the operator in this way, so there is no reference.
``unsupported dtype``: the device refuses a dtype that has no device format according to the
documents, and the sample needs it; this counts as a pass. ``unsupported layout``: the same for
tensors that are not strided. ``refused by code``: any other refusal with a code
(:mod:`spyre.codes`); neither a pass nor a wrong number.
"""

KEPT_FAILURES = 5
"""Failing samples of an operator whose reasons are reported."""


@dataclass(frozen=True)
class SampleResult:
    """Outcome of one sample: number, reason, and the largest error divided by its bound."""

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
        """True if the operator counts: the CPU can compute one of its samples."""
        return self.outcome != UNREFERENCED

    @property
    def passes(self) -> bool:
        return self.outcome in (PASSED, UNSUPPORTED, LAYOUT)

    @property
    def reason(self) -> str:
        """Reason why the first of the worst samples failed, or ""."""
        worst = [failure for failure in self.failures if failure.outcome == self.outcome]
        return worst[0].reason if worst else ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> OpResult:
        failures = [SampleResult(**failure) for failure in data["failures"]]
        return OpResult(**{**data, "failures": failures})


def worst(outcomes: list[str]) -> str:
    """Return the worst of ``outcomes``; an operator without samples is unreferenced."""
    return max(outcomes, key=SEVERITY.index, default=UNREFERENCED)


def summarised(
    op: str,
    dtype: str,
    results: list[SampleResult],
    fallbacks: dict[str, int],
    seconds: float,
    way: str = "forward",
) -> OpResult:
    """Return the result of an operator from those of its samples, the worst failures first."""
    outcomes = [result.outcome for result in results]
    counts = {name: outcomes.count(name) for name in SEVERITY if name in outcomes}
    failures = [result for result in results if result.outcome != PASSED]
    failures.sort(key=lambda result: -SEVERITY.index(result.outcome))
    error = max((result.error for result in results), default=0.0)
    kept = failures[:KEPT_FAILURES]
    seconds = round(seconds, 3)
    return OpResult(op, dtype, worst(outcomes), counts, kept, fallbacks, error, seconds, way)
