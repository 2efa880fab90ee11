"""Planner of ReStickifyOpHBM: blocks of one input stick by one output stick.

Stored extents limit what is read (zero beyond) and written (nothing beyond): SDSC reference §7.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyre.errors import SdscError
from spyre.hw.access import TensorAccess, per_core
from spyre.hw.plans.context import PlanContext, RowWriter, outer_count
from spyre.hw.plans.copying import plan_copy
from spyre.hw.plans.loop_nests import Axis, canonical_axes, fold_cores, peel
from spyre.hw.table import plan as tb
from spyre.hw.table.plan import RESTICKIFY_KIND
from spyre.layout.access_map import Int64Array
from spyre.mlir.operation.operation import Component


def plan_restickify(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a restickify; equal stick dims on both sides make it a copy."""
    source, target = context.inputs[0], context.output
    a, b = source.stick_dim, target.stick_dim
    if a == b:
        yield from plan_copy(context)
        return
    _check(context, a, b)
    side = source.lanes
    coordinates = [_coordinates(context, a, target), _coordinates(context, b, source)]
    starts = np.vstack([context.starts, *coordinates])
    axes = [_axis(context, dim, a, b, side) for dim in context.op.dims]
    for group in fold_cores(context.op, starts):
        nest = canonical_axes([*group.axes.values(), *axes], 1) or [Axis(1, (0, 0, 0, 0))]
        for bases, rest in peel(group.bases, nest, tb.MAX_RANK + 1):
            yield _row(context, bases, rest)


def _check(context: PlanContext, a: str, b: str) -> None:
    source, target = context.inputs[0], context.output
    held = all(x.tensor.holds(d) for x in (source, target) for d in (a, b))
    if held and source.lanes == target.lanes:
        return
    raise SdscError(
        "SPY283",
        "ReStickifyOpHBM: both tensors must hold both stick dims, with equal elements",
        context.location,
        expected=f"{a!r} and {b!r} in both tensors, {source.lanes} per stick",
        found=f"{source.tensor.name} {source.tensor.dims}, {target.tensor.name} "
        f"{target.tensor.dims} with {target.lanes} per stick",
    )


def _coordinates(context: PlanContext, dim: str, limited: TensorAccess) -> Int64Array:
    """Where each core's slice of ``dim`` begins in ``limited``, whose extent is the limit."""
    if limited.tensor.component is Component.LX or limited.tensor.per_core_in_hbm:
        return np.zeros(context.starts.shape[1], np.int64)
    share = per_core(context.op, dim)
    return np.array([core.get(dim, 0) * share for core in context.op.core_slices], np.int64)


def _axis(context: PlanContext, dim: str, a: str, b: str, side: int) -> Axis:
    extent, step = per_core(context.op, dim), 1
    if dim in (a, b):
        if extent % side:
            raise SdscError(
                "SPY282",
                f"ReStickifyOpHBM: one core's share of stick dim {dim!r} is not whole sticks",
                context.location,
                expected=f"a multiple of {side} elements",
                found=f"{extent} elements",
            )
        extent, step = extent // side, side
    pitches = tuple(x.step_bytes(dim, step) for x in context.accesses)
    return Axis(extent, (*pitches, step if dim == a else 0, step if dim == b else 0))


def _row(context: PlanContext, bases: tuple[int, ...], axes: list[Axis]) -> Int64Array:
    source, target = context.inputs[0], context.output
    a, b = source.stick_dim, target.stick_dim
    row = RowWriter(RESTICKIFY_KIND)
    row.operand(0, 0, bases[0])
    row.operand(1, 1, bases[1])
    row.operand(2, -1, bases[2])
    row.operand(3, -1, bases[3])
    row.walk(axes, 4)
    row.words[tb.CONSTANT] = source.pitch_bytes[b]
    row.words[tb.CONSTANT + 1] = target.pitch_bytes[a]
    blocks = outer_count(axes) * axes[-1].extent
    row.header(
        lanes=source.lanes,
        value=min(context.op.extents[b], source.stored[b]),
        mask_end=min(context.op.extents[a], target.stored[a]),
        units=blocks,
        cost_ns=blocks * source.lanes * source.lanes // 10,
    )
    return row.words
