"""What a rule is: a code, a severity, and a check that finds faults.

``structure_rules`` and ``module_rules`` hold the rules themselves. A check yields
:class:`Fault` objects with text offsets; ``run`` turns them into findings with places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from spyre.errors import Finding, Severity, SourceLocation
from spyre.mlir.syntax import Module

MAX_FAULTS = 100
Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Fault:
    """One violation; ``place`` is an offset of the module's text or a location."""

    message: str
    place: int | SourceLocation | None
    expected: str = ""
    found: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Rule(Generic[Subject]):
    """``check`` yields a fault per violation of the rule in the subject it is given."""

    code: str
    severity: Severity
    check: Callable[[Subject], Iterable[Fault]]


def error(code: str, check: Callable[[Subject], Iterable[Fault]]) -> Rule[Subject]:
    """A rule whose violation stops the program."""
    return Rule(code, Severity.ERROR, check)


def warning(code: str, check: Callable[[Subject], Iterable[Fault]]) -> Rule[Subject]:
    """A rule whose violation is only reported."""
    return Rule(code, Severity.WARNING, check)


def run(rules: Sequence[Rule[Subject]], subject: Subject, module: Module) -> tuple[Finding, ...]:
    """Findings of all rules on ``subject``, located in ``module``, in the order of the rules.

    A rule is heard MAX_FAULTS times: one missing line can make ten thousand names undefined.
    """
    return tuple(
        _finding(rule.code, rule.severity, fault, module)
        for rule in rules
        for fault in islice(rule.check(subject), MAX_FAULTS)
    )


def _finding(code: str, severity: Severity, fault: Fault, module: Module) -> Finding:
    place = fault.place
    location = module.locate(place) if isinstance(place, int) else place
    return Finding(code, severity, fault.message, location, fault.expected, fault.found, fault.hint)
