"""Every check of an SDSC as data, and the function that applies them.

``inspect_sdsc`` runs the rules on the form, reads the operation, and runs the rules on its
meaning. A rule is a code, a severity and a function from the file to its faults; the code's title
is in :mod:`spyre.codes`. Rules: SuperDSC reference §2-§9 and §12 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from spyre.errors import Finding, JsonLocation, SdscError, Severity, UnsupportedError
from spyre.mlir.operation.operation import Operation
from spyre.mlir.sdsc.address_rules import ADDRESS_RULES
from spyre.mlir.sdsc.form_rules import FORM_RULES
from spyre.mlir.sdsc.meaning_rules import (
    DIM_RULES,
    GRID_RULES,
    SHAPE_RULES,
    SLICE_RULES,
    TENSOR_RULES,
    VALUE_RULES,
)
from spyre.mlir.sdsc.reader import read_operation, require_dsc
from spyre.mlir.sdsc.reading import SdscRule, SdscUnderCheck
from spyre.mlir.sdsc.structs import Sdsc

BASIC_RULES: tuple[SdscRule, ...] = (*GRID_RULES, *SHAPE_RULES)
MEANING_RULES: tuple[SdscRule, ...] = (
    *SLICE_RULES,
    *DIM_RULES,
    *TENSOR_RULES,
    *ADDRESS_RULES,
    *VALUE_RULES,
)
RULES: tuple[SdscRule, ...] = (*FORM_RULES, *BASIC_RULES, *MEANING_RULES)
"""Every rule in the order of application: form, basic, meaning. A stage runs only when the one
before found no error, so a rule may rely on the earlier ones."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Findings on one SDSC; its operation, or None after an error or a feature not simulated."""

    findings: tuple[Finding, ...]
    operation: Operation | None


def check_sdsc(sdsc: Sdsc, file: str) -> tuple[Finding, ...]:
    """Findings of all rules; a feature that is valid but not simulated is a warning."""
    return inspect_sdsc(sdsc, file).findings


def inspect_sdsc(sdsc: Sdsc, file: str) -> Inspection:
    """Checks an SDSC and reads its operation, in one pass."""
    findings: list[Finding] = []
    try:
        operation = _inspect(sdsc, file, findings)
    except SdscError as error:
        return _inspection([*findings, error.finding], None)
    except UnsupportedError as error:
        warning = replace(error.finding, severity=Severity.WARNING)
        return _inspection([*findings, warning], None)
    return _inspection(findings, operation)


def _inspection(findings: list[Finding], operation: Operation | None) -> Inspection:
    """Equal findings (of tensors that share a role) are told once."""
    return Inspection(tuple(dict.fromkeys(findings)), operation)


def _inspect(sdsc: Sdsc, file: str, findings: list[Finding]) -> Operation | None:
    require_dsc(sdsc, file)
    findings.extend(_apply(FORM_RULES, SdscUnderCheck(sdsc), file))
    if _has_errors(findings):
        return None
    operation = read_operation(sdsc, file)
    for rules in (BASIC_RULES, MEANING_RULES):
        findings.extend(_apply(rules, SdscUnderCheck(sdsc, operation), file))
        if _has_errors(findings):
            return None
    return operation


def _apply(rules: Iterable[SdscRule], subject: SdscUnderCheck, file: str) -> Iterable[Finding]:
    for rule in rules:
        for fault in rule.check(subject):
            place = JsonLocation(file, fault.path)
            yield Finding(
                rule.code, rule.severity, fault.message, place, fault.expected, fault.found
            )


def _has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in findings)
