"""Planner of moves by elements: copies between tensors that are accessed element by element.

Every dim is an axis of elements, whatever their distances. Index tensors move the value tensor:
each counts steps of so many bytes (`Operation.index_steps`).
"""

from __future__ import annotations

from collections.abc import Iterator

from spyre.dtypes import STICK_BYTES
from spyre.hw import plan_table as tb
from spyre.hw.plans.context import PlanContext, RowWriter, fold_cores, outer_count, walk_axes
from spyre.layout import AccessMap, Int64Array
from spyre.mlir.operation import Indirection

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
