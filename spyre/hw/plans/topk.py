"""Planner of topkvalue and topkindex.

Structure (operations reference §2): the reduced dim is in the input only, the k dim in the output
only, all others in both; neither is in the stick, and neither may be split over cores.
"""

from __future__ import annotations

from collections.abc import Iterator

from spyre.errors import SdscError
from spyre.hw.access import TensorAccess, per_core
from spyre.hw.ops.rules import topk_dims
from spyre.hw.plans.context import PlanContext, RowWriter, outer_count, whole_steps
from spyre.hw.plans.loop_nests import Axis, canonical_axes, fold_cores, peel
from spyre.hw.table import plan as tb
from spyre.hw.table.plan import TOPK, TOPK_KIND
from spyre.layout.access_map import Int64Array

_INDEX_FORMATS = ("IEEE_INT32", "SENUINT32")


def plan_topk(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a top-k."""
    source = context.inputs[0]
    reduced, kept = _find_dims(context)
    lanes = source.lanes
    axes = []
    for dim in context.op.dims:
        if dim in (reduced, kept):
            continue
        extent, step = per_core(context.op, dim), 1
        if dim == source.stick_dim:
            extent, step = whole_steps(context, dim, extent, lanes), lanes
        axes.append(Axis(extent, tuple(a.step_bytes(dim, step) for a in context.accesses)))
    for group in fold_cores(context.op, context.starts):
        nest = canonical_axes([*group.axes.values(), *axes], 1) or [Axis(1, (0, 0))]
        for bases, rest in peel(group.bases, nest, tb.MAX_RANK + 1):
            yield _row(context, reduced, kept, bases, rest)


def _find_dims(context: PlanContext) -> tuple[str, str]:
    source, target = context.inputs[0], context.output
    reduced, kept = topk_dims(context.op)
    sticks = {source.stick_dim, target.stick_dim}
    fits = len(reduced) == 1 and len(kept) == 1 and len(sticks) == 1
    if not fits or sticks & {*reduced, *kept}:
        raise SdscError(
            "SPY285",
            f"{context.op.name}: the tensors do not have the structure of a top-k",
            context.location,
            expected="one dim in the input only, one in the output only, a common stick dim",
            found=f"input only {reduced}, output only {kept}, stick dims {sorted(sticks)}",
        )
    _check_lanes(context)
    _check_unsplit(context, reduced[0], kept[0])
    return reduced[0], kept[0]


def _check_lanes(context: PlanContext) -> None:
    """Only positions as int32 may have other sticks than the input."""
    source, target = context.inputs[0], context.output
    if source.lanes == target.lanes or _output_format(context, target) == tb.INT32:
        return
    raise SdscError(
        "SPY283",
        f"{context.op.name}: operands have different sticks",
        context.location,
        expected=f"{source.lanes} elements per stick as in {source.tensor.name}",
        found=f"{target.lanes} in {target.tensor.name}",
    )


def _check_unsplit(context: PlanContext, reduced: str, kept: str) -> None:
    for dim in (reduced, kept):
        if context.op.slices.get(dim, 1) > 1:
            raise context.refuse(
                "SPY531",
                f"dim {dim!r} split over cores",
                "the reduced and the k dim on one core",
                f"{context.op.slices[dim]} work slices",
            )


def _output_format(context: PlanContext, target: TensorAccess) -> int:
    if target.tensor.data_format in _INDEX_FORMATS and context.spec.kernel_op == "index":
        return tb.INT32
    return context.format_code(target.tensor)


def _row(
    context: PlanContext, reduced: str, kept: str, bases: tuple[int, ...], axes: list[Axis]
) -> Int64Array:
    source, target = context.inputs[0], context.output
    row = RowWriter(TOPK_KIND)
    row.operand(0, 0, bases[0], tb.WHOLE_STICK, context.format_code(source.tensor))
    row.operand(1, 1, bases[1], tb.WHOLE_STICK, _output_format(context, target))
    row.walk(axes, 2)
    count, k = context.op.extents[reduced], context.op.extents[kept]
    row.words[tb.CONSTANT : tb.CONSTANT + 4] = [
        count,
        source.pitch_bytes[reduced],
        k,
        target.pitch_bytes[kept],
    ]
    units = outer_count(axes) * axes[-1].extent
    row.header(
        opcode=TOPK.index(context.spec.kernel_op),
        lanes=source.lanes,
        value=target.pitch_bytes[target.stick_dim],
        units=units,
        cost_ns=units * source.lanes * count * k,
    )
    return row.words
