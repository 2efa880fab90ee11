"""Planners of the vector units: elementwise operations, reductions and top-k.

Every operand of an elementwise operation walks the same sticks. An operand whose stick dim has
scale -2 gives lane 0 of each stick to all lanes; `layernormscale` reads lanes 0 and 1 of its one
input as two operands (operations reference §4).

Reductions have kept and reduced axes: a dim is reduced if the input holds it and the output does
not (operations reference §2). Cores that split a dim that the output lacks share output addresses;
their slices become the outermost reduced axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from spyre.errors import SdscError
from spyre.hw import plan_table as tb
from spyre.hw.access import TensorAccess
from spyre.hw.ops import OPCODES, topk_dims
from spyre.hw.plans.context import (
    CoreGroup,
    Mask,
    PlanContext,
    RowWriter,
    check_covered,
    check_shared_output,
    find_mask,
    float_word,
    fold_cores,
    outer_count,
    walk_axes,
)
from spyre.hw.spec import STICK_BYTES
from spyre.hw.spec_choices import TOKEN_MAXIMUM
from spyre.layout import AccessMap, Axis, Int64Array, drop_unit_axes, join_axes, pad_axes, sort_axes
from spyre.mlir.operation import Component


def plan_elementwise(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of an elementwise operation."""
    check_sticks(context)
    for access in context.inputs:
        check_covered(context, access, context.output)
    mask = find_mask(context)
    lanes = context.output.lanes
    axes = walk_axes(context, {context.output.stick_dim: lanes})
    starts = context.starts
    if mask is not None:
        starts = np.vstack([starts, mask.starts(context)])
        step = lanes if mask.lanes else 1
        axes = [
            Axis(a.extent, (*a.pitches, mask.pitch(dim, step)))
            for dim, a in zip(context.op.dims, axes, strict=True)
        ]
    for group in fold_cores(context.op, starts):
        walk = AccessMap(group.first, tuple(_ordered(context, group, axes))).joined()
        for part in walk.unrolled(tb.MAX_RANK + 1):
            yield _row(context, mask, part)


def _ordered(context: PlanContext, group: CoreGroup, axes: list[Axis]) -> list[Axis]:
    """Axes of cores and dims, outermost first, sorted by the pitches of an operand in HBM, the
    output if possible.

    Rows that are neighbours in HBM are in scratchpads of different cores. Scratchpads are small and
    often in the host's caches, so large strides cost less there. If all operands are in
    scratchpads, the order is that of the whole tensor, which is the order of adjacent operations
    that touch HBM: members of a chain need the same order.
    """
    output = len(context.accesses) - 1
    for operand in (output, *range(output)):
        access = context.accesses[operand]
        if access.tensor.component is Component.HBM and not access.is_lane:
            return sort_axes([*group.axes.values(), *axes], operand)
    # all in scratchpads: a dim's cores directly outside of the dim
    dims = dict(zip(context.op.dims, axes, strict=True))
    within = {id(axis): dim for dim, axis in dims.items()}
    ordered: list[Axis] = []
    for axis in sort_axes(axes, output):
        cores = group.axes.get(within[id(axis)])
        ordered += [axis] if cores is None else [cores, axis]
    return ordered


def check_sticks(context: PlanContext) -> None:
    """All operands must share the output's stick dim and lane count."""
    out = context.output
    for access in context.inputs:
        if access.stick_dim == out.stick_dim and access.lanes == out.lanes:
            continue
        raise context.stick_error(
            f"stick {out.stick_dim!r} of {out.lanes} as in {out.tensor.name}",
            f"stick {access.stick_dim!r} of {access.lanes} in {access.tensor.name}",
        )


def _operand_slots(context: PlanContext) -> list[tuple[int, TensorAccess, int]]:
    """(position among operands, access, lane) per kernel input."""
    slots = [(k, a, 0 if a.is_lane else tb.WHOLE_STICK) for k, a in enumerate(context.inputs)]
    if context.spec.kernel_op == "layernormscale":
        position, access, _ = slots[0]
        return [(position, access, 0), (position, access, 1)]
    return slots


def _row(context: PlanContext, mask: Mask | None, walk: AccessMap) -> Int64Array:
    slots = _operand_slots(context)
    output = len(context.accesses) - 1
    order = [position for position, _, _ in slots] + [output]
    if mask is not None:
        order.append(output + 1)
    row = RowWriter(tb.ELEMENTWISE_KIND)
    for k, (position, access, lane) in enumerate(slots):
        row.operand(k, position, walk.first[position], lane, context.format_code(access.tensor))
    code = context.format_code(context.output.tensor)
    row.operand(len(slots), output, walk.first[output], tb.WHOLE_STICK, code)
    if mask is not None:
        row.operand(len(slots) + 1, -1, walk.first[output + 1])
        mask.write(row)
    row.walk(walk.picked(order))
    row.constants([context.constant(name) for name in context.spec.constants])
    _count_work(context, row, walk, len(slots))
    return row.words


def _count_work(context: PlanContext, row: RowWriter, walk: AccessMap, inputs: int) -> None:
    lanes = context.output.lanes
    blocks = -(-walk.axes[-1].extent // tb.BLOCK_STICKS)
    row.header(
        opcode=OPCODES[context.spec.kernel_op],
        flags=_fused(context, row, inputs),
        inputs=inputs,
        lanes=lanes,
        blocks=blocks,
        units=outer_count(walk) * blocks,
        cost_ns=int(walk.count * lanes * context.spec.element_ns),
    )


def _fused(context: PlanContext, row: RowWriter, inputs: int) -> int:
    """The flag of an unmasked operation on DL16 codes; 0 for others."""
    if not context.spec.code_form or row.words[tb.MASK] != tb.NO_MASK:
        return 0
    for k in range(inputs + 1):
        operand = row.words[tb.OPERAND + k * tb.OPERAND_WORDS :]
        is_lane = operand[tb.LANE] != tb.WHOLE_STICK
        if operand[tb.FORMAT] != tb.DL16 or (is_lane and inputs == 1):
            return 0
    return tb.FUSE


# --- reductions ---------------------------------------------------------------------------------

_IN, _OUT, _AT = 0, 1, 2


def plan_reduction(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a reduction."""
    check_sticks(context)
    check_covered(context, context.output, context.inputs[0])
    _check_pair(context)
    mask = find_mask(context)
    if mask is not None and context.inputs[0].is_lane:  # one element per stick
        mask = replace(mask, lanes=False)
    reduced = reduced_dims(context)
    lanes = context.output.lanes
    coordinate = mask.starts(context) if mask else np.zeros(context.starts.shape[1], np.int64)
    starts = np.vstack([context.starts, coordinate])
    axes = {}
    sticks = {context.output.stick_dim: lanes}
    for dim, axis in zip(context.op.dims, walk_axes(context, sticks), strict=True):
        step = lanes if dim == context.output.stick_dim else 1
        # of a dim that neither side holds, a core takes one element
        extent = axis.extent if context.inputs[0].tensor.holds(dim) else 1
        axes[dim] = Axis(extent, (*axis.pitches, mask.pitch(dim, step) if mask else 0))
    for group in fold_cores(context.op, starts, reduced):
        check_shared_output(context, group, reduced, _OUT)
        yield from _group_rows(context, mask, reduced, group, axes)


def _check_pair(context: PlanContext) -> None:
    source, target = context.inputs[0], context.output
    if context.spec.kernel_op == "exx2" and (source.is_lane or not target.is_lane):
        message = "two values per stick need a result of one stick per element"
        expected = "an input with the stick dim, an output without it"
        found = f"scales {dict(source.tensor.scale)} and {dict(target.tensor.scale)}"
        raise context.refuse("SPY520", message, expected, found)


def reduced_dims(context: PlanContext) -> tuple[str, ...]:
    """Return the dims that the output lacks, and that the input holds or cores divide.

    Cores that divide a dim which neither holds combine the elements that each of them reads.
    """
    source, target, slices = context.inputs[0].tensor, context.output.tensor, context.op.slices
    missing = (dim for dim in context.op.dims if not target.holds(dim))
    return tuple(dim for dim in missing if source.holds(dim) or slices.get(dim, 1) > 1)


def _group_rows(
    context: PlanContext,
    mask: Mask | None,
    reduced: Sequence[str],
    group: CoreGroup,
    axes: dict[str, Axis],
) -> Iterator[Int64Array]:
    of_cores_and_dims = (*group.axes.items(), *axes.items())
    remaining = [axis for dim, axis in of_cores_and_dims if dim not in reduced]
    inner_axes = _reduced_axes(context, reduced, group, axes)
    if len(inner_axes) > tb.REDUCED_RANK:
        expected = f"at most {tb.REDUCED_RANK} after merging"
        raise context.refuse("SPY525", "too many reduced axes", expected, str(len(inner_axes)))
    inner = pad_axes(inner_axes, tb.REDUCED_RANK, 3)
    walk = AccessMap(group.first, tuple(remaining)).canonical(_OUT)
    for part in walk.unrolled(tb.KEPT_RANK + 1):
        padded = pad_axes(part.axes, tb.KEPT_RANK + 1, 3)
        yield _reduction_row(context, mask, AccessMap(part.first, tuple(padded)), inner)


def _reduced_axes(
    context: PlanContext, reduced: Sequence[str], group: CoreGroup, axes: dict[str, Axis]
) -> list[Axis]:
    """Reduced axes, outermost first: work slices, whose partial sums are added in this order.

    If those are one axis too many, a slice is walked with its dim, in the order of coordinates.
    """
    slices = drop_unit_axes([axis for dim, axis in group.axes.items() if dim in reduced])
    local = drop_unit_axes([axis for dim, axis in axes.items() if dim in reduced])
    by_slices = join_axes(slices + sort_axes(local, _IN))
    if len(by_slices) <= tb.REDUCED_RANK or _is_chunked(context):
        return by_slices
    return join_axes(sort_axes(slices + local, _IN))


def _reduction_row(
    context: PlanContext, mask: Mask | None, kept: AccessMap, reduced: list[Axis]
) -> Int64Array:
    """``kept``: the axes that remain, KEPT_RANK + 1 of them; ``reduced``: REDUCED_RANK others."""
    chunked = _is_chunked(context)
    row = RowWriter(tb.CHUNK_REDUCTION_KIND if chunked else tb.REDUCTION_KIND)
    source, target = context.inputs[0], context.output
    lane = 0 if source.is_lane else tb.WHOLE_STICK
    row.operand(_IN, 0, kept.first[_IN], lane, context.format_code(source.tensor))
    row.operand(_OUT, 1, kept.first[_OUT], tb.WHOLE_STICK, context.format_code(target.tensor))
    row.operand(_AT, -1, kept.first[_AT])
    *outer, inner = kept.axes
    walk = AccessMap(kept.first, (*outer, *reduced, inner))
    row.walk(walk)
    if mask is not None:
        mask.write(row)
    # kept sticks per unit: many for long runs of memory, few enough to busy all threads
    most = tb.MAX_CHUNK_STICKS if chunked else tb.MAX_KEPT_STICKS
    block = max(min(kept.count // (4 * context.threads), most), 1)
    scale, low, high, flags = _epilogue(context)
    bounds = float_word(low), float_word(high)
    row.words[tb.CONSTANT : tb.CONSTANT + 4] = block, *bounds, _core_steps(context)
    blocks = -(-inner.extent // block)
    row.header(
        opcode=tb.REDUCTIONS.index(context.spec.kernel_op),
        flags=_reduction_flags(context, inner, reduced[-1]) | flags,
        lanes=source.lanes,
        blocks=blocks,
        units=outer_count(kept) * blocks,
        value=float_word(scale),
        cost_ns=int(source.lanes * walk.count * context.spec.element_ns),
    )
    return row.words


def _reduction_flags(context: PlanContext, kept: Axis, run: Axis) -> int:
    """Stage runs along whichever axis is nearer in memory, unless kept sticks are neighbours."""
    lanes_too = context.output.is_lane and not context.inputs[0].is_lane
    flags = tb.REDUCE_LANES if lanes_too else 0
    adjacent = kept.pitches[_IN] == STICK_BYTES and kept.extent > 1
    nearer = kept.extent == 1 or run.pitches[_IN] < kept.pitches[_IN]
    if run.extent > 1 and not adjacent and nearer:
        flags |= tb.RUN_REDUCED
    return flags


def _epilogue(context: PlanContext) -> tuple[float, float, float, int]:
    """Scale of a total, its lower and upper bound (with flag CLIP), and flags."""
    name, constants = context.spec.name, context.spec.constants
    if name == "quantscalepertoken":
        return 1.0 / TOKEN_MAXIMUM, 0.0, 0.0, 0
    values = [context.constant(constant) for constant in constants]
    if name == "quantscalepertokenfp8":
        return values[0], values[1], values[2], tb.CLIP
    zero_mean = name == "exx2_zeromean" or context.is_set("useZeroMean")
    return values[0] if values else 1.0, 0.0, 0.0, tb.ZERO_MEAN if zero_mean else 0


def _is_chunked(context: PlanContext) -> bool:
    """True if the sum of 16-bit floats accumulates in DL16: scaled, or in mode dl16-chunk."""
    name, wide = context.spec.kernel_op, context.format_code(context.output.tensor) == tb.FP32
    chunked = context.numerics.chunked and name in tb.CHUNKED_REDUCTIONS
    return not wide and (chunked or name == "scaled_sum")


def _core_steps(context: PlanContext) -> int:
    """Steps of the reduced axes, in sticks along the stick dim, that one core makes."""
    total = 1
    for dim in filter(context.inputs[0].tensor.holds, reduced_dims(context)):
        lanes = context.output.lanes if dim == context.output.stick_dim else 1
        total *= context.op.core_extent(dim) // lanes
    return total


# --- top-k ------------------------------------------------------------------------------------

# The reduced dim is in the input only, the k dim in the output only, all others in both; neither is
# in the stick. The reduced dim may not be split over cores; where k is, each core sees all elements
# and writes the ranks of its slice.
_INDEX_FORMATS = ("IEEE_INT32", "SENUINT32")


def plan_topk(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a top-k."""
    source = context.inputs[0]
    reduced, added = _find_dims(context)
    dims = [dim for dim in context.op.dims if dim not in (reduced, added)]
    axes = walk_axes(context, {source.stick_dim: source.lanes}, dims)
    whole = [added] if context.op.slices.get(added, 1) > 1 else []
    for group in fold_cores(context.op, context.starts, whole):
        ranks = _ranks(context, added, group.axes.get(added, Axis(1, (0, 0))))
        others = [axis for dim, axis in group.axes.items() if dim != added]
        walk = AccessMap(group.first, (*others, *axes)).canonical(1)
        for part in walk.unrolled(tb.MAX_RANK + 1):
            yield _topk_row(context, reduced, ranks, part)


def _ranks(context: PlanContext, added: str, slices: Axis) -> tuple[int, int, int, int]:
    """k, bytes between ranks, ranks per slice of k, and bytes between slices."""
    source, target = slices.pitches
    if source:
        message = f"dim {added!r} split over cores that read different elements"
        expected = "one input for all slices of k"
        raise context.refuse("SPY531", message, expected, f"inputs {source} bytes apart")
    share = context.op.core_extent(added)
    return slices.extent * share, context.output.pitch_bytes[added], share, target


def _find_dims(context: PlanContext) -> tuple[str, str]:
    source, target = context.inputs[0], context.output
    reduced, added = topk_dims(context.op)
    sticks = {source.stick_dim, target.stick_dim}
    fits = len(reduced) == 1 and len(added) == 1 and len(sticks) == 1
    if not fits or sticks & {*reduced, *added}:
        message = f"{context.op.name}: the tensors do not have the structure of a top-k"
        expected = "one dim in the input only, one in the output only, a common stick dim"
        found = f"input only {reduced}, output only {added}, stick dims {sorted(sticks)}"
        raise SdscError("SPY285", message, context.location, expected=expected, found=found)
    _check_lanes(context)
    if (slices := context.op.slices.get(reduced[0], 1)) > 1:
        raise context.refuse(
            "SPY531",
            f"dim {reduced[0]!r} split over cores",
            "the reduced dim on one core",
            f"{slices} work slices",
        )
    return reduced[0], added[0]


def _check_lanes(context: PlanContext) -> None:
    """Only positions as int32 may have other sticks than the input."""
    source, target = context.inputs[0], context.output
    if source.lanes == target.lanes or _output_format(context, target) == tb.INT32:
        return
    expected = f"{source.lanes} elements per stick as in {source.tensor.name}"
    raise context.stick_error(expected, f"{target.lanes} in {target.tensor.name}")


def _output_format(context: PlanContext, target: TensorAccess) -> int:
    if target.tensor.data_format in _INDEX_FORMATS and context.spec.kernel_op == "index":
        return tb.INT32
    return context.format_code(target.tensor)


def _topk_row(
    context: PlanContext, reduced: str, ranks: tuple[int, int, int, int], walk: AccessMap
) -> Int64Array:
    source, target = context.inputs[0], context.output
    row = RowWriter(tb.TOPK_KIND)
    row.operand(0, 0, walk.first[0], tb.WHOLE_STICK, context.format_code(source.tensor))
    row.operand(1, 1, walk.first[1], tb.WHOLE_STICK, _output_format(context, target))
    row.walk(walk)
    count = context.op.extents[reduced]
    row.words[tb.CONSTANT : tb.CONSTANT + 6] = [count, source.pitch_bytes[reduced], *ranks]
    row.header(
        opcode=tb.TOPK.index(context.spec.kernel_op),
        lanes=source.lanes,
        value=target.pitch_bytes[target.stick_dim],
        units=walk.count,
        cost_ns=walk.count * source.lanes * count * ranks[0],
    )
    return row.words
