"""Planner of batchmatmul: dims to batch, row, column and K axes by structure, never by name.

Roles (operations reference §2): reduction in A and B only, generated in B and C only, preserved in
A and C only, the rest in all three. Sticks: A along K, B and C along the generated dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from spyre.errors import SdscError
from spyre.hw import plan_table as tb
from spyre.hw.plans.context import (
    CoreGroup,
    PlanContext,
    RowWriter,
    check_shared_output,
    fold_cores,
    walk_axes,
)
from spyre.hw.spec import STICK_BYTES
from spyre.layout import Axis, Int64Array, canonical_axes, drop_unit_axes, join_axes, pad_axes

STICK = 64
_A, _B, _C = 0, 1, 2
_MANY_ROWS = 192
"""Rows that make another unit worthwhile when columns are too few to keep all threads busy."""
_DECODE_NS = 0.15
"""Rough host time to read and decode an element of B, which matters where few rows use it."""
_CHUNK_COST = 20
"""Host time of a rounded multiply-add, as a multiple of that of an unrounded one."""


@dataclass(frozen=True, slots=True)
class MatmulRoles:
    """Dims by role. ``reduction`` is in A's stick, ``generated`` in B's and C's; ``windows``:
    window dims of a convolution, which are reduced too.
    """

    reduction: str
    generated: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    batch: tuple[str, ...]
    windows: tuple[str, ...] = ()


def plan_matmul(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a matmul."""
    _check_formats(context)
    roles = find_roles(context)
    sticks = {roles.reduction: STICK, roles.generated: STICK}
    axes = dict(zip(context.op.dims, walk_axes(context, sticks), strict=True))
    for group in fold_cores(context.op, context.starts, (roles.reduction,)):
        check_shared_output(context, group, (roles.reduction,), _C)
        yield from _group_rows(context, roles, group, axes)


def _check_formats(context: PlanContext) -> None:
    """Operands are 16-bit floats; the result may be float32, in sticks that are neighbours."""
    for access in context.accesses:
        wide = context.format_code(access.tensor) == tb.FP32
        adjacent = access.pitch_bytes.get(access.stick_dim) == STICK_BYTES
        if wide and (access is not context.output or not adjacent or context.numerics.chunked):
            raise context.refuse(
                "SPY522",
                f"arithmetic on {access.tensor.data_format} is not simulated yet",
                "SEN169_FP16",
                f"{access.tensor.data_format} in {access.tensor.name}",
            )


def find_roles(context: PlanContext) -> MatmulRoles:
    """Roles of all dims; raises SdscError when the structure is no matmul."""
    a, b, c = (access.tensor for access in context.accesses)
    members = {d: (a.holds(d), b.holds(d), c.holds(d)) for d in context.op.dims}
    reduced = dims_with(members, (True, True, False))
    made = dims_with(members, (False, True, True))
    sticks = tuple(access.stick_dim for access in context.accesses)
    unknown = [d for d, m in members.items() if sum(m) < 2 and context.op.extents[d] > 1]
    fits = len(reduced) == 1 and sticks[1] in made and sticks == (*reduced, sticks[1], sticks[1])
    if not fits or unknown:
        raise SdscError(
            "SPY284",
            f"{context.op.name}: the tensors do not have the structure of a matmul",
            context.location,
            expected="one dim in A and B only, in A's stick; "
            "a dim in B and C only, in their sticks",
            found=f"A{a.dims} stick {sticks[0]}, B{b.dims} stick {sticks[1]}, "
            f"C{c.dims} stick {sticks[2]}",
        )
    return MatmulRoles(
        reduced[0],
        sticks[1],
        dims_with(members, (True, False, True)),
        made,
        dims_with(members, (True, True, True)),
    )


def dims_with(members: Mapping[str, tuple[bool, ...]], wanted: tuple[bool, ...]) -> tuple[str, ...]:
    """Dims whose operands, of A, B and C, are those ``wanted``."""
    return tuple(dim for dim, holders in members.items() if holders == wanted)


def _group_rows(
    context: PlanContext, roles: MatmulRoles, group: CoreGroup, axes: dict[str, Axis]
) -> Iterator[Int64Array]:
    def collect(dims: Sequence[str], absent: int | None = None) -> list[Axis]:
        slices = [group.axes[d] for d in dims if d in group.axes]
        shared = [s for s in slices if absent is None or s.pitches[absent] == 0]
        return shared + [axes[d] for d in dims]

    batch = canonical_axes([*collect(roles.batch), *_private_slices(roles, group)], _C)
    rows = canonical_axes(collect(roles.rows, _B), _C)
    columns = canonical_axes(collect(roles.columns, _A), _C)
    reduced = join_axes(drop_unit_axes(collect((roles.reduction,))))
    yield from fit_rows(context, roles, group.first, batch, rows, columns, reduced)


def _private_slices(roles: MatmulRoles, group: CoreGroup) -> list[Axis]:
    """Slices of rows (columns) whose cores each have a separate B (A), in their LX."""
    lacking = [(d, _B) for d in roles.rows] + [(d, _A) for d in roles.columns]
    slices = [(group.axes[d], operand) for d, operand in lacking if d in group.axes]
    return [axis for axis, operand in slices if axis.pitches[operand] != 0]


def fit_rows(
    context: PlanContext,
    roles: MatmulRoles,
    bases: tuple[int, ...],
    batch: list[Axis],
    rows: list[Axis],
    columns: list[Axis],
    reduced: list[Axis],
) -> Iterator[Int64Array]:
    """Rows of one regular part: surplus row and column axes become batches or are unrolled.

    Row axes move A and C, columns B and C (in sticks), ``reduced`` A and B (in sticks, at most 3).
    """
    while len(rows) > tb.MATMUL_AXES:
        batch.append(rows.pop(0))
    while len(columns) > tb.MATMUL_AXES:
        batch.append(columns.pop(0))
    if len(batch) > tb.MATMUL_BATCH_AXES:
        first = batch[0]
        for step in range(first.extent):
            moved = tuple(b + step * p for b, p in zip(bases, first.pitches, strict=True))
            yield from fit_rows(
                context, roles, moved, batch[1:], list(rows), list(columns), reduced
            )
        return
    row = RowWriter(tb.CHUNK_MATMUL_KIND if context.numerics.chunked else tb.MATMUL_KIND)
    for k, access in enumerate(context.accesses):
        row.operand(k, k, bases[k], tb.WHOLE_STICK, context.format_code(access.tensor))
    _write_axes(row, tb.MATMUL_BATCH, pad_axes(batch, tb.MATMUL_BATCH_AXES, 3), (_A, _B, _C))
    _write_axes(row, tb.MATMUL_ROWS, pad_axes(rows, tb.MATMUL_AXES, 3), (_A, _C))
    _write_axes(row, tb.MATMUL_COLUMNS, pad_axes(columns, tb.MATMUL_AXES, 3), (_B, _C))
    _write_axes(row, tb.MATMUL_REDUCED, pad_axes(reduced, tb.MATMUL_AXES, 3), (_A, _B))
    row.words[tb.B_ROW_PITCH] = context.accesses[_B].pitch_bytes[roles.reduction]
    row.words[tb.CORE_DEPTH] = context.op.core_extent(roles.reduction) // STICK
    counts = tuple(prod(a.extent for a in axes) for axes in (batch, rows, columns, reduced))
    _write_blocks(context, row, counts)
    yield row.words


def _write_axes(row: RowWriter, word: int, axes: Sequence[Axis], operands: tuple[int, ...]) -> None:
    for axis in axes:
        row.words[word] = axis.extent
        row.words[word + 1 : word + 1 + len(operands)] = [axis.pitches[k] for k in operands]
        word += 1 + len(operands)


def _write_blocks(context: PlanContext, row: RowWriter, counts: tuple[int, ...]) -> None:
    batches, rows, columns, depth = counts
    column_blocks = -(-columns // tb.COLUMN_BLOCK)
    wanted = 2 * context.threads
    row_blocks = 1
    if batches * column_blocks < wanted and rows > _MANY_ROWS:
        row_blocks = min(-(-wanted // (batches * column_blocks)), rows // _MANY_ROWS + 1)
    row_block = -(-rows // row_blocks)
    row_blocks = -(-rows // row_block)
    words = row.words
    words[tb.ROW_COUNT], words[tb.COLUMN_COUNT], words[tb.REDUCED_COUNT] = rows, columns, depth
    words[tb.ROW_BLOCK], words[tb.ROW_BLOCKS] = row_block, row_blocks
    words[tb.COLUMN_BLOCKS] = column_blocks
    decoded = batches * columns * STICK * depth * STICK
    multiply_adds = rows * decoded
    if context.numerics.chunked:
        multiply_adds *= _CHUNK_COST
    row.header(
        units=batches * row_blocks * column_blocks,
        cost_ns=int(multiply_adds * context.spec.element_ns + decoded * _DECODE_NS),
    )
