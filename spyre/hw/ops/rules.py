"""Rules on an operation of a well-formed SDSC, by its row of the operation table.

``spyre-run --check`` reports them, the planner raises the first error. Rules: operations reference
§3 (constants, formats), §6 (element arrangements), §8; SDSC reference §8 (further constants are
ignored with a warning).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from math import prod

import numpy as np

from spyre.dtypes import decode_dl16
from spyre.errors import Finding, JsonLocation, SdscError, Severity, UnsupportedError
from spyre.hw.ops.elementwise import CARD_FORMS, HALF, Family, OpDefinition
from spyre.hw.ops.table import OPS, REFUSED, SPEC_NAMES, find_op
from spyre.mlir.operation import MASK_CONSTANT, Operation, Tensor
from spyre.rules import Fault, RuleSet, severities

_COMPUTE = "$.dscs_[0].computeOp_[0]"
_CONSTANTS = "$.dscs_[0].constantInfo_"
_EXTENTS = "$.dscs_[0].N_"
_SCALE_TOLERANCE = 2.0**-8
"""Relative; rounding a scale to DL16 costs 2^-10."""

OpSubject = tuple[Operation, OpDefinition]
"""An operation, and its row of the op table."""


def _operands(subject: OpSubject) -> Iterator[Fault[str]]:
    op, spec = subject
    if len(op.inputs) != spec.inputs or len(op.outputs) != 1:
        message = f"{op.name}: wrong number of tensors"
        found = f"{len(op.inputs)} inputs and {len(op.outputs)} outputs"
        yield Fault("SPY280", _COMPUTE, message, f"{spec.inputs} inputs and 1 output", found)


def _constants(subject: OpSubject) -> Iterator[Fault[str]]:
    op, spec = subject
    for name in spec.constants:
        if name not in op.constants:
            message, present = f"{op.name} needs the constant {name!r}", ", ".join(op.constants)
            yield Fault("SPY281", _CONSTANTS, message, name, present or "no constants")
    known = (*spec.constants, *spec.optional_constants, MASK_CONSTANT)
    for name in op.constants:
        if name not in known:
            message = f"{op.name} does not use the constant {name}"
            yield Fault("SPY297", _CONSTANTS, message, ", ".join(known), name)


def _formats(subject: OpSubject) -> Iterator[Fault[str]]:
    op, spec = subject
    results = spec.result_formats or spec.formats
    pairs = [(tensor, spec.formats) for tensor in op.inputs]
    pairs += [(tensor, results) for tensor in op.outputs]
    for tensor, formats in pairs:
        if tensor.pitches and formats:  # operations on views are in both
            formats = (*formats, "IEEE_FP32")
        if formats and tensor.data_format not in formats:
            yield Fault(
                "SPY522",
                tensor.json_path,
                f"{op.name}: {tensor.name} is {tensor.data_format}, which the operation "
                f"does not take",
                " or ".join(formats),
                tensor.data_format,
            )


def topk_dims(op: Operation) -> tuple[list[str], list[str]]:
    """Dims only the input has (the reduced one) and only the output has (k)."""
    source, target = op.inputs[0], op.outputs[0]
    reduced = [d for d in op.dims if source.holds(d) and not target.holds(d)]
    added = [d for d in op.dims if target.holds(d) and not source.holds(d)]
    return reduced, added


def _topk_extent(subject: OpSubject) -> Iterator[Fault[str]]:
    op, spec = subject
    if spec.family is not Family.TOPK or not op.inputs or not op.outputs:
        return
    reduced, added = topk_dims(op)
    if len(reduced) == len(added) == 1 and op.extents[added[0]] > op.extents[reduced[0]]:
        message = f"{op.name}: k exceeds the extent it selects from"
        expected = f"at most {op.extents[reduced[0]]} along {added[0]!r}"
        yield Fault("SPY286", _EXTENTS, message, expected, str(op.extents[added[0]]))


def reduced_count(op: Operation) -> int:
    """Elements one result of a reduction is made from: masked coordinates do not count."""
    reduced, _ = topk_dims(op)
    return prod(op.extents[d] - sum(count for _, count in op.masks.get(d, ())) for d in reduced)


def _scale(subject: OpSubject) -> Iterator[Fault[str]]:
    """The scale is one over the count, which includes padding unless a mask excludes it."""
    op, spec = subject
    names = {"scaling_factor", "exx2scale"} & set(spec.constants) & set(op.constants)
    if not op.inputs or not op.outputs:
        return
    for name in sorted(names):
        scale = decode_constant(op.constants[name], op.constant_formats[name])
        count = reduced_count(op)
        if abs(scale * count - 1.0) > _SCALE_TOLERANCE and not _padded(op, scale, count):
            message = f"{op.name}: {name} is not one over the number of elements"
            expected = f"1/{count} = {1.0 / max(count, 1):.6g}"
            yield Fault("SPY295", _CONSTANTS, message, expected, f"{scale:.6g}")


def _padded(op: Operation, scale: float, count: int) -> bool:
    """True if ``scale`` fits the extent without the padding of an unmasked stick."""
    source, target = op.inputs[0], op.outputs[0]
    sizes = dict(zip(source.stick_dims, source.stick_sizes, strict=True))
    for stick, lanes in sizes.items():
        if source.holds(stick) and not target.holds(stick):
            least = count // op.extents[stick] * (op.extents[stick] - lanes + 1)
            return scale > 0 and least * (1 - _SCALE_TOLERANCE) <= 1.0 / scale <= count
    return False


RULES: RuleSet[OpSubject, str] = RuleSet(
    severities("SPY280 SPY281 SPY522 SPY286 SPY295 SPY297", warnings="SPY295 SPY297"),
    (_operands, _constants, _formats, _topk_extent, _scale),
)
"""Rules on one operation."""

NOT_SIMULATED = frozenset(("SPY522",))
"""Rules whose violations are valid programs."""

FATAL = frozenset(
    (
        "SPY520",
        "SPY555",
        *(c for c, severity in RULES.severities.items() if severity is Severity.ERROR),
    )
)
"""Codes after which an operation cannot be planned."""


def require_op(op: Operation, errata: Collection[str] = ()) -> OpDefinition:
    """The op-table row of ``op``; of 16-bit results that of a simulated erratum, if it has one.

    ``errata``: names of `spyre.hw.numerics.ERRATA`. UnsupportedError naming the operation:
    SPY555 for one whose mathematics is not public, SPY520 for any other without a row.
    """
    spec = find_op(op.name)
    if spec is not None:
        forms = [CARD_FORMS[name] for name in errata if name in CARD_FORMS]
        is_half = bool(forms) and op.outputs[0].data_format in HALF
        return next((f for f in forms if is_half and f.name in (spec.name, spec.kernel_op)), spec)
    location = JsonLocation(op.file, f"{_COMPUTE}.opFuncName")
    expected = "an operation of docs/operations.md"
    if op.name in REFUSED:
        _, reason = REFUSED[op.name]
        message = f"operation {op.name!r} is known, but not simulated: {reason}"
        raise UnsupportedError("SPY555", message, location, expected=expected, found=op.name)
    is_known = op.name in SPEC_NAMES
    close = get_close_matches(op.name, OPS, 1)
    raise UnsupportedError(
        "SPY520",
        f"operation {op.name!r} is {'not simulated' if is_known else 'unknown'}",
        location,
        expected=expected,
        found=op.name,
        hint=f"did you mean {close[0]}?" if close and not is_known else "",
    )


def require_rules(op: Operation, spec: OpDefinition) -> None:
    """Raise the first violation of an ERROR rule: SdscError, or UnsupportedError for formats."""
    for f in _findings(op, spec):
        if f.severity is Severity.ERROR:
            kind = UnsupportedError if f.code in NOT_SIMULATED else SdscError
            raise kind(f.code, f.message, f.location, expected=f.expected, found=f.found)


def find_faults(op: Operation) -> tuple[Finding, ...]:
    """Findings of all rules; formats that are not simulated are warnings, as in every check."""
    try:
        spec = require_op(op)
    except UnsupportedError as error:
        return (error.finding.as_warning,)
    return tuple(f.as_warning if f.code in NOT_SIMULATED else f for f in _findings(op, spec))


def _findings(op: Operation, spec: OpDefinition) -> tuple[Finding, ...]:
    return RULES.findings((op, spec), partial(JsonLocation, op.file))


STANDARD = "STANDARD"
PAIR = "EXX2"
_OPPOSITE = {"widen": "FP32_TO_DL16", "narrow": "DL16_TO_FP32"}
_OF_PAIRS = ("layernormscale", "layernormnorm")

Tags = Mapping[int, str]
"""Arrangement by tensor index (``Tensor.index``), of the tensors whose arrangement is known."""


def arrangement_faults(op: Operation, spec: OpDefinition, tags: Tags) -> tuple[Finding, ...]:
    """Warnings SPY296 for one execute of ``op`` whose arguments have the arrangements ``tags``."""
    if len(op.inputs) != spec.inputs or not op.outputs:
        return ()  # SPY280 reports it
    if spec.family is Family.ELEMENTWISE and spec.name not in _OF_PAIRS:
        faults = _elementwise(op, tags)
    elif spec.family is Family.REDUCTION:
        faults = _reduction(op, tags)
    elif spec.family is Family.CONVERT:
        faults = _conversion(op, spec, tags)
    else:
        return ()
    location = JsonLocation(op.file, "$.dscs_[0].labeledDs_")
    return tuple(
        Finding("SPY296", Severity.WARNING, f"{op.name}: {message}", location, expected, seen)
        for message, expected, seen in faults
    )


def _shown(tensors: tuple[Tensor, ...], tags: Tags) -> str:
    return ", ".join(f"{t.name} {tags[t.index]}" for t in tensors if t.index in tags)


def _fills_sticks(tensor: Tensor) -> bool:
    """True if the tensor varies along a dim of its stick."""
    return any(tensor.holds(dim) for dim in tensor.stick_dims)


def _elementwise(op: Operation, tags: Tags) -> Iterator[tuple[str, str, str]]:
    """All equal, or one other than STANDARD and the STANDARD ones broadcast along the stick."""
    kinds = {tags[t.index] for t in op.inputs if t.index in tags}
    special = kinds - {STANDARD}
    plain = [t for t in op.inputs if tags.get(t.index) == STANDARD and _fills_sticks(t)]
    if len(special) > 1 or (PAIR in special and len(kinds) > 1) or (special and plain):
        yield (
            "operands have different element arrangements",
            "equal ones, or one other than STANDARD and the rest broadcast along the stick",
            _shown(op.inputs, tags),
        )
    elif all(t.index in tags for t in op.inputs):
        yield from _result(op, tags, special.pop() if special else STANDARD)


def _result(op: Operation, tags: Tags, expected: str) -> Iterator[tuple[str, str, str]]:
    target = op.outputs[0]
    if tags.get(target.index, expected) != expected:
        message = f"the result is tagged {tags[target.index]}, its elements are in another order"
        yield message, expected, _shown(op.tensors, tags)


def _reduction(op: Operation, tags: Tags) -> Iterator[tuple[str, str, str]]:
    """Reducing the stick clears the arrangement (exx2 makes pairs), other dims keep it."""
    source, target = op.inputs[0], op.outputs[0]
    if not _fills_sticks(target):
        if tags.get(target.index) != PAIR:
            yield from _result(op, tags, STANDARD)
    elif source.index in tags:
        yield from _result(op, tags, tags[source.index])


def _conversion(op: Operation, spec: OpDefinition, tags: Tags) -> Iterator[tuple[str, str, str]]:
    opposite = _OPPOSITE.get(spec.kernel_op, STANDARD)
    tag = tags.get(op.inputs[0].index, STANDARD)
    if tag not in (STANDARD, opposite):
        yield (
            "no conversion of this element arrangement is known",
            f"STANDARD or {opposite}",
            _shown(op.inputs, tags),
        )


def decode_constant(bits: int, data_format: str) -> float:
    """Value of a constant's bit pattern (SDSC reference §8): binary32, else a DL16 code."""
    if data_format == "IEEE_FP32":
        return float(np.uint32(bits & 0xFFFFFFFF).view(np.float32))
    return float(decode_dl16(np.array([bits & 0xFFFF], np.uint16))[0])
