"""Which element arrangements of operands and result go together, as the frontend enforces it.

Arrangements come from the layouts of a launch's arguments; an intermediate has none that is known,
and nothing is said about it. Rules: operations reference §6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spyre.errors import Finding, JsonLocation, Severity
from spyre.hw.ops import Family, OpSpec
from spyre.mlir.operation import Operation, Tensor

STANDARD = "STANDARD"
PAIR = "EXX2"
_OPPOSITE = {"widen": "FP32_TO_DL16", "narrow": "DL16_TO_FP32"}
_OF_PAIRS = ("layernormscale", "layernormnorm")

Tags = Mapping[int, str]
"""Arrangement by tensor index (``Tensor.index``), of the tensors whose arrangement is known."""


def arrangement_faults(op: Operation, spec: OpSpec, tags: Tags) -> tuple[Finding, ...]:
    """Warnings SPY296 for one execute of ``op`` whose arguments have the arrangements ``tags``."""
    if spec.family is Family.ELEMENTWISE and spec.name not in _OF_PAIRS:
        found = _elementwise(op, tags)
    elif spec.family is Family.REDUCTION:
        found = _reduction(op, tags)
    elif spec.family is Family.CONVERT:
        found = _conversion(op, spec, tags)
    else:
        return ()
    place = JsonLocation(op.file, "$.dscs_[0].labeledDs_")
    return tuple(
        Finding("SPY296", Severity.WARNING, f"{op.name}: {message}", place, expected, seen)
        for message, expected, seen in found
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
        message = f"the result is tagged {tags[target.index]}, its elements lie otherwise"
        yield message, expected, _shown(op.tensors, tags)


def _reduction(op: Operation, tags: Tags) -> Iterator[tuple[str, str, str]]:
    """Reducing the stick clears the arrangement (exx2 makes pairs), other dims keep it."""
    source, target = op.inputs[0], op.outputs[0]
    if not _fills_sticks(target):
        if tags.get(target.index) != PAIR:
            yield from _result(op, tags, STANDARD)
    elif source.index in tags:
        yield from _result(op, tags, tags[source.index])


def _conversion(op: Operation, spec: OpSpec, tags: Tags) -> Iterator[tuple[str, str, str]]:
    opposite = _OPPOSITE.get(spec.kernel_op, STANDARD)
    found = tags.get(op.inputs[0].index, STANDARD)
    if found not in (STANDARD, opposite):
        yield (
            "no conversion of this element arrangement is known",
            f"STANDARD or {opposite}",
            _shown(op.inputs, tags),
        )
