"""Checks on tensors: scales, sticks, formats, gaps, indirect access and coordinate folds.

Part of the rule table of :mod:`.sdsc_rules`. Rules: SuperDSC reference §4-§6 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from spyre.dtypes import FORMATS
from spyre.errors import Severity
from spyre.mlir.footprint import core_extent, index_step_fault, stick_elements
from spyre.mlir.operation import Indirection, Operation, Tensor
from spyre.mlir.sdsc_structs import CoordInfo, given, int_or_none
from spyre.mlir.sdsc_subject import Rule, Subject, Violation

INDEX_ROLE = "KERNEL_IDX"


def _scales(subject: Subject) -> Iterator[Violation]:
    for tensor in subject.op.tensors:
        for dim, scale in tensor.scale.items():
            allowed = (1, -1, -2) if dim in tensor.stick_dims else (1, -1)
            if scale not in allowed:
                message = f"scale of {tensor.name} along {dim} has no meaning"
                expected = f"one of {', '.join(map(str, allowed))}"
                yield Violation(f"{tensor.json_path}.scale_", message, expected, str(scale))


def _sticks(subject: Subject) -> Iterator[Violation]:
    for tensor in subject.op.tensors:
        path = f"{subject.dsc_path}.primaryDsInfo_.{tensor.role}"
        outside = [dim for dim in tensor.stick_dims if dim not in tensor.dims]
        if outside:
            message = f"stick dim {outside[0]} is not a dim of role {tensor.role}"
            expected = f"one of {', '.join(tensor.dims)}"
            yield Violation(f"{path}.stickDimOrder_", message, expected, outside[0])
        wanted = _elements_per_stick(tensor)
        if wanted and prod(tensor.stick_sizes) != wanted:
            message = f"stick of {tensor.name} does not hold 128 bytes of {tensor.data_format}"
            found = str(prod(tensor.stick_sizes))
            yield Violation(f"{path}.stickSize_", message, f"{wanted} elements", found)


def _elements_per_stick(tensor: Tensor) -> int:
    data_format = FORMATS.get(tensor.data_format)
    return data_format.elements_per_stick if data_format is not None else 0


def _tensor_dims(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    for tensor in op.tensors:
        for dim in tensor.dims:
            if dim not in op.extents:
                path = f"{subject.node_path(tensor)}.layoutDimOrder_"
                message = f"dim {dim} of {tensor.name} is not part of the iteration space"
                yield Violation(path, message, f"one of {', '.join(op.dims)}", dim)


def _formats(subject: Subject) -> Iterator[Violation]:
    for tensor in subject.op.tensors:
        if tensor.data_format not in FORMATS:
            path = f"{tensor.json_path}.dataFormat_"
            message = f"data format of {tensor.name} is unknown"
            yield Violation(path, message, f"one of {', '.join(FORMATS)}", tensor.data_format)


def _word_lengths(subject: Subject) -> Iterator[Violation]:
    for tensor in subject.op.tensors:
        data_format = FORMATS.get(tensor.data_format)
        if data_format is None or data_format.bits < 8:
            continue
        if tensor.word_length_bytes * 8 != data_format.bits:
            message = f"{tensor.name} has another word length than {tensor.data_format}"
            expected = f"{data_format.bits // 8} bytes"
            found = f"{tensor.word_length_bytes} bytes"
            yield Violation(f"{tensor.json_path}.wordLength", message, expected, found)


def _idle_tensors(subject: Subject) -> Iterator[Violation]:
    used = {tensor.index for tensor in subject.op.tensors}
    for index, tensor in enumerate(subject.dsc.tensors):
        if index not in used:
            path = f"{subject.dsc_path}.labeledDs_[{index}]"
            yield Violation(path, f"{tensor.name} is neither read nor written")


def _presence(subject: Subject) -> Iterator[Violation]:
    for tensor in subject.op.tensors:
        memories = given(subject.dsc.tensors[tensor.index].memories, {})
        if memories and tensor.component.value not in memories:
            path = f"{tensor.json_path}.memOrg_"
            message = f"{tensor.name} lives in a memory memOrg_ does not list"
            found = ", ".join(memories)
            yield Violation(path, message, tensor.component.value, found)


def _stick_multiples(subject: Subject) -> Iterator[Violation]:
    """§6.1: a core's part of a stick dim is whole sticks, of the longest stick sharing the dim."""
    op = subject.op
    longest: dict[str, int] = {}
    for tensor in op.tensors:
        for dim, size in stick_elements(tensor).items():
            if tensor.role != INDEX_ROLE and tensor.holds(dim):
                longest[dim] = max(longest.get(dim, 1), size)
    for dim, size in longest.items():
        extent = op.core_extent(dim)
        if extent % size or op.last_extents.get(dim, 0) % size:
            message = f"a core's part of stick dim {dim} is not whole sticks"
            path = f"{subject.dsc_path}.N_.{dim}_"
            yield Violation(path, message, f"a multiple of {size} per core", str(extent))


def _gap_signs(subject: Subject) -> Iterator[Violation]:
    for tensor in subject.op.tensors:
        path = subject.node_path(tensor)
        for dim, gap in tensor.gap_elements.items():
            if gap < 0:
                message = f"gap of {tensor.name} along {dim} is negative"
                place = f"{path}.backGapCore_.{dim}"
                yield Violation(place, message, "0 or more elements", str(gap))
        for dim, size in tensor.device_dim_sizes.items():
            if size < 1:
                message = f"device size of {tensor.name} along {dim} is not positive"
                place = f"{path}.deviceDimSizes_"
                yield Violation(place, message, "at least 1 element", str(size))


def _indirection(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    tensors = {tensor.index: tensor for tensor in op.tensors}
    for tensor in op.tensors:
        if tensor.indirection is Indirection.NONE:
            continue
        other = tensors.get(-1 if tensor.related_tensor is None else tensor.related_tensor)
        wanted = _COUNTERPART[tensor.indirection]
        if other is None or other.indirection is not wanted:
            path = f"{subject.node_path(tensor)}.relatedIndirectAccessAlloc_"
            message = f"{tensor.name} has no {wanted.value} that belongs to it"
            found = "nothing" if other is None else f"{other.name}: {other.indirection.value}"
            yield Violation(path, message, f"the node of a {wanted.value}", found)


def _index_steps(subject: Subject) -> Iterator[Violation]:
    """§6.4: an index needs a dim to count along, and every other dim a pitch."""
    op = subject.op
    for tensor in op.tensors if op.index_tensors else ():
        if tensor.indirection is not Indirection.VALUE:
            continue
        if fault := index_step_fault(op, tensor):
            path = f"{subject.node_path(tensor)}.maxDimSizes_"
            expected = "an indexed dim or a dim of pages, outermost or with deviceDimSizes_"
            yield Violation(path, fault, expected)


_COUNTERPART = {Indirection.VALUE: Indirection.INDEX, Indirection.INDEX: Indirection.VALUE}


def _coord_infos(subject: Subject) -> Iterator[tuple[Tensor, str, Mapping[str, CoordInfo]]]:
    """coordInfo of the tensors that have one; index tensors do not follow the rules (§5.5)."""
    for tensor in subject.op.tensors:
        info = subject.coord_infos(subject.node_indices[tensor.index])
        if info and tensor.role != INDEX_ROLE:
            yield tensor, f"{subject.node_path(tensor)}.coordinates_.coordInfo", info


def _coord_dims(subject: Subject) -> Iterator[Violation]:
    for tensor, path, info in _coord_infos(subject):
        if info.keys() != set(tensor.dims):
            message = f"coordInfo of {tensor.name} describes other dims than the tensor has"
            yield Violation(path, message, ", ".join(tensor.dims), ", ".join(info))


def _coord_extents(subject: Subject) -> Iterator[Violation]:
    """§5.5: the element folds of a dim enumerate one core's part of it."""
    for tensor, path, info in _coord_infos(subject):
        sticks = stick_elements(tensor)
        for dim, entry in info.items():
            if dim not in tensor.scale:
                continue
            wanted = _coordinate_count(subject.op, tensor, dim, sticks.get(dim, 1))
            factors = [int_or_none(p.factor) for p in entry.folds.properties[3:]]
            found = None if None in factors else prod(f for f in factors if f is not None)
            if found != wanted:
                message = f"element folds of {tensor.name} along {dim} miss the per-core extent"
                place = f"{path}.{dim}.folds.dim_prop_attr"
                yield Violation(place, message, str(wanted), str(found))


def _coordinate_count(op: Operation, tensor: Tensor, dim: str, stick: int) -> int:
    scale = tensor.scale[dim]
    if scale == 1:
        if op.window_of(tensor, dim) is None:
            return core_extent(op, tensor, dim)
        return -(-op.window_span(tensor, dim) // stick) * stick
    return stick if scale == -2 else 1


SHAPE_RULES: tuple[Rule, ...] = (
    Rule("SPY221", Severity.ERROR, _sticks),
    Rule("SPY222", Severity.ERROR, _tensor_dims),
)
"""Rules that footprints build on: sticks and dims are those of the tensor and the operation."""

TENSOR_RULES: tuple[Rule, ...] = (
    Rule("SPY220", Severity.ERROR, _scales),
    Rule("SPY232", Severity.ERROR, _coord_extents),
    Rule("SPY233", Severity.ERROR, _coord_dims),
    Rule("SPY234", Severity.ERROR, _stick_multiples),
    Rule("SPY241", Severity.ERROR, _word_lengths),
    Rule("SPY242", Severity.ERROR, _formats),
    Rule("SPY243", Severity.ERROR, _indirection),
    Rule("SPY244", Severity.ERROR, _gap_signs),
    Rule("SPY248", Severity.WARNING, _idle_tensors),
    Rule("SPY252", Severity.WARNING, _presence),
    Rule("SPY262", Severity.ERROR, _index_steps),
)
"""The other rules on tensors."""
