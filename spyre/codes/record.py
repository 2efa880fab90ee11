"""What is said about one diagnostic code besides its title."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """``cause``: what makes the code appear, and why it matters. ``fix``: what to do about it."""

    cause: str
    fix: str


@dataclass(frozen=True, slots=True)
class DiagnosticCode:
    """A code with everything that is said about it; cause and fix are '' until written."""

    code: str
    title: str
    cause: str = ""
    fix: str = ""
