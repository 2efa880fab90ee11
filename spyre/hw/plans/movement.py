"""Planners of operations that move elements: identity, shuffle, restickify and conversions.

`identity` copies bits, with broadcast, gather or scatter. Indirect access (SDSC reference §6.4): in
the value tensor, one dim of rows replaces the dims of the index tensor; an index step moves by its
pitch times the page size. If the value tensor has none of these dims, an index selects a page of
its paged dim, within which the iteration runs.

Of moves by elements every dim is an axis of elements, whatever their distances. Index tensors move
the value tensor: each counts steps of so many bytes (`Operation.index_steps`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from operator import add

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.errors import SdscError
from spyre.hw import plan_table as tb
from spyre.hw.access import TensorAccess
from spyre.hw.plans.context import (
    PlanContext,
    RowWriter,
    check_covered,
    fold_cores,
    outer_count,
    walk_axes,
)
from spyre.hw.plans.vector_units import check_sticks
from spyre.layout import AccessMap, Axis, Int64Array, drop_unit_axes
from spyre.mlir.operation import Component, Indirection, index_step, index_step_fault, indexed_dims

_INDEX_WORD_BYTES = 4
GROUP = 64
"""Elements converted together."""


# --- identity and shuffle ---------------------------------------------------------------------


def plan_copy(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of an identity."""
    check_sticks(context)
    if context.output.tensor.by_elements:
        yield from plan_move(context)
        return
    if context.op.index_tensors:
        yield from _plan_indirect(context)
        return
    target = context.output
    check_covered(context, context.inputs[0], target)
    axes = walk_axes(context, {target.stick_dim: target.lanes})
    for group in fold_cores(context.op, context.starts):
        for walk in group.walk(axes, 1).unrolled(tb.MAX_RANK + 1):
            yield _copy_row(context, walk).words


def plan_shuffle(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a copy of bits between the scratchpads of cores (SDSC reference §9).

    The linker passes it in cells, boxes within one core's part of both tensors
    (:mod:`spyre.hw.plans.normalise`); each cell is copied like an identity. SdscError SPY261
    outside of LX, SPY283, SPY287 for unequal layouts.
    """
    source, target = context.inputs[0], context.output
    for access in (source, target):
        if access.tensor.component is not Component.LX:
            raise SdscError(
                "SPY261",
                f"{access.tensor.name} of a shuffle is not in LX",
                context.location,
                expected="lx",
                found=access.tensor.component.value,
            )
    if source.is_lane != target.is_lane:
        message = "shuffle: one tensor keeps one value per stick, the other does not"
        expected = "equal scales of the stick dim"
        raise SdscError("SPY287", message, context.location, expected=expected)
    yield from plan_copy(context)


def _copy_row(context: PlanContext, walk: AccessMap) -> RowWriter:
    """A row over operands (input, output[, index]), the spaces of ``walk``."""
    source, target = context.inputs[0], context.output
    spread = source.is_lane and not target.is_lane
    output = len(context.accesses) - 1
    row = RowWriter(tb.COPY_KIND)
    row.operand(0, 0, walk.first[0], 0 if spread else tb.WHOLE_STICK)
    row.operand(1, output, walk.first[1])
    if len(walk.first) > 2:
        row.operand(2, 1, walk.first[2])
    row.walk(walk)
    blocks = -(-walk.axes[-1].extent // tb.BLOCK_STICKS)
    row.header(
        lanes=target.lanes,
        blocks=blocks,
        units=outer_count(walk) * blocks,
        cost_ns=int(walk.count * target.lanes * 0.1),
    )
    return row


# --- gather and scatter -----------------------------------------------------------------------


def _plan_indirect(context: PlanContext) -> Iterator[Int64Array]:
    """Gather or scatter; operands in the file's order are (input, index, output)."""
    source, index, target = context.accesses
    value = source if source.tensor.indirection is Indirection.VALUE else target
    indexed = indexed_dims(context.op, value.tensor)
    move_bytes = _index_step(context, value)
    if value.stick_dim in indexed:
        message = "indices along the stick dim of the value tensor"
        found = f"stick dim {value.stick_dim!r} is indexed"
        raise context.refuse("SPY526", message, "an index tensor over other dims", found)
    flags = tb.GATHER if value is source else tb.SCATTER
    per_lane = index.tensor.holds(value.stick_dim)
    if per_lane:
        flags |= tb.INDEX_PER_LANE
    parts = _indirect_parts(context, indexed, 0 if value is source else 2)
    stick_dim = context.output.stick_dim
    (sticks,) = walk_axes(context, {stick_dim: context.output.lanes}, [stick_dim])
    for group, part in product(fold_cores(context.op, context.starts), parts):
        # sticks stay innermost, even a single one: an index is read once per run of them
        axes = (*drop_unit_axes([*group.axes.values(), *part.axes]), sticks)
        first = tuple(map(add, group.first, part.first))
        in_file_order = AccessMap(first, axes)
        for walk in in_file_order.picked((0, 2, 1)).unrolled(tb.MAX_RANK + 1):
            row = _copy_row(context, walk)
            row.header(flags=flags, value=move_bytes)
            row.words[tb.CONSTANT] = index.pitch_bytes[index.stick_dim] if per_lane else 0
            yield row.words


def _index_step(context: PlanContext, value: TensorAccess) -> int:
    """Bytes that one step of an index moves. SdscError SPY262 if the file does not define it."""
    step = index_step(context.op, value.tensor)
    fault = index_step_fault(context.op, value.tensor)
    if step is None or fault:
        message = f"{context.op.name}: {fault}"
        expected = "an indexed dim or a dim of pages, outermost or with deviceDimSizes_"
        raise SdscError("SPY262", message, context.location, expected=expected)
    if step.dim == value.stick_dim and step.page % value.lanes:
        raise context.refuse(
            "SPY526",
            "indices along the stick dim of the value tensor",
            f"pages of whole sticks, {value.lanes} elements",
            f"pages of {step.page} along {step.dim!r}",
        )
    return value.step_bytes(step.dim, step.page)


def _indirect_parts(context: PlanContext, indexed: Sequence[str], value: int) -> list[AccessMap]:
    """The walk over all dims but the stick, from a core's start, in as few nests as possible."""
    parts = [AccessMap((0,) * len(context.accesses), ())]
    for dim in context.op.dims:
        if dim == context.output.stick_dim:
            continue
        levels = _index_levels(context, dim)
        if dim in indexed:  # the index gives the position in the value tensor along these dims
            levels = [_standing_still(level, value) for level in levels]
        parts = [
            AccessMap(tuple(map(add, part.first, level.first)), (*part.axes, *level.axes))
            for part, level in product(parts, levels)
        ]
    return parts


def _standing_still(walk: AccessMap, space: int) -> AccessMap:
    """``walk`` without any movement in ``space``."""

    def still(places: tuple[int, ...]) -> tuple[int, ...]:
        return (*places[:space], 0, *places[space + 1 :])

    axes = tuple(Axis(axis.extent, still(axis.pitches)) for axis in walk.axes)
    return AccessMap(still(walk.first), axes)


def _index_levels(context: PlanContext, dim: str) -> list[AccessMap]:
    """A core's part of a dim in elements, or in sticks of the index tensor and the words in them.

    Adjacent sticks of words are one run of words. Others are walked one by one; a last stick that
    is not full is a separate nest.
    """
    index = context.accesses[1]
    extent = context.op.core_extent(dim)
    moves = tuple(a.pitch_bytes.get(dim, 0) if a.tensor.holds(dim) else 0 for a in context.accesses)
    start = (0,) * len(moves)
    if dim != index.stick_dim or not index.tensor.holds(dim):
        return [AccessMap(start, (Axis(extent, moves),))]
    words = (moves[0], _INDEX_WORD_BYTES, *moves[2:])
    if moves[1] == index.lanes * _INDEX_WORD_BYTES or index.lanes % extent == 0:
        return [AccessMap(start, (Axis(extent, words),))]
    sticks = tuple(m if k == 1 else m * index.lanes for k, m in enumerate(moves))
    whole, begun = divmod(extent, index.lanes)
    if begun and context.op.slices.get(dim, 1) > 1:
        message = "separate sticks of an index tensor that cores share"
        expected = f"a divisor or a multiple of {index.lanes} indices along {dim!r} per core"
        raise context.refuse("SPY527", message, expected, str(extent))
    levels = [AccessMap(start, (Axis(whole, sticks), Axis(index.lanes, words)))] if whole else []
    if begun:
        rest = AccessMap(tuple(whole * m for m in sticks), (Axis(begun, words),))
        levels.append(rest)
    return levels


# --- conversions between 16 and 32 bits -------------------------------------------------------


def plan_convert(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of dl16tofp32 and fp32todl16: groups of 64 elements, one 16-bit and two 32-bit sticks.

    The argument's layout, not the SDSC, shows which side is stored in an element arrangement
    (operations reference §6).
    """
    source, target = context.inputs[0], context.output
    wide = target if context.spec.kernel_op == "widen" else source
    narrow = source if wide is target else target
    if source.stick_dim != target.stick_dim or (wide.lanes, narrow.lanes) != (32, 64):
        raise context.stick_error(
            "one stick dim, 64 16-bit elements against 32 32-bit elements",
            f"{source.stick_dim!r} of {source.lanes} to {target.stick_dim!r} of {target.lanes}",
        )
    axes = walk_axes(context, {target.stick_dim: GROUP})
    for group in fold_cores(context.op, context.starts):
        for walk in group.walk(axes, 1).unrolled(tb.MAX_RANK + 1):
            second = 0 if wide.is_lane else wide.pitch_bytes[wide.stick_dim]
            yield _convert_row(context, second, walk)


def _convert_row(context: PlanContext, second_bytes: int, walk: AccessMap) -> Int64Array:
    """``second_bytes``: from the first to the second stick of the 32-bit side."""
    source, target = context.inputs[0], context.output
    row = RowWriter(tb.CONVERT_KIND)
    lane = 0 if source.is_lane else tb.WHOLE_STICK
    row.operand(0, 0, walk.first[0], lane, context.format_code(source.tensor))
    row.operand(1, 1, walk.first[1], tb.WHOLE_STICK, context.format_code(target.tensor))
    row.walk(walk)
    row.header(
        opcode=tb.CONVERSIONS.index(context.spec.kernel_op),
        flags=_arrangement_flags(context),
        value=second_bytes,
        units=walk.count,
        cost_ns=walk.count * GROUP // 2,
    )
    return row.words


def _arrangement_flags(context: PlanContext) -> int:
    flags = 0
    if "DL16_TO_FP32" in context.arrangements:
        flags |= tb.WORD_STAGGERED
    if "FP32_TO_DL16" in context.arrangements:
        flags |= tb.HALF_STAGGERED
    return flags


# --- restickify -------------------------------------------------------------------------------


def plan_restickify(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a restickify: blocks of one input stick by one output stick.

    Stored extents limit reads (zero beyond) and writes (none beyond): SDSC reference §7. With equal
    stick dims on both sides it is a copy.
    """
    source, target = context.inputs[0], context.output
    a, b = source.stick_dim, target.stick_dim
    if a == b:
        yield from plan_copy(context)
        return
    _check_stick_dims(context, a, b)
    # besides the operands, a block walks its coordinates along a and b, which the limits are for
    coordinates = [_coordinates(context, a, target), _coordinates(context, b, source)]
    starts = np.vstack([context.starts, *coordinates])
    axes = [_block_axis(context, dim, a, b, source.lanes) for dim in context.op.dims]
    for group in fold_cores(context.op, starts):
        for walk in group.walk(axes, 1).unrolled(tb.MAX_RANK + 1):
            yield _restickify_row(context, walk)


def _check_stick_dims(context: PlanContext, a: str, b: str) -> None:
    source, target = context.inputs[0], context.output
    both = all(x.tensor.holds(d) for x in (source, target) for d in (a, b))
    if both and source.lanes == target.lanes:
        return
    raise context.stick_error(
        f"{a!r} and {b!r} in both tensors, {source.lanes} per stick",
        f"{source.tensor.name} {source.tensor.dims}, {target.tensor.name} {target.tensor.dims} "
        f"with {target.lanes} per stick",
    )


def _coordinates(context: PlanContext, dim: str, limited: TensorAccess) -> Int64Array:
    """Begin of each core's slice of ``dim`` in ``limited``, whose extent is the limit."""
    if limited.tensor.component is Component.LX or limited.tensor.per_core_in_hbm:
        return np.zeros(context.starts.shape[1], np.int64)
    share = context.op.core_extent(dim)
    return np.array([core.get(dim, 0) * share for core in context.op.core_slices], np.int64)


def _block_axis(context: PlanContext, dim: str, a: str, b: str, side: int) -> Axis:
    extent, step = context.op.core_extent(dim), 1
    if dim in (a, b):
        if extent % side:
            message = f"ReStickifyOpHBM: one core's share of stick dim {dim!r} is not whole sticks"
            expected = f"a multiple of {side} elements"
            found = f"{extent} elements"
            raise SdscError("SPY282", message, context.location, expected=expected, found=found)
        extent, step = extent // side, side
    pitches = tuple(x.step_bytes(dim, step) for x in context.accesses)
    return Axis(extent, (*pitches, step if dim == a else 0, step if dim == b else 0))


def _restickify_row(context: PlanContext, walk: AccessMap) -> Int64Array:
    source, target = context.inputs[0], context.output
    a, b = source.stick_dim, target.stick_dim
    row = RowWriter(tb.RESTICKIFY_KIND)
    for slot, tensor in enumerate((0, 1, -1, -1)):
        row.operand(slot, tensor, walk.first[slot])
    row.walk(walk)
    row.words[tb.CONSTANT] = source.pitch_bytes[b]
    row.words[tb.CONSTANT + 1] = target.pitch_bytes[a]
    row.header(
        lanes=source.lanes,
        value=min(context.op.extents[b], source.stored[b]),
        mask_end=min(context.op.extents[a], target.stored[a]),
        units=walk.count,
        cost_ns=walk.count * source.lanes * source.lanes // 10,
    )
    return row.words


# --- moves by elements ---------------------------------------------------------------------------

_ELEMENT_NS = 1.0


def plan_move(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a move."""
    output, axes = len(context.accesses) - 1, walk_axes(context, {})
    flags = 0
    if context.op.index_steps:
        gathers = context.inputs[0].tensor.indirection is Indirection.VALUE
        flags = tb.GATHER if gathers else tb.SCATTER
    for group in fold_cores(context.op, context.starts):
        # of equal targets of a scatter the last element in order stays
        nest = AccessMap(group.first, (*group.axes.values(), *axes))
        walk = nest.joined() if flags & tb.SCATTER else nest.canonical(output)
        for part in walk.picked((0, output, *range(1, output))).unrolled(tb.MAX_RANK + 1):
            yield _row(context, part, flags)


def _row(context: PlanContext, walk: AccessMap, flags: int) -> Int64Array:
    """A row over operands (source, target, index tensors), the spaces of ``walk``."""
    steps = context.op.index_steps
    output = len(context.accesses) - 1
    row = RowWriter(tb.MOVE_KIND)
    for slot, position in enumerate((0, output, *range(1, output))):
        row.operand(slot, position, walk.first[slot])
    row.walk(walk)
    blocks = -(-walk.axes[-1].extent // tb.MOVE_BLOCK)
    units = outer_count(walk) * blocks
    words = [word for step in steps for word in step]
    row.words[tb.CONSTANT : tb.CONSTANT + len(words)] = words
    row.words[tb.CONSTANT + 2 * tb.MOST_INDICES] = units
    row.header(
        flags=flags,
        inputs=len(steps),
        lanes=STICK_BYTES // context.output.tensor.word_length_bytes,
        blocks=blocks,
        units=1 if flags & tb.SCATTER else units,
        value=1,
        mask_end=1 + sum(step * (count - 1) for step, count in steps),
        cost_ns=int(walk.count * _ELEMENT_NS),
    )
    return row.words
