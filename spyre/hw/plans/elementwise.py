"""Planner of elementwise operations: every operand walks the same sticks.

An operand whose stick dim has scale -2 gives lane 0 of each stick to all lanes; `layernormscale`
reads lanes 0 and 1 of its one input as two operands (operations reference §4).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.access import TensorAccess
from spyre.hw.ops import OPCODES
from spyre.hw.plans.context import (
    CoreGroup,
    Mask,
    PlanContext,
    RowWriter,
    check_covered,
    find_mask,
    fold_cores,
    outer_count,
    walk_axes,
)
from spyre.hw.spec import STICK_BYTES
from spyre.layout import AccessMap, Axis, Int64Array, sort_axes
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
        flags=_flags(context, row, inputs),
        inputs=inputs,
        lanes=lanes,
        blocks=blocks,
        units=outer_count(walk) * blocks,
        cost_ns=int(walk.count * lanes * context.spec.element_ns),
    )


def _flags(context: PlanContext, row: RowWriter, inputs: int) -> int:
    if row.words[tb.MASK] != tb.NO_MASK:
        return 0
    if _can_fuse(context, row, inputs):
        return tb.FUSE
    return tb.DIRECT if _is_direct(row, inputs) else 0


def _is_direct(row: RowWriter, inputs: int) -> bool:
    """Float32 sticks that are neighbours; an input may be one number for all of them."""
    for k in range(inputs + 1):
        operand = row.words[tb.OPERAND + k * tb.OPERAND_WORDS :]
        pitch = STICK_BYTES if operand[tb.LANE] == tb.WHOLE_STICK else 0
        if operand[tb.FORMAT] != tb.FP32 or operand[tb.INNER_PITCH] != pitch:
            return False
    return True


def _can_fuse(context: PlanContext, row: RowWriter, inputs: int) -> bool:
    """Operations on codes, DL16 sticks that are neighbours; b may be one lane per stick."""
    if not context.spec.code_form:
        return False
    for k in range(inputs + 1):
        operand = row.words[tb.OPERAND + k * tb.OPERAND_WORDS :]
        if operand[tb.FORMAT] != tb.DL16:
            return False
        lane_of_second = k == 1 and inputs == 2 and operand[tb.LANE] >= 0
        adjacent = operand[tb.LANE] == tb.WHOLE_STICK and operand[tb.INNER_PITCH] == STICK_BYTES
        if not adjacent and not lane_of_second:
            return False
    return True
