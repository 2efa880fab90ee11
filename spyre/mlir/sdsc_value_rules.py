"""Checks on coordinate masks and constants.

Part of the rule table of :mod:`.sdsc_rules`. Rules: SuperDSC reference §6.3, §8 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from spyre.dtypes import FORMATS
from spyre.errors import Severity
from spyre.mlir.sdsc_structs import given
from spyre.mlir.sdsc_subject import Rule, Subject, Violation

MASK_CONSTANT = "samv-maskvalue"


def _masks(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    for dim, ranges in op.masks.items():
        path = f"{subject.dsc_path}.coordinateMasking_.{dim}"
        if dim not in op.extents:
            message = f"mask of {dim}, which is not part of the iteration space"
            yield Violation(path, message, f"one of {', '.join(op.dims)}", dim)
            continue
        for start, count in ranges:
            if start < 0 or count < 1 or start + count > op.extents[dim]:
                message = f"mask of {dim} leaves the extent"
                expected = f"within 0 to {op.extents[dim]}"
                yield Violation(path, message, expected, f"[{start}, {count}]")


def _mask_constant(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    if op.masks and MASK_CONSTANT not in op.constants:
        path = f"{subject.dsc_path}.constantInfo_"
        found = ", ".join(op.constants) or "no constants"
        message = "the mask has no value"
        yield Violation(path, message, f"a constant named {MASK_CONSTANT}", found)


def _mask_constant_id(subject: Subject) -> Iterator[Violation]:
    table = subject.dsc.constants
    if (
        not subject.op.masks
        or not isinstance(table, dict)
        or MASK_CONSTANT not in subject.op.constants
    ):
        return
    named = table.get(str(given(subject.dsc.mask_constant_id, -1)))
    if named is not None and named.name != MASK_CONSTANT:
        path = f"{subject.dsc_path}.maskingConstId_"
        message = f"maskingConstId_ names {named.name}; {MASK_CONSTANT} is used"
        yield Violation(path, message, f"the id of {MASK_CONSTANT}", named.name)


def _constants(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    for name, bits in op.constants.items():
        data_format = FORMATS.get(op.constant_formats[name])
        path = f"{subject.dsc_path}.constantInfo_"
        if data_format is None:
            message = f"constant {name} has an unknown format"
            found = op.constant_formats[name]
            yield Violation(path, message, f"one of {', '.join(FORMATS)}", found)
        elif not 0 <= bits < 1 << data_format.bits:
            message = f"bit pattern of constant {name} does not fit {data_format.name}"
            yield Violation(path, message, f"{data_format.bits} bits, unsigned", str(bits))


VALUE_RULES: tuple[Rule, ...] = (
    Rule("SPY237", Severity.ERROR, _masks),
    Rule("SPY238", Severity.ERROR, _mask_constant),
    Rule("SPY239", Severity.WARNING, _mask_constant_id),
    Rule("SPY240", Severity.ERROR, _constants),
)
"""Rules on masks and constants."""
