"""Planner of topkvalue and topkindex.

Structure (operations reference §2): the reduced dim is in the input only, the k dim in the output
only, all others in both; neither is in the stick. The reduced dim may not be split over cores;
where k is, each core sees all elements and writes the ranks of its slice.
"""

from __future__ import annotations

from collections.abc import Iterator

from spyre.errors import SdscError
from spyre.hw import plan_table as tb
from spyre.hw.access import TensorAccess
from spyre.hw.ops import topk_dims
from spyre.hw.plans.context import PlanContext, RowWriter, fold_cores, walk_axes
from spyre.layout import AccessMap, Axis, Int64Array

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
            yield _row(context, reduced, ranks, part)


def _ranks(context: PlanContext, added: str, slices: Axis) -> tuple[int, int, int, int]:
    """k, bytes between ranks, ranks per slice of k, and bytes between slices."""
    source, target = slices.pitches
    if source:
        raise context.refuse(
            "SPY531",
            f"dim {added!r} split over cores that read different elements",
            "one input for all slices of k",
            f"inputs {source} bytes apart",
        )
    share = context.op.core_extent(added)
    return slices.extent * share, context.output.pitch_bytes[added], share, target


def _find_dims(context: PlanContext) -> tuple[str, str]:
    source, target = context.inputs[0], context.output
    reduced, added = topk_dims(context.op)
    sticks = {source.stick_dim, target.stick_dim}
    fits = len(reduced) == 1 and len(added) == 1 and len(sticks) == 1
    if not fits or sticks & {*reduced, *added}:
        raise SdscError(
            "SPY285",
            f"{context.op.name}: the tensors do not have the structure of a top-k",
            context.location,
            expected="one dim in the input only, one in the output only, a common stick dim",
            found=f"input only {reduced}, output only {added}, stick dims {sorted(sticks)}",
        )
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
    raise SdscError(
        "SPY283",
        f"{context.op.name}: operands have different sticks",
        context.location,
        expected=f"{source.lanes} elements per stick as in {source.tensor.name}",
        found=f"{target.lanes} in {target.tensor.name}",
    )


def _output_format(context: PlanContext, target: TensorAccess) -> int:
    if target.tensor.data_format in _INDEX_FORMATS and context.spec.kernel_op == "index":
        return tb.INT32
    return context.format_code(target.tensor)


def _row(
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
