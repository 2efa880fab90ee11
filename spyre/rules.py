"""Rules as data: a code, a severity, and a check that finds faults in its subject.

Modules, SDSC files and operations are checked by tables of these. The place of a fault is whatever
the check knows: an offset in a text, a JSON path, a tensor; who applies a table says where that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from spyre.errors import Finding, Location, Severity

PlaceT = TypeVar("PlaceT")
SubjectT = TypeVar("SubjectT")


@dataclass(frozen=True, slots=True)
class Fault(Generic[PlaceT]):
    """One violation of a rule."""

    place: PlaceT
    message: str
    expected: str = ""
    found: str = ""
    hint: str = ""

    def finding(self, code: str, severity: Severity, location: Location | None) -> Finding:
        """The fault as a violation of the rule ``code`` at ``location``."""
        return Finding(code, severity, self.message, location, self.expected, self.found, self.hint)


@dataclass(frozen=True, slots=True)
class Rule(Generic[SubjectT, PlaceT]):
    """``check`` yields a fault per violation of the rule in the subject it is given."""

    code: str
    severity: Severity
    check: Callable[[SubjectT], Iterable[Fault[PlaceT]]]


def error(
    code: str, check: Callable[[SubjectT], Iterable[Fault[PlaceT]]]
) -> Rule[SubjectT, PlaceT]:
    """A rule whose violation stops the program."""
    return Rule(code, Severity.ERROR, check)


def warning(
    code: str, check: Callable[[SubjectT], Iterable[Fault[PlaceT]]]
) -> Rule[SubjectT, PlaceT]:
    """A rule whose violation is only reported."""
    return Rule(code, Severity.WARNING, check)


def apply_rules(
    rules: Iterable[Rule[SubjectT, PlaceT]],
    subject: SubjectT,
    locate: Callable[[PlaceT], Location | None],
    limit: int | None = None,
) -> Iterator[Finding]:
    """Findings of all rules on ``subject`` in the order of the rules; at most ``limit`` of each."""
    for rule in rules:
        for fault in islice(rule.check(subject), limit):
            yield fault.finding(rule.code, rule.severity, locate(fault.place))
