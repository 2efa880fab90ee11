"""Rules as data: the codes that checks may report, the severity of each, and the check functions.

Modules, SDSC files and operations are each checked by a `RuleSet`. A check reports the place of a
fault in its terms (an offset in a text, a JSON path, a tensor); the caller of the set turns it into
a location.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Generic, TypeVar

import msgspec

from spyre.errors import Finding, LaunchError, Location, Severity, SpyreError

PlaceT = TypeVar("PlaceT")
SubjectT = TypeVar("SubjectT")
ErrorT = TypeVar("ErrorT", bound=SpyreError)


class Fault(msgspec.Struct, Generic[PlaceT], frozen=True):
    """One violation of the rule ``code``."""

    code: str
    place: PlaceT
    message: str
    expected: str = ""
    found: str = ""
    hint: str = ""

    def finding(self, severity: Severity, location: Location | None) -> Finding:
        """The fault at ``location``."""
        code, expected, found = self.code, self.expected, self.found
        return Finding(code, severity, self.message, location, expected, found, self.hint)

    def error(self, kind: type[ErrorT], location: Location | None) -> ErrorT:
        """The fault as an exception, where nothing goes on after it."""
        details = {"expected": self.expected, "found": self.found, "hint": self.hint}
        return kind(self.code, self.message, location, **details)


def severities(codes: str, warnings: str = "") -> dict[str, Severity]:
    """The severity of each of ``codes``: errors but for the ``warnings`` among them."""
    rows = ((code, code in warnings.split()) for code in codes.split())
    return {code: Severity.WARNING if is_warning else Severity.ERROR for code, is_warning in rows}


Check = Callable[[SubjectT], Iterable[Fault[PlaceT]]]
"""Yields a fault for everything it finds wrong with the subject it is given."""


class RuleSet(msgspec.Struct, Generic[SubjectT, PlaceT], frozen=True):
    """Rules on one kind of subject.

    ``severities``: of every code the checks may report, in the order in which findings come.
    """

    severities: Mapping[str, Severity]
    checks: tuple[Check[SubjectT, PlaceT], ...]

    def __add__(self, other: RuleSet[SubjectT, PlaceT]) -> RuleSet[SubjectT, PlaceT]:
        return RuleSet({**self.severities, **other.severities}, self.checks + other.checks)

    def findings(
        self,
        subject: SubjectT,
        locate: Callable[[PlaceT], Location | None],
        limit: int | None = None,
    ) -> tuple[Finding, ...]:
        """Return findings about ``subject`` in the order of codes, at most ``limit`` of each."""
        faults: dict[str, list[Fault[PlaceT]]] = {code: [] for code in self.severities}
        for check in self.checks:
            for fault in check(subject):
                faults[fault.code].append(fault)
        return tuple(
            fault.finding(severity, locate(fault.place))
            for code, severity in self.severities.items()
            for fault in faults[code][:limit]
        )


def textual_place(finding: Finding) -> tuple[int, int]:
    """Line and column of a finding, by which findings on a text are sorted."""
    location = finding.location
    return getattr(location, "line", 0), getattr(location, "column", 0)


# --- arguments of public functions ------------------------------------------------------------

LARGEST = 1 << 62
"""The largest number that an argument may be: int64 arithmetic with a spare bit."""


def whole_number(name: str, value: object, least: int = 0, most: int = LARGEST) -> int:
    """Return ``value`` as int. LaunchError SPY812 unless it is a whole number in the range."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        if least <= (number := int(value)) <= most:
            return number
        value = f"{number:#x}"[:40]
    expected = f"a whole number from {least} to {most}"
    raise LaunchError("SPY812", f"{name} is wrong", expected=expected, found=repr(value)[:40])


def require_type(name: str, value: object, *kinds: type) -> None:
    """Raise LaunchError SPY812 unless ``value`` is an instance of one of ``kinds``."""
    if not isinstance(value, kinds):
        expected, found = " or ".join(kind.__name__ for kind in kinds), type(value).__name__
        raise LaunchError("SPY812", f"{name} is wrong", expected=expected, found=found)
