"""Planner of `identity`: a copy of bits, with broadcast, gather or scatter.

Indirect access (SDSC reference §6.4): the dims of the index tensor stand, in the value tensor, for
one dim of rows; its pitch there, times the page size, is what one index step moves. Where the value
tensor has none of them, an index picks a page of its paged dim, within which the iteration runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spyre.errors import SdscError
from spyre.hw.access import TensorAccess, per_core
from spyre.hw.plans.context import (
    PlanContext,
    RowWriter,
    check_covered,
    outer_count,
    whole_steps,
)
from spyre.hw.plans.loop_nests import Axis, canonical_axes, fold_cores, peel
from spyre.hw.table import plan as tb
from spyre.hw.table.plan import COPY_KIND, GATHER, INDEX_PER_LANE, SCATTER
from spyre.layout.access_map import Int64Array
from spyre.mlir.operation.footprint import index_step, index_step_fault, indexed_dims
from spyre.mlir.operation.operation import Indirection

_INDEX_WORD_BYTES = 4


def plan_copy(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of an identity."""
    source, target = context.inputs[0], context.output
    if source.stick_dim != target.stick_dim or source.lanes != target.lanes:
        raise SdscError(
            "SPY283",
            "identity: operands have different sticks",
            context.location,
            expected=f"stick {target.stick_dim!r} of {target.lanes} as in {target.tensor.name}",
            found=f"stick {source.stick_dim!r} of {source.lanes} in {source.tensor.name}",
        )
    if context.op.index_tensors:
        yield from _plan_indirect(context)
        return
    check_covered(context, source, target)
    output = len(context.accesses) - 1
    axes = [_axis(context, dim) for dim in context.op.dims]
    for group in fold_cores(context.op, context.starts):
        nest = canonical_axes([*group.axes.values(), *axes], output) or [Axis(1, (0, 0))]
        for bases, rest in peel(group.bases, nest, tb.MAX_RANK + 1):
            yield _row(context, bases, rest).words


def _axis(context: PlanContext, dim: str) -> Axis:
    extent, step = per_core(context.op, dim), 1
    if dim == context.output.stick_dim:
        step = context.output.lanes
        extent = whole_steps(context, dim, extent, step)
    return Axis(extent, tuple(a.step_bytes(dim, step) for a in context.accesses))


def _row(context: PlanContext, bases: tuple[int, ...], axes: list[Axis]) -> RowWriter:
    """A row over operands (input, output[, index]); ``axes`` and ``bases`` are in that order."""
    source, target = context.inputs[0], context.output
    spread = source.is_lane and not target.is_lane
    output = len(context.accesses) - 1
    row = RowWriter(COPY_KIND)
    row.operand(0, 0, bases[0], 0 if spread else tb.WHOLE_STICK)
    row.operand(1, output, bases[1])
    if len(bases) > 2:
        row.operand(2, 1, bases[2])
    row.walk(axes, len(bases))
    blocks = -(-axes[-1].extent // tb.BLOCK_STICKS)
    elements = outer_count(axes) * axes[-1].extent * target.lanes
    row.header(
        lanes=target.lanes,
        blocks=blocks,
        units=outer_count(axes) * blocks,
        cost_ns=int(elements * 0.1),
    )
    return row


def _plan_indirect(context: PlanContext) -> Iterator[Int64Array]:
    """Gather or scatter; operands in the file's order are (input, index, output)."""
    source, index, target = context.accesses
    value = source if source.tensor.indirection is Indirection.VALUE else target
    indexed = indexed_dims(context.op, value.tensor)
    move_bytes = _index_step(context, value)
    if value.stick_dim in indexed:
        raise context.refuse(
            "SPY526",
            "indices along the stick dim of the value tensor",
            "an index tensor over other dims",
            f"stick dim {value.stick_dim!r} is indexed",
        )
    flags = GATHER if value is source else SCATTER
    per_lane = index.tensor.holds(value.stick_dim)
    if per_lane:
        flags |= INDEX_PER_LANE
    inner, outer = _indirect_axes(context, indexed, 0 if value is source else 2)
    for group in fold_cores(context.op, context.starts):
        nest = _reorder([*group.axes.values(), *outer])
        nest = [a for a in nest if a.extent > 1] + _reorder([inner])
        bases = (group.bases[0], group.bases[2], group.bases[1])
        for moved, rest in peel(bases, nest, tb.MAX_RANK + 1):
            row = _row(context, moved, rest)
            row.header(flags=flags, value=move_bytes)
            row.words[tb.CONSTANT] = index.pitch_bytes[index.stick_dim] if per_lane else 0
            yield row.words


def _index_step(context: PlanContext, value: TensorAccess) -> int:
    """Bytes that one step of an index moves. SdscError SPY262 where the file does not say."""
    step = index_step(context.op, value.tensor)
    fault = index_step_fault(context.op, value.tensor)
    if step is None or fault:
        raise SdscError(
            "SPY262",
            f"{context.op.name}: {fault}",
            context.location,
            expected="an indexed dim or a dim of pages, outermost or with deviceDimSizes_",
        )
    if step.dim == value.stick_dim and step.page % value.lanes:
        raise context.refuse(
            "SPY526",
            "indices along the stick dim of the value tensor",
            f"pages of whole sticks, {value.lanes} elements",
            f"pages of {step.page} along {step.dim!r}",
        )
    return value.step_bytes(step.dim, step.page)


def _reorder(axes: list[Axis]) -> list[Axis]:
    """Pitches from file order (input, index, output) to kernel order (input, output, index)."""
    return [Axis(a.extent, (a.pitches[0], a.pitches[2], a.pitches[1])) for a in axes]


def _indirect_axes(
    context: PlanContext, indexed: Sequence[str], value: int
) -> tuple[Axis, list[Axis]]:
    """The stick axis, which is innermost, and all others, index levels included."""
    outer = []
    for dim in context.op.dims:
        if dim == context.output.stick_dim:
            continue
        for extent, pitches in _index_levels(context, dim):
            still = dim in indexed
            moves = tuple(0 if still and k == value else p for k, p in enumerate(pitches))
            outer.append(Axis(extent, moves))
    return _axis(context, context.output.stick_dim), outer


def _index_levels(context: PlanContext, dim: str) -> list[tuple[int, tuple[int, ...]]]:
    """Levels of a dim: elements, or sticks of the index tensor and the words in them."""
    index = context.accesses[1]
    extent = per_core(context.op, dim)
    moves = [a.pitch_bytes.get(dim, 0) if a.tensor.holds(dim) else 0 for a in context.accesses]
    if dim != index.stick_dim or not index.tensor.holds(dim):
        return [(extent, tuple(moves))]
    words = list(moves)
    words[1] = _INDEX_WORD_BYTES
    if extent <= index.lanes:
        return [(extent, tuple(words))]
    if extent % index.lanes:
        raise context.refuse(
            "SPY527",
            "an index tensor whose share per core is not whole sticks",
            f"at most {index.lanes} indices along {dim!r}, or a multiple of it",
            str(extent),
        )
    sticks = [m * index.lanes for m in moves]
    sticks[1] = moves[1]
    return [(extent // index.lanes, tuple(sticks)), (index.lanes, tuple(words))]
