"""The checks of an SDSC, applied.

``inspect_sdsc`` runs the rules on the form, reads the operation, and runs the rules on its
meaning; ``inspect_operation`` does the last for an operation that was built. The titles of codes
are in :mod:`spyre.codes`. Rules: SuperDSC reference §2-§9 and §12 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from spyre.errors import Finding, JsonLocation, SdscError, Severity, UnsupportedError, has_errors
from spyre.mlir.operation import Operation, Tensor
from spyre.mlir.sdsc.form_rules import FORM_RULES, MAX_TENSORS
from spyre.mlir.sdsc.meaning_rules import BASIC_RULES, BUILT_RULES, MEANING_RULES
from spyre.mlir.sdsc.reader import open_document, operation_of
from spyre.mlir.sdsc.reading import DIM_NAMES, RuleContext
from spyre.mlir.sdsc.structs import Sdsc
from spyre.mlir.sdsc.writer import write_operation
from spyre.rules import RuleSet

LARGEST_TEXT = 10**17


@dataclass(frozen=True, slots=True)
class Inspection:
    """Findings on one SDSC; its operation, or None after an error or a feature not simulated."""

    findings: tuple[Finding, ...]
    operation: Operation | None


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


def inspect_operation(op: Operation) -> Inspection:
    """As `inspect_sdsc` of the file that would be written of ``op``, without writing it."""
    if not _survives_writing(op):
        return inspect_sdsc(write_operation(op), op.file)
    findings: list[Finding] = []
    passed = _passes((BASIC_RULES, BUILT_RULES), RuleContext(op), findings)
    return _inspection(findings, op if passed else None)


def _survives_writing(op: Operation) -> bool:
    """True if the format can express ``op`` and the readers accept it, so that rules can run."""
    return (
        0 < len(op.tensors) <= MAX_TENSORS
        and DIM_NAMES.issuperset(op.dims)
        and min(op.extents.values(), default=0) > 0
        and not (op.symbolic_dims and (op.windows or op.masks))
        and all(0 < last < op.core_extent(dim) for dim, last in op.last_extents.items())
        and all(_tensor_survives(tensor) for tensor in op.tensors)
        and _roles_agree(op)
    )


def _tensor_survives(tensor: Tensor) -> bool:
    dims = set(tensor.dims)
    texts = (*tensor.starts, *tensor.gap_elements.values())  # numbers that are written as text
    return (
        len(dims) == len(tensor.dims)
        and min(tensor.stick_sizes, default=0) > 0
        and all(abs(number) < LARGEST_TEXT for number in texts)
        and all(dims == row.keys() for row in tensor.own_core_slices if row)
        and dims.issuperset((*tensor.gap_elements, *tensor.padding))
    )


def _roles_agree(op: Operation) -> bool:
    """True if tensors of one role have the dims and the stick that a file gives once per role."""
    layouts: dict[str, tuple[frozenset[str], tuple[str, ...], tuple[int, ...]]] = {}
    for tensor in op.tensors:
        layout = (frozenset(tensor.dims), tensor.stick_dims, tensor.stick_sizes)
        if layouts.setdefault(tensor.role, layout) != layout:
            return False
    return True


def _inspection(findings: list[Finding], operation: Operation | None) -> Inspection:
    """Return an inspection without duplicate findings; tensors that share a role repeat them."""
    return Inspection(tuple(dict.fromkeys(findings)), operation)


def _inspect(sdsc: Sdsc, file: str, findings: list[Finding]) -> Operation | None:
    document = open_document(sdsc, file)
    findings.extend(FORM_RULES.findings(document, partial(JsonLocation, file)))
    if has_errors(findings):
        return None
    operation = operation_of(document)
    context = RuleContext(operation, document)
    return operation if _passes((BASIC_RULES, MEANING_RULES), context, findings) else None


def _passes(
    stages: Iterable[RuleSet[RuleContext, str]], context: RuleContext, findings: list[Finding]
) -> bool:
    """Collects the findings of one stage after the other; False at the first with an error.

    So a rule may rely on those of the stages before.
    """
    locate = partial(JsonLocation, context.op.file)
    for rules in stages:
        findings.extend(rules.findings(context, locate))
        if has_errors(findings):
            return False
    return True
