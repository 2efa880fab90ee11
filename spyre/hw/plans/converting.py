"""Planner of dl16tofp32 and fp32todl16: groups of 64 elements, one 16-bit and two 32-bit sticks.

Which side is stored in an element arrangement comes from the argument's layout; the SDSC does not
say (operations reference §6).
"""

from __future__ import annotations

from collections.abc import Iterator

from spyre.errors import SdscError
from spyre.hw.access import per_core
from spyre.hw.plans.context import PlanContext, RowWriter, outer_count, whole_steps
from spyre.hw.plans.loop_nests import Axis, canonical_axes, fold_cores, peel
from spyre.hw.table import plan as tb
from spyre.hw.table.plan import CONVERSIONS, CONVERT_KIND, HALF_STAGGERED, WORD_STAGGERED
from spyre.layout.access_map import Int64Array

GROUP = 64
"""Elements converted together."""


def plan_convert(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a conversion between 16 and 32 bits."""
    source, target = context.inputs[0], context.output
    wide = target if context.spec.kernel_op == "widen" else source
    narrow = source if wide is target else target
    if source.stick_dim != target.stick_dim or (wide.lanes, narrow.lanes) != (32, 64):
        raise SdscError(
            "SPY283",
            f"{context.op.name}: operands have the wrong sticks",
            context.location,
            expected="one stick dim, 64 16-bit elements against 32 32-bit elements",
            found=f"{source.stick_dim!r} of {source.lanes} to "
            f"{target.stick_dim!r} of {target.lanes}",
        )
    axes = []
    for dim in context.op.dims:
        extent, step = per_core(context.op, dim), 1
        if dim == target.stick_dim:
            extent, step = whole_steps(context, dim, extent, GROUP), GROUP
        axes.append(Axis(extent, tuple(a.step_bytes(dim, step) for a in context.accesses)))
    for group in fold_cores(context.op, context.starts):
        nest = canonical_axes([*group.axes.values(), *axes], 1) or [Axis(1, (0, 0))]
        for bases, rest in peel(group.bases, nest, tb.MAX_RANK + 1):
            yield _row(context, wide.pitch_bytes[wide.stick_dim], bases, rest)


def _row(
    context: PlanContext, second_bytes: int, bases: tuple[int, ...], axes: list[Axis]
) -> Int64Array:
    source, target = context.inputs[0], context.output
    row = RowWriter(CONVERT_KIND)
    row.operand(0, 0, bases[0], tb.WHOLE_STICK, context.format_code(source.tensor))
    row.operand(1, 1, bases[1], tb.WHOLE_STICK, context.format_code(target.tensor))
    row.walk(axes, 2)
    groups = outer_count(axes) * axes[-1].extent
    row.header(
        opcode=CONVERSIONS.index(context.spec.kernel_op),
        flags=_flags(context),
        value=second_bytes,
        units=groups,
        cost_ns=groups * GROUP // 2,
    )
    return row.words


def _flags(context: PlanContext) -> int:
    flags = 0
    if "DL16_TO_FP32" in context.arrangements:
        flags |= WORD_STAGGERED
    if "FP32_TO_DL16" in context.arrangements:
        flags |= HALF_STAGGERED
    return flags
