"""Rules on what an SDSC means: work slices, windows, symbolic dims, tensors, masks, constants.

Part of the rule table of :mod:`.inspection`; they look at the :class:`Operation` that was read.
Rules: SuperDSC reference §2-§6, §8, §9, §11 (sdsc.md), operations reference §7 (ops.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from spyre.dtypes import FORMATS
from spyre.errors import Severity
from spyre.mlir.operation.footprint import core_extent, index_step_fault, stick_elements
from spyre.mlir.operation.operation import (
    MASK_CONSTANT,
    Indirection,
    Operation,
    Padding,
    Tensor,
    Window,
)
from spyre.mlir.operation.own_slices import SHUFFLE, own_slice_faults
from spyre.mlir.sdsc.reader import SYMBOLIC_KEY, WINDOWS_KEY
from spyre.mlir.sdsc.reading import SdscRule, SdscUnderCheck, Violation, dim_entries, show_table
from spyre.mlir.sdsc.structs import CoordInfo, given, int_or_none


def _slice_range(subject: SdscUnderCheck) -> Iterator[Violation]:
    op = subject.op
    for core, row in zip(op.cores, op.core_slices, strict=True):
        for dim, index in row.items():
            if not 0 <= index < op.slices[dim]:
                path = f"{subject.path}.coreIdToWkSlice_.{core}.{dim}"
                message = f"core {core} has a work slice out of range"
                yield Violation(path, message, f"0 to {op.slices[dim] - 1}", str(index))


def _slice_product(subject: SdscUnderCheck) -> Iterator[Violation]:
    op = subject.op
    count = prod(op.slices.values())
    if min(op.slices.values()) < 1 or count > len(op.cores):
        expected = f"positive, product {len(op.cores)}"
        path = f"{subject.path}.numWkSlicesPerDim_"
        message = "work slices do not match the number of cores"
        yield Violation(path, message, expected, show_table(op.slices))


def _slice_grid(subject: SdscUnderCheck) -> Iterator[Violation]:
    op = subject.op
    count = prod(op.slices.values())
    seen = {tuple(row.values()) for row in op.core_slices}
    if len(seen) != count:
        path = f"{subject.path}.coreIdToWkSlice_"
        message = "some work slices belong to no core"
        expected, found = f"{count} different work slices", f"{len(seen)} on {len(op.cores)} cores"
        yield Violation(path, message, expected, found)


def _replication(subject: SdscUnderCheck) -> Iterator[Violation]:
    """§2: fewer slices than cores means some cores do the same work; nobody says what for."""
    op = subject.op
    count = prod(op.slices.values())
    if count < len(op.cores):
        path = f"{subject.path}.numWkSlicesPerDim_"
        message = "several cores have the same work slice"
        yield Violation(path, message, f"product {len(op.cores)}", show_table(op.slices))


def _divisible(subject: SdscUnderCheck) -> Iterator[Violation]:
    op = subject.op
    for dim, extent in op.extents.items():
        if op.slices[dim] > 0 and dim not in op.last_extents and extent % op.slices[dim]:
            message = f"extent of {dim} is not divisible by its work slices"
            expected = f"a multiple of {op.slices[dim]}"
            yield Violation(f"{subject.dsc_path}.N_.{dim}_", message, expected, str(extent))


def _core_extents(subject: SdscUnderCheck) -> Iterator[Violation]:
    op = subject.op
    for key, stage in given(subject.dsc.stages, {}).items():
        for dim, extent in dim_entries(stage.steady).items():
            wanted = op.core_extent(dim) if dim in op.extents else -1
            if int_or_none(extent) not in (wanted, -1 if dim in op.symbolic_dims else wanted):
                path = f"{subject.dsc_path}.dataStageParam_.{key}.ss_.{dim}_"
                message = f"per-core extent of {dim} differs from N_ / slices"
                yield Violation(path, message, str(wanted), str(extent))


def _split_reductions(subject: SdscUnderCheck) -> Iterator[Violation]:
    op = subject.op
    split = [d for d in op.dims if op.slices[d] > 1 and _is_reduced(op, d)]
    if len(split) > 1:
        path = f"{subject.path}.numWkSlicesPerDim_"
        message = "several reduction dims are split"
        yield Violation(path, message, "at most one", ", ".join(split))


def _is_reduced(op: Operation, dim: str) -> bool:
    outputs, inputs = op.outputs, op.inputs
    return any(t.holds(dim) for t in inputs) and not any(t.holds(dim) for t in outputs)


GRID_RULES: tuple[SdscRule, ...] = (
    SdscRule("SPY210", Severity.ERROR, _slice_range),
    SdscRule("SPY211", Severity.ERROR, _slice_product),
    SdscRule("SPY214", Severity.ERROR, _divisible),
)
"""Rules the others build on: after them every slice count is positive and divides its dim."""

SLICE_RULES: tuple[SdscRule, ...] = (
    SdscRule("SPY212", Severity.ERROR, _slice_grid),
    SdscRule("SPY215", Severity.ERROR, _core_extents),
    SdscRule("SPY247", Severity.WARNING, _split_reductions),
    SdscRule("SPY253", Severity.WARNING, _replication),
)
"""The other rules on work slices."""


def _windows(subject: SdscUnderCheck) -> Iterator[Violation]:
    for dim, window in subject.op.windows.items():
        path = f"{subject.dsc_path}.N_.{WINDOWS_KEY}.{dim}"
        if window.window_dim == dim:
            yield Violation(path, f"the window of {dim} is that dim itself", "another dim", dim)
        for name in ("stride", "dilation"):
            if getattr(window, name) < 1:
                found = str(getattr(window, name))
                yield Violation(
                    f"{path}.{name}_",
                    f"{name} of the windows of {dim} is not positive",
                    "at least 1",
                    found,
                )
        yield from _paddings(window, dim, path)


def _paddings(window: Window, dim: str, path: str) -> Iterator[Violation]:
    for name, key in (
        ("pad_front", "padFront_"),
        ("pad_back", "padBack_"),
        ("unneeded", "unneededPad_"),
        ("unneeded_front", "unneededPadFront_"),
        ("unneeded_back", "unneededPadBack_"),
    ):
        value = getattr(window, name)
        if not 0 <= value <= max(window.total, 0):
            expected = f"0 to {window.total}"
            yield Violation(
                f"{path}.{key}", f"padding of {dim} is out of range", expected, str(value)
            )


def _window_spans(subject: SdscUnderCheck) -> Iterator[Violation]:
    """§3: totalSize_ is what the output positions read; less cannot be, more is left unread."""
    op = subject.op
    for dim, window in op.windows.items():
        span = window.span(op.extents[dim], op.extents[window.window_dim])
        if window.total < span:
            path = f"{subject.dsc_path}.N_.{WINDOWS_KEY}.{dim}.totalSize_"
            message = f"the windows of {dim} leave the input"
            yield Violation(path, message, f"at least {span}", str(window.total))


def _unread_input(subject: SdscUnderCheck) -> Iterator[Violation]:
    op = subject.op
    for dim, window in op.windows.items():
        span = window.span(op.extents[dim], op.extents[window.window_dim])
        rest = window.total - window.unneeded - span
        if rest >= window.stride:
            path = f"{subject.dsc_path}.N_.{WINDOWS_KEY}.{dim}.totalSize_"
            message = f"{rest} elements of the input are read by no window of {dim}"
            yield Violation(path, message, f"{span + window.unneeded}", str(window.total))


def _padded_dims(subject: SdscUnderCheck) -> Iterator[Violation]:
    """A kind of padding needs a window whose padding it speaks of."""
    op = subject.op
    for tensor in op.tensors:
        for dim, kind in tensor.padding.items():
            window = op.windows.get(dim)
            path = f"{subject.node_path(tensor)}.padding_.{dim}"
            if window is None:
                message = f"{tensor.name} is padded along {dim}, over which no window slides"
                expected = ", ".join(op.windows) or Padding.NONE.value
                yield Violation(path, message, expected, kind.value)


def _symbolic_dims(subject: SdscUnderCheck) -> Iterator[Violation]:
    """§11: N_ holds the maximum; slices divide the granularity; sizes stay whole sticks."""
    op = subject.op
    for dim, size in op.symbolic_dims.items():
        path = f"{subject.dsc_path}.N_.{SYMBOLIC_KEY}.{dim}"
        if size.maximum != op.extents[dim]:
            message, expected = f"maximum of {dim} differs from N_", str(op.extents[dim])
            yield Violation(f"{path}.maxSize_", message, expected, str(size.maximum))
        if size.granularity < 1 or size.granularity > size.maximum:
            expected = f"1 to {size.maximum}"
            message = f"granularity of {dim} is out of range"
            yield Violation(f"{path}.granularity_", message, expected, str(size.granularity))
        elif size.granularity % _unit(subject, dim):
            message = f"sizes of {dim} cannot be divided into slices of whole sticks"
            expected = f"a multiple of {_unit(subject, dim)}"
            yield Violation(f"{path}.granularity_", message, expected, str(size.granularity))
        if size.symbol >= 0:
            place = f"{subject.dsc_path}.dimToSymbolMapping_.{dim}"
            message = f"symbol id of {dim} is not negative"
            yield Violation(place, message, "a negative id", str(size.symbol))


def _unit(subject: SdscUnderCheck, dim: str) -> int:
    """Slices times elements of the longest stick along ``dim``."""
    sticks = [stick_elements(t).get(dim, 1) for t in subject.op.tensors if t.holds(dim)]
    return subject.op.slices[dim] * max(sticks, default=1)


def _own_slices(subject: SdscUnderCheck) -> Iterator[Violation]:
    """§9: what another core holds must be there, and stay while it is read."""
    op = subject.op
    if op.name != SHUFFLE and not any(tensor.own_core_slices for tensor in op.tensors):
        return
    for fault in own_slice_faults(op):
        path = f"{subject.node_path(fault.tensor)}.coordinates_"
        yield Violation(path, fault.message, fault.expected, fault.found)


DIM_RULES: tuple[SdscRule, ...] = (
    SdscRule("SPY254", Severity.ERROR, _windows),
    SdscRule("SPY255", Severity.ERROR, _padded_dims),
    SdscRule("SPY256", Severity.ERROR, _window_spans),
    SdscRule("SPY257", Severity.WARNING, _unread_input),
    SdscRule("SPY258", Severity.ERROR, _symbolic_dims),
    SdscRule("SPY261", Severity.ERROR, _own_slices),
)
"""Rules on windows, symbolic dims and tensors' own work slices."""

INDEX_ROLE = "KERNEL_IDX"


def _scales(subject: SdscUnderCheck) -> Iterator[Violation]:
    for tensor in subject.op.tensors:
        for dim, scale in tensor.scale.items():
            allowed = (1, -1, -2) if dim in tensor.stick_dims else (1, -1)
            if scale not in allowed:
                message = f"scale of {tensor.name} along {dim} has no meaning"
                expected = f"one of {', '.join(map(str, allowed))}"
                yield Violation(f"{tensor.json_path}.scale_", message, expected, str(scale))


def _sticks(subject: SdscUnderCheck) -> Iterator[Violation]:
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


def _tensor_dims(subject: SdscUnderCheck) -> Iterator[Violation]:
    op = subject.op
    for tensor in op.tensors:
        for dim in tensor.dims:
            if dim not in op.extents:
                path = f"{subject.node_path(tensor)}.layoutDimOrder_"
                message = f"dim {dim} of {tensor.name} is not part of the iteration space"
                yield Violation(path, message, f"one of {', '.join(op.dims)}", dim)


def _formats(subject: SdscUnderCheck) -> Iterator[Violation]:
    for tensor in subject.op.tensors:
        if tensor.data_format not in FORMATS:
            path = f"{tensor.json_path}.dataFormat_"
            message = f"data format of {tensor.name} is unknown"
            yield Violation(path, message, f"one of {', '.join(FORMATS)}", tensor.data_format)


def _word_lengths(subject: SdscUnderCheck) -> Iterator[Violation]:
    for tensor in subject.op.tensors:
        data_format = FORMATS.get(tensor.data_format)
        if data_format is None or data_format.bits < 8:
            continue
        if tensor.word_length_bytes * 8 != data_format.bits:
            message = f"{tensor.name} has another word length than {tensor.data_format}"
            expected = f"{data_format.bits // 8} bytes"
            found = f"{tensor.word_length_bytes} bytes"
            yield Violation(f"{tensor.json_path}.wordLength", message, expected, found)


def _idle_tensors(subject: SdscUnderCheck) -> Iterator[Violation]:
    used = {tensor.index for tensor in subject.op.tensors}
    for index, tensor in enumerate(subject.dsc.tensors):
        if index not in used:
            path = f"{subject.dsc_path}.labeledDs_[{index}]"
            yield Violation(path, f"{tensor.name} is neither read nor written")


def _presence(subject: SdscUnderCheck) -> Iterator[Violation]:
    for tensor in subject.op.tensors:
        memories = given(subject.dsc.tensors[tensor.index].memories, {})
        if memories and tensor.component.value not in memories:
            path = f"{tensor.json_path}.memOrg_"
            message = f"{tensor.name} lives in a memory memOrg_ does not list"
            found = ", ".join(memories)
            yield Violation(path, message, tensor.component.value, found)


def _stick_multiples(subject: SdscUnderCheck) -> Iterator[Violation]:
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


def _gap_signs(subject: SdscUnderCheck) -> Iterator[Violation]:
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


def _indirection(subject: SdscUnderCheck) -> Iterator[Violation]:
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


def _index_steps(subject: SdscUnderCheck) -> Iterator[Violation]:
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


def _coord_infos(subject: SdscUnderCheck) -> Iterator[tuple[Tensor, str, Mapping[str, CoordInfo]]]:
    """coordInfo of the tensors that have one; index tensors do not follow the rules (§5.5)."""
    for tensor in subject.op.tensors:
        info = subject.coord_infos(subject.node_indices[tensor.index])
        if info and tensor.role != INDEX_ROLE:
            yield tensor, f"{subject.node_path(tensor)}.coordinates_.coordInfo", info


def _coord_dims(subject: SdscUnderCheck) -> Iterator[Violation]:
    for tensor, path, info in _coord_infos(subject):
        if info.keys() != set(tensor.dims):
            message = f"coordInfo of {tensor.name} describes other dims than the tensor has"
            yield Violation(path, message, ", ".join(tensor.dims), ", ".join(info))


def _coord_extents(subject: SdscUnderCheck) -> Iterator[Violation]:
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


SHAPE_RULES: tuple[SdscRule, ...] = (
    SdscRule("SPY221", Severity.ERROR, _sticks),
    SdscRule("SPY222", Severity.ERROR, _tensor_dims),
)
"""Rules that footprints build on: sticks and dims are those of the tensor and the operation."""

TENSOR_RULES: tuple[SdscRule, ...] = (
    SdscRule("SPY220", Severity.ERROR, _scales),
    SdscRule("SPY232", Severity.ERROR, _coord_extents),
    SdscRule("SPY233", Severity.ERROR, _coord_dims),
    SdscRule("SPY234", Severity.ERROR, _stick_multiples),
    SdscRule("SPY241", Severity.ERROR, _word_lengths),
    SdscRule("SPY242", Severity.ERROR, _formats),
    SdscRule("SPY243", Severity.ERROR, _indirection),
    SdscRule("SPY244", Severity.ERROR, _gap_signs),
    SdscRule("SPY248", Severity.WARNING, _idle_tensors),
    SdscRule("SPY252", Severity.WARNING, _presence),
    SdscRule("SPY262", Severity.ERROR, _index_steps),
)
"""The other rules on tensors."""


def _masks(subject: SdscUnderCheck) -> Iterator[Violation]:
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


def _mask_constant(subject: SdscUnderCheck) -> Iterator[Violation]:
    op = subject.op
    if op.masks and MASK_CONSTANT not in op.constants:
        path = f"{subject.dsc_path}.constantInfo_"
        found = ", ".join(op.constants) or "no constants"
        message = "the mask has no value"
        yield Violation(path, message, f"a constant named {MASK_CONSTANT}", found)


def _mask_constant_id(subject: SdscUnderCheck) -> Iterator[Violation]:
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


def _constants(subject: SdscUnderCheck) -> Iterator[Violation]:
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


VALUE_RULES: tuple[SdscRule, ...] = (
    SdscRule("SPY237", Severity.ERROR, _masks),
    SdscRule("SPY238", Severity.ERROR, _mask_constant),
    SdscRule("SPY239", Severity.WARNING, _mask_constant_id),
    SdscRule("SPY240", Severity.ERROR, _constants),
)
"""Rules on masks and constants."""
