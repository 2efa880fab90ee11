"""Rules on an SDSC's meaning: slices, windows, symbolic dims, tensors, addresses, constants.

They judge the :class:`Operation` that was read; :mod:`.inspection` applies them.
Rules: SuperDSC reference §2-§6, §8, §9, §11, §12 (sdsc.md), operations reference §7 (ops.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

from msgspec import UNSET
from msgspec.structs import replace

from spyre.dtypes import FORMATS, STICK_BYTES
from spyre.mlir.operation import (
    MASK_CONSTANT,
    SHUFFLE,
    Component,
    Indirection,
    Operation,
    Padding,
    Tensor,
    Window,
    index_step_fault,
    own_slice_faults,
)
from spyre.mlir.sdsc.reader import PADDING_FIELDS, SYMBOLIC_KEY, WINDOWS_KEY
from spyre.mlir.sdsc.reading import RuleContext, coord_infos, dim_entries, show_table
from spyre.mlir.sdsc.structs import CoordInfo, given, int_or_none
from spyre.rules import Fault, RuleSet, severities


def _slice_counts(context: RuleContext) -> Iterator[Fault[str]]:
    op, path = context.op, f"{context.path}.numWkSlicesPerDim_"
    if min(op.slices.values()) < 1 or prod(op.slices.values()) > len(op.cores):
        expected = f"positive, product {len(op.cores)}"
        message = "work slices do not match the number of cores"
        yield Fault("SPY211", path, message, expected, show_table(op.slices))
    for dim, extent in op.extents.items():
        if op.slices[dim] > 0 and dim not in op.last_extents and extent % op.slices[dim]:
            message = f"extent of {dim} is not divisible by its work slices"
            expected = f"a multiple of {op.slices[dim]}"
            yield Fault("SPY214", f"{context.dsc_path}.N_.{dim}_", message, expected, str(extent))


def _slices_of_cores(context: RuleContext) -> Iterator[Fault[str]]:
    op = context.op
    for core, row in zip(op.cores, op.core_slices, strict=True):
        for dim, index in row.items():
            if not 0 <= index < op.slices[dim]:
                path = f"{context.path}.coreIdToWkSlice_.{core}.{dim}"
                message = f"core {core} has a work slice out of range"
                yield Fault("SPY210", path, message, f"0 to {op.slices[dim] - 1}", str(index))


def _cores_of_slices(context: RuleContext) -> Iterator[Fault[str]]:
    op, cores = context.op, len(context.op.cores)
    count = prod(op.slices.values())
    seen = {tuple(row.values()) for row in op.core_slices}
    if len(seen) != count:
        path, message = f"{context.path}.coreIdToWkSlice_", "some work slices belong to no core"
        expected, found = f"{count} different work slices", f"{len(seen)} on {cores} cores"
        yield Fault("SPY212", path, message, expected, found)
    # §2: fewer slices than cores means some cores do the same work; the purpose is unpublished.
    if count < cores:
        path = f"{context.path}.numWkSlicesPerDim_"
        message = "several cores have the same work slice"
        yield Fault("SPY253", path, message, f"product {cores}", show_table(op.slices))


def _core_extents(context: RuleContext) -> Iterator[Fault[str]]:
    op = context.op
    for key, stage in given(context.document.dsc.stages, {}).items():
        for dim, extent in dim_entries(stage.steady).items():
            wanted = op.core_extent(dim) if dim in op.extents else -1
            if int_or_none(extent) not in (wanted, -1 if dim in op.symbolic_dims else wanted):
                path = f"{context.dsc_path}.dataStageParam_.{key}.ss_.{dim}_"
                message = f"per-core extent of {dim} differs from N_ / slices"
                yield Fault("SPY215", path, message, str(wanted), str(extent))


def _split_reductions(context: RuleContext) -> Iterator[Fault[str]]:
    op = context.op
    split = [dim for dim in op.reduced_dims if op.slices[dim] > 1]
    if len(split) > 1:
        path = f"{context.path}.numWkSlicesPerDim_"
        message = "several reduction dims are split"
        yield Fault("SPY247", path, message, "at most one", ", ".join(split))


def _windows(context: RuleContext) -> Iterator[Fault[str]]:
    for dim, window in context.op.windows.items():
        path = f"{context.dsc_path}.N_.{WINDOWS_KEY}.{dim}"
        if window.window_dim == dim:
            message = f"the window of {dim} is that dim itself"
            yield Fault("SPY254", path, message, "another dim", dim)
        for name, value in (("stride", window.stride), ("dilation", window.dilation)):
            if value < 1:
                message = f"{name} of the windows of {dim} is not positive"
                yield Fault("SPY254", f"{path}.{name}_", message, "at least 1", str(value))
        yield from _paddings(window, dim, path)
        yield from _totals(context.op, window, dim, f"{path}.totalSize_")


def _paddings(window: Window, dim: str, path: str) -> Iterator[Fault[str]]:
    for name, key in PADDING_FIELDS.items():
        value = getattr(window, name)
        if not 0 <= value <= max(window.total, 0):
            message, expected = f"padding of {dim} is out of range", f"0 to {window.total}"
            yield Fault("SPY254", f"{path}.{key}", message, expected, str(value))


def _totals(op: Operation, window: Window, dim: str, path: str) -> Iterator[Fault[str]]:
    """§3: totalSize_ covers the elements that output positions read; a surplus is a warning."""
    span = window.span(op.extents[dim], op.extents[window.window_dim])
    if window.total < span:
        message = f"the windows of {dim} leave the input"
        yield Fault("SPY256", path, message, f"at least {span}", str(window.total))
    unread = window.total - window.unneeded - span
    if unread >= window.stride:
        message = f"{unread} elements of the input are read by no window of {dim}"
        yield Fault("SPY257", path, message, f"{span + window.unneeded}", str(window.total))


def _padded_dims(context: RuleContext) -> Iterator[Fault[str]]:
    """A kind of padding needs a window whose padding it speaks of."""
    op = context.op
    for tensor in op.tensors:
        for dim, kind in tensor.padding.items():
            window = op.windows.get(dim)
            path = f"{context.node_path(tensor)}.padding_.{dim}"
            if window is None:
                message = f"{tensor.name} is padded along {dim}, over which no window slides"
                expected = ", ".join(op.windows) or Padding.NONE.value
                yield Fault("SPY255", path, message, expected, kind.value)


def _symbolic_dims(context: RuleContext) -> Iterator[Fault[str]]:
    """§11: N_ holds the maximum; slices divide the granularity; sizes stay whole sticks."""
    op = context.op
    for dim, size in op.symbolic_dims.items():
        path = f"{context.dsc_path}.N_.{SYMBOLIC_KEY}.{dim}"
        if size.maximum != op.extents[dim]:
            message, expected = f"maximum of {dim} differs from N_", str(op.extents[dim])
            yield Fault("SPY258", f"{path}.maxSize_", message, expected, str(size.maximum))
        if size.granularity < 1 or size.granularity > size.maximum:
            expected = f"1 to {size.maximum}"
            message = f"granularity of {dim} is out of range"
            yield Fault("SPY258", f"{path}.granularity_", message, expected, str(size.granularity))
        elif size.granularity % _unit(context, dim):
            message = f"sizes of {dim} cannot be divided into slices of whole sticks"
            expected = f"a multiple of {_unit(context, dim)}"
            yield Fault("SPY258", f"{path}.granularity_", message, expected, str(size.granularity))
        if size.symbol >= 0:
            place = f"{context.dsc_path}.dimToSymbolMapping_.{dim}"
            message = f"symbol id of {dim} is not negative"
            yield Fault("SPY258", place, message, "a negative id", str(size.symbol))


def _unit(context: RuleContext, dim: str) -> int:
    """Slices times elements of the longest stick along ``dim``."""
    sticks = [t.sticks.get(dim, 1) for t in context.op.tensors if t.holds(dim)]
    return context.op.slices[dim] * max(sticks, default=1)


def _own_slices(context: RuleContext) -> Iterator[Fault[str]]:
    """§9: a slice read from another core must exist there, and not be overwritten meanwhile."""
    op = context.op
    if op.name != SHUFFLE and not any(tensor.own_core_slices for tensor in op.tensors):
        return
    for fault in own_slice_faults(op):
        path = f"{context.node_path(fault.place)}.coordinates_"
        yield Fault("SPY261", path, fault.message, fault.expected, fault.found)


INDEX_ROLE = "KERNEL_IDX"


def _scales(context: RuleContext) -> Iterator[Fault[str]]:
    for tensor in context.op.tensors:
        for dim, scale in tensor.scale.items():
            allowed = (1, -1, -2) if dim in tensor.stick_dims else (1, -1)
            if scale not in allowed:
                message = f"scale of {tensor.name} along {dim} has no meaning"
                expected = f"one of {', '.join(map(str, allowed))}"
                yield Fault("SPY220", f"{tensor.json_path}.scale_", message, expected, str(scale))


def _sticks(context: RuleContext) -> Iterator[Fault[str]]:
    for tensor in context.op.tensors:
        path = f"{context.dsc_path}.primaryDsInfo_.{tensor.role}"
        outside = [dim for dim in tensor.stick_dims if dim not in tensor.dims]
        if outside:
            message = f"stick dim {outside[0]} is not a dim of role {tensor.role}"
            expected = f"one of {', '.join(tensor.dims)}"
            yield Fault("SPY221", f"{path}.stickDimOrder_", message, expected, outside[0])
        data_format = FORMATS.get(tensor.data_format)
        wanted = 0 if data_format is None else data_format.elements_per_stick
        if wanted and prod(tensor.stick_sizes) != wanted:
            message = f"stick of {tensor.name} does not hold 128 bytes of {tensor.data_format}"
            found = str(prod(tensor.stick_sizes))
            yield Fault("SPY221", f"{path}.stickSize_", message, f"{wanted} elements", found)


def _tensor_dims(context: RuleContext) -> Iterator[Fault[str]]:
    op = context.op
    for tensor in op.tensors:
        for dim in tensor.dims:
            if dim not in op.extents:
                path = f"{context.node_path(tensor)}.layoutDimOrder_"
                message = f"dim {dim} of {tensor.name} is not part of the iteration space"
                yield Fault("SPY222", path, message, f"one of {', '.join(op.dims)}", dim)


def _formats(context: RuleContext) -> Iterator[Fault[str]]:
    for tensor in context.op.tensors:
        data_format = FORMATS.get(tensor.data_format)
        if data_format is None:
            path = f"{tensor.json_path}.dataFormat_"
            message = f"data format of {tensor.name} is unknown"
            yield Fault("SPY242", path, message, f"one of {', '.join(FORMATS)}", tensor.data_format)
        elif data_format.bits >= 8 and tensor.word_length_bytes * 8 != data_format.bits:
            message = f"{tensor.name} has another word length than {tensor.data_format}"
            expected, found = (
                f"{n} bytes" for n in (data_format.bits // 8, tensor.word_length_bytes)
            )
            yield Fault("SPY241", f"{tensor.json_path}.wordLength", message, expected, found)


def _memories(context: RuleContext) -> Iterator[Fault[str]]:
    """memOrg_ lists every operand's memory, and every listed tensor is an operand."""
    labels, op = context.document.dsc.tensors, context.op
    for tensor in op.tensors:
        table = labels[tensor.index].memories
        memories = [name for name, memory in given(table, {}).items() if memory.is_present]
        if table is not UNSET and tensor.component.value not in memories:
            message = f"{tensor.name} lives in a memory memOrg_ does not list"
            path, found = f"{tensor.json_path}.memOrg_", ", ".join(memories)
            yield Fault("SPY252", path, message, tensor.component.value, found)
    for index in sorted({*range(len(labels))} - {tensor.index for tensor in op.tensors}):
        path = f"{context.dsc_path}.labeledDs_[{index}]"
        yield Fault("SPY248", path, f"{labels[index].name} is neither read nor written")


def _stick_multiples(context: RuleContext) -> Iterator[Fault[str]]:
    """§6.1: a core's part of a stick dim is whole sticks, of the longest stick sharing the dim."""
    op = context.op
    longest: dict[str, int] = {}
    for tensor in op.tensors:
        for dim, size in tensor.sticks.items():
            if tensor.role != INDEX_ROLE and tensor.holds(dim):
                longest[dim] = max(longest.get(dim, 1), size)
    for dim, size in longest.items():
        extent = op.core_extent(dim)
        if extent % size or op.last_extents.get(dim, 0) % size:
            message = f"a core's part of stick dim {dim} is not whole sticks"
            path = f"{context.dsc_path}.N_.{dim}_"
            yield Fault("SPY234", path, message, f"a multiple of {size} per core", str(extent))


def _extents(context: RuleContext) -> Iterator[Fault[str]]:
    for tensor in context.op.tensors:
        for dim, gap in tensor.gap_elements.items():
            if gap < 0:
                message = f"gap of {tensor.name} along {dim} is negative"
                place = f"{context.node_path(tensor)}.backGapCore_.{dim}"
                yield Fault("SPY244", place, message, "0 or more elements", str(gap))
        for dim, size in tensor.device_dim_sizes.items():
            if size < 1:
                message = f"device size of {tensor.name} along {dim} is not positive"
                place = f"{context.node_path(tensor)}.deviceDimSizes_"
                yield Fault("SPY244", place, message, "at least 1 element", str(size))


def _indirection(context: RuleContext) -> Iterator[Fault[str]]:
    op = context.op
    tensors = {tensor.index: tensor for tensor in op.tensors}
    for tensor in op.tensors:
        if tensor.indirection is Indirection.NONE:
            continue
        other = tensors.get(-1 if tensor.related_tensor is None else tensor.related_tensor)
        wanted = _COUNTERPART[tensor.indirection]
        if other is None or other.indirection is not wanted:
            path = f"{context.node_path(tensor)}.relatedIndirectAccessAlloc_"
            message = f"{tensor.name} has no {wanted.value} that belongs to it"
            found = "nothing" if other is None else f"{other.name}: {other.indirection.value}"
            yield Fault("SPY243", path, message, f"the node of a {wanted.value}", found)
        # §6.4: an index needs a dim to count along, and every other dim a pitch.
        indexed = bool(op.index_tensors) and wanted is Indirection.INDEX
        if indexed and (fault := index_step_fault(op, tensor)):
            path = f"{context.node_path(tensor)}.maxDimSizes_"
            expected = "an indexed dim or a dim of pages, outermost or with deviceDimSizes_"
            yield Fault("SPY262", path, fault, expected)


_COUNTERPART = {Indirection.VALUE: Indirection.INDEX, Indirection.INDEX: Indirection.VALUE}


def _coordinates(context: RuleContext) -> Iterator[Fault[str]]:
    """coordInfo of the tensors that have one; index tensors do not follow the rules (§5.5)."""
    nodes = context.document.nodes
    for tensor in context.op.tensors:
        node, path = nodes[tensor.index]
        info, path = coord_infos(node), f"{path}.coordinates_.coordInfo"
        if not info or tensor.role == INDEX_ROLE:
            continue
        yield from _coord_extents(context.op, tensor, info, path)
        if info.keys() != set(tensor.dims):
            message = f"coordInfo of {tensor.name} describes other dims than the tensor has"
            yield Fault("SPY233", path, message, ", ".join(tensor.dims), ", ".join(info))


def _coord_extents(
    op: Operation, tensor: Tensor, info: Mapping[str, CoordInfo], path: str
) -> Iterator[Fault[str]]:
    """§5.5: the element folds of a dim enumerate one core's part of it."""
    sticks = tensor.sticks
    for dim, entry in info.items():
        if dim not in tensor.scale:
            continue
        wanted = _coordinate_count(op, tensor, dim, sticks.get(dim, 1))
        factors = [int_or_none(p.factor) for p in entry.folds.properties[3:]]
        count = None if None in factors else prod(f for f in factors if f is not None)
        if count is None or not wanted <= count <= wanted + _unread(op, tensor, dim):
            message = f"element folds of {tensor.name} along {dim} miss the per-core extent"
            place = f"{path}.{dim}.folds.dim_prop_attr"
            yield Fault("SPY232", place, message, str(wanted), str(count))


def _unread(op: Operation, tensor: Tensor, dim: str) -> int:
    """Return how many unread elements may follow a core's last position, up to one stride."""
    if tensor.padding.get(dim) is not Padding.FULL_SPAN_UNNEEDED:
        return 0
    window = op.window_of(tensor, dim)
    return 0 if window is None else max(window.unneeded, window.stride - 1)


def _coordinate_count(op: Operation, tensor: Tensor, dim: str, stick: int) -> int:
    scale = tensor.scale[dim]
    if scale == 1:
        if op.window_of(tensor, dim) is None:
            return op.tensor_extent(tensor, dim)
        return -(-op.window_span(tensor, dim) // stick) * stick
    return stick if scale == -2 else 1


# --- addresses ------------------------------------------------------------------------------------

HBM_BYTES = 128 << 30
LX_BYTES = 2 << 20
MAX_SPAN_BYTES = 256 << 20

_RANGES = {
    Component.HBM: ("SPY228", HBM_BYTES, "is outside device memory on", "an address from 0 to {}"),
    Component.LX: (
        "SPY229",
        LX_BYTES,
        "does not fit the scratchpad of",
        "a start from 0 to {} bytes",
    ),
}
"""Code, capacity and words of each memory."""


def _starts(context: RuleContext) -> Iterator[Fault[str]]:
    for tensor in context.op.tensors:
        if tensor.symbolic:
            yield from _symbol_ids(context, tensor)
        else:
            yield from _addresses(context, tensor)
        span = context.footprints[tensor.index].span_bytes
        if span > MAX_SPAN_BYTES:
            message = f"one core touches {span} bytes of {tensor.name}"
            path, expected = context.node_path(tensor), f"at most {MAX_SPAN_BYTES} bytes"
            yield Fault("SPY235", path, message, expected, str(span))


def _addresses(context: RuleContext, tensor: Tensor) -> Iterator[Fault[str]]:
    """Real compilers write starts within a stick (coarse tiling, real-bundles.md); they run."""
    for core, start in _first(context, tensor, lambda start: start % STICK_BYTES != 0):
        path = context.start_path(tensor)
        message = f"{tensor.name} does not start on a stick on core {core}"
        yield Fault("SPY227", path, message, "a multiple of 128", str(start))
    code, capacity_bytes, misplaced, expected = _RANGES[tensor.component]
    limit = capacity_bytes - context.footprints[tensor.index].span_bytes
    if min(tensor.starts) < 0 or max(tensor.starts) > limit:
        ((core, start),) = _first(context, tensor, lambda start: not 0 <= start <= limit)
        path, message = context.start_path(tensor), f"{tensor.name} {misplaced} core {core}"
        yield Fault(code, path, message, expected.format(limit), str(start))


def _symbol_ids(context: RuleContext, tensor: Tensor) -> Iterator[Fault[str]]:
    if tensor.component is Component.LX:
        message = f"{tensor.name} is in LX, whose addresses are never symbolic"
        yield Fault("SPY230", context.start_path(tensor), message, "literal addresses")
        return
    for core, start in _first(context, tensor, lambda start: start >= 0):
        message = f"symbol id of {tensor.name} on core {core} is not negative"
        yield Fault("SPY230", context.start_path(tensor), message, "a negative id", str(start))


def _first(
    context: RuleContext, tensor: Tensor, is_bad: Callable[[int], bool]
) -> list[tuple[int, int]]:
    """The first core whose start address or symbol id is bad, with that; empty if none is."""
    if not any(map(is_bad, tensor.starts)):
        return []
    pairs = zip(context.op.cores, tensor.starts, strict=True)
    return [next(pair for pair in pairs if is_bad(pair[1]))]


def _overlaps(context: RuleContext) -> Iterator[Fault[str]]:
    """Literal addresses only; interleaved slices of one buffer share a box and are not judged."""
    op = context.op
    for output in op.outputs:
        for operand in (*op.inputs, *op.index_tensors):
            if _clash(context, output, operand):
                message = f"output {output.name} overlaps {operand.name}"
                expected = "disjoint addresses, or the same on every core"
                found = f"starts {output.starts[0]} and {operand.starts[0]} on the first core"
                yield Fault("SPY236", context.start_path(output), message, expected, found)


def _clash(context: RuleContext, output: Tensor, operand: Tensor) -> bool:
    if output.symbolic or operand.symbolic or output.component is not operand.component:
        return False
    if output.starts == operand.starts:
        return False
    lengths = _dense_bytes(context, output), _dense_bytes(context, operand)
    if 0 in lengths:
        return False
    if output.component is Component.LX:
        pairs = zip(output.starts, operand.starts, strict=True)
        return any(_meet(a, b, lengths) for a, b in pairs)
    return _boxes_meet(output.starts, operand.starts, lengths)


def _meet(first: int, second: int, lengths: tuple[int, int]) -> bool:
    return first < second + lengths[1] and second < first + lengths[0]


def _boxes_meet(first: tuple[int, ...], second: tuple[int, ...], lengths: tuple[int, int]) -> bool:
    """True if any core's piece of one tensor meets any core's piece of the other."""
    if max(first) + lengths[0] <= min(second) or max(second) + lengths[1] <= min(first):
        return False
    return any(_meet(a, b, lengths) for a in set(first) for b in set(second))


def _dense_bytes(context: RuleContext, tensor: Tensor) -> int:
    """Bytes one core touches of a tensor, or 0 when they are no single piece of memory."""
    op, sticks = context.op, tensor.sticks
    counts = (
        -(-op.tensor_extent(tensor, dim) // sticks.get(dim, 1))
        for dim in tensor.dims
        if tensor.holds(dim)
    )
    touched = STICK_BYTES * prod(counts)
    return touched if touched == context.footprints[tensor.index].span_bytes else 0


def _masks(context: RuleContext) -> Iterator[Fault[str]]:
    op = context.op
    for dim, ranges in op.masks.items():
        path = f"{context.dsc_path}.coordinateMasking_.{dim}"
        if dim not in op.extents:
            message = f"mask of {dim}, which is not part of the iteration space"
            yield Fault("SPY237", path, message, f"one of {', '.join(op.dims)}", dim)
            continue
        for start, count in ranges:
            if start < 0 or count < 1 or start + count > op.extents[dim]:
                message = f"mask of {dim} leaves the extent"
                expected = f"within 0 to {op.extents[dim]}"
                yield Fault("SPY237", path, message, expected, f"[{start}, {count}]")
    if op.masks and MASK_CONSTANT not in op.constants:
        path, found = f"{context.dsc_path}.constantInfo_", ", ".join(op.constants) or "no constants"
        expected = f"a constant named {MASK_CONSTANT}"
        yield Fault("SPY238", path, "the mask has no value", expected, found)


def _mask_constant_id(context: RuleContext) -> Iterator[Fault[str]]:
    table = context.document.dsc.constants
    if (
        not context.op.masks
        or not isinstance(table, dict)
        or MASK_CONSTANT not in context.op.constants
    ):
        return
    named = table.get(str(given(context.document.dsc.mask_constant_id, -1)))
    if named is not None and named.name != MASK_CONSTANT:
        path = f"{context.dsc_path}.maskingConstId_"
        message = f"maskingConstId_ names {named.name}; {MASK_CONSTANT} is used"
        yield Fault("SPY239", path, message, f"the id of {MASK_CONSTANT}", named.name)


def _constants(context: RuleContext) -> Iterator[Fault[str]]:
    op = context.op
    for name, bits in op.constants.items():
        data_format = FORMATS.get(op.constant_formats[name])
        path = f"{context.dsc_path}.constantInfo_"
        if data_format is None:
            message = f"constant {name} has an unknown format"
            found = op.constant_formats[name]
            yield Fault("SPY240", path, message, f"one of {', '.join(FORMATS)}", found)
        elif not 0 <= bits < 1 << data_format.bits:
            message = f"bit pattern of constant {name} does not fit {data_format.name}"
            yield Fault("SPY240", path, message, f"{data_format.bits} bits, unsigned", str(bits))


BASIC_RULES: RuleSet[RuleContext, str] = RuleSet(
    severities("SPY210 SPY211 SPY214 SPY221 SPY222"),
    (_slice_counts, _slices_of_cores, _sticks, _tensor_dims),
)
"""Rules the others build on: after them every slice count is positive and divides its dim, and
sticks and dims are those of the tensor and the operation, as footprints need them."""

MEANING_RULES: RuleSet[RuleContext, str] = RuleSet(
    severities(
        "SPY212 SPY215 SPY247 SPY253 SPY254 SPY255 SPY256 SPY257 SPY258 SPY261 SPY220 SPY232 "
        "SPY233 SPY234 SPY241 SPY242 SPY243 SPY244 SPY248 SPY252 SPY262 SPY227 SPY228 SPY229 "
        "SPY230 SPY235 SPY236 SPY237 SPY238 SPY239 SPY240",
        warnings="SPY247 SPY253 SPY257 SPY248 SPY252 SPY227 SPY236 SPY239",
    ),
    (
        *(_cores_of_slices, _split_reductions, _core_extents),
        *(_windows, _padded_dims, _symbolic_dims, _own_slices),
        *(_scales, _coordinates, _stick_multiples, _formats, _indirection, _extents, _memories),
        *(_starts, _overlaps, _masks, _mask_constant_id, _constants),
    ),
)
"""The other rules on the operation."""

_COMPARING = (_core_extents, _coordinates, _memories, _mask_constant_id)
BUILT_RULES = replace(
    MEANING_RULES, checks=tuple(c for c in MEANING_RULES.checks if c not in _COMPARING)
)
"""The same without checks that compare parts of a file with each other. What the writer writes
agrees with itself, so an operation that was built cannot break them."""
