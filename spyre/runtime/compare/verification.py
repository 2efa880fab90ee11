"""What ``--verify`` found.

Apart from :mod:`.reference_check`, which makes it and loads the reference implementation.
"""

from __future__ import annotations

from dataclasses import dataclass

from spyre.errors import Finding

DEFAULT_VERIFY_POINTS = 1 << 23
"""Points of the iteration space up to which an execute is verified; the reference is slow."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Executes that agreed, and a warning per execute statement too large to be verified."""

    verified: int
    not_verified: int = 0
    findings: tuple[Finding, ...] = ()

    def __add__(self, other: Verification) -> Verification:
        return Verification(
            self.verified + other.verified,
            self.not_verified + other.not_verified,
            self.findings + other.findings,
        )

    def __str__(self) -> str:
        text = f"{self.verified} of {self.verified + self.not_verified} executes agree"
        text += " with the reference implementation"
        return f"{text}, {self.not_verified} were too large" if self.not_verified else text
