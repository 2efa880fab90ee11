"""Planner of batchmatmul: dims to batch, row, column and K axes by structure, never by name.

Roles (operations reference §2): reduction in A and B only, generated in B and C only, preserved in
A and C only, the rest in all three. Sticks: A along K, B and C along the generated dim.

Packed matmuls and convolutions, C[.., m, n] = Σ_k A[.., m, k] · B[.., k, n], have one table per
region of output positions (see :mod:`.windowing`). A region of a DL16 convolution whose offset
vectors have constant pitches is a table of the matmul kernel, any other one of the packed matmul
kernel, which takes arbitrary vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import msgspec
import numpy as np

from spyre.errors import JsonLocation, SdscError
from spyre.hw import plan_table as tb
from spyre.hw.access import TensorAccess
from spyre.hw.plans.context import (
    CoreGroup,
    PlanContext,
    RowWriter,
    check_shared_output,
    float_word,
    fold_cores,
    refuse_chunks,
    walk_axes,
)
from spyre.hw.plans.offset_tables import OffsetSpace, attach, combine, line_axis, spaces
from spyre.hw.plans.windowing import WindowRegion, place_line, region_line, regions, window_dims
from spyre.hw.spec import STICK_BYTES
from spyre.hw.spec_choices import INTEGER_MATMUL_SCALE
from spyre.layout import Axis, Int64Array, canonical_axes, drop_unit_axes, join_axes, pad_axes

STICK = 64
_A, _B, _C = 0, 1, 2
_MOST_ROWS = 768
"""Rows of a unit at most: its sums take 768 KiB."""
_FEWEST_ROWS = 64
"""Rows that are worth packing B once more."""
_PACKED_AS_ROWS = 10
"""Host time to pack B for a unit, as that of so many rows."""
_DECODE_NS = 0.15
"""Rough host time to read and decode an element of B, which matters where few rows use it."""
_CHUNK_COST = 20
"""Host time of a rounded multiply-add, as a multiple of that of an unrounded one."""


class MatmulRoles(msgspec.Struct, frozen=True):
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
    sticks = tuple(access.stick_dim for access in context.accesses)
    if sticks != (roles.reduction, roles.generated, roles.generated):
        raise _structure(context)
    steps = {roles.reduction: STICK, roles.generated: STICK}
    axes = dict(zip(context.op.dims, walk_axes(context, steps), strict=True))
    for group in fold_cores(context.op, context.starts, (roles.reduction,)):
        check_shared_output(context, group, (roles.reduction,), _C)
        yield from _group_rows(context, roles, group, axes)


def _check_formats(context: PlanContext) -> None:
    """Operands are 16-bit floats; the result may be float32, in sticks that are neighbours."""
    for access in context.accesses:
        wide = context.format_code(access.tensor) == tb.FP32
        adjacent = access.pitch_bytes.get(access.stick_dim) == STICK_BYTES
        if wide and (access is not context.output or not adjacent or context.numerics.chunked):
            message = f"arithmetic on {access.tensor.data_format} is not simulated yet"
            found = f"{access.tensor.data_format} in {access.tensor.name}"
            raise context.refuse("SPY522", message, "SEN169_FP16", found)


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


def _row_block(context: PlanContext, rows: int, units: int) -> int:
    """Return the rows of a unit for which all threads end first, where all rows together would make
    ``units`` units.
    """
    fewest = -(-rows // _MOST_ROWS)
    most = max(fewest, min(fewest + context.threads, -(-rows // _FEWEST_ROWS)))

    def cost(blocks: int) -> int:
        return -(-units * blocks // context.threads) * (-(-rows // blocks) + _PACKED_AS_ROWS)

    return -(-rows // min(range(fewest, most + 1), key=cost))


def _write_blocks(context: PlanContext, row: RowWriter, counts: tuple[int, ...]) -> None:
    batches, rows, columns, depth = counts
    column_blocks = -(-columns // tb.COLUMN_BLOCK)
    if rows < 2 * _FEWEST_ROWS and batches * column_blocks < context.threads:
        column_block = -(-columns * batches // context.threads)
        column_blocks = -(-columns // column_block)
    row_block = _row_block(context, rows, batches * column_blocks)
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


# --- packed products and convolutions ------------------------------------------------------------

_FORMATS = {
    "dl16": ("SEN169_FP16",),
    "fp8": ("SEN143_FP8", "SEN152_FP8"),
    "int8": ("SENINT8",),
    "int4": ("SENINT4",),
}
"""Formats of A and B by the op table's kernel name; C is SEN169_FP16."""


def find_roles(context: PlanContext) -> MatmulRoles:
    """Roles of all dims; raises SdscError when the structure is no contraction."""
    op = context.op
    if not all(access.tensor.stick_dims for access in context.accesses):
        raise _structure(context)
    a, b, c = (access.tensor for access in context.accesses)
    places = window_dims(context) if context.spec.windowed else ()
    members = {d: (a.holds(d) or d in places, b.holds(d), c.holds(d)) for d in op.dims}
    reduced, columns = (True, True, False), dims_with(members, (False, True, True))
    channels = tuple(d for d in dims_with(members, reduced) if d not in places)
    generated = context.output.tensor.stick_dims[0]
    lost = [d for d in places if members[d] != reduced]
    unknown = [d for d, m in members.items() if sum(m) < 2 and op.extents[d] > 1]
    if len(channels) != 1 or generated not in columns or lost or unknown:
        raise _structure(context)
    rows, batch = dims_with(members, (True, False, True)), dims_with(members, (True, True, True))
    return MatmulRoles(channels[0], generated, rows, columns, batch, places)


def _structure(context: PlanContext) -> SdscError:
    is_windowed = context.spec.windowed
    name, also = ("convolution", " (and window dims in B)") if is_windowed else ("matmul", "")
    operands = zip("ABC", (access.tensor for access in context.accesses), strict=True)
    return SdscError(
        "SPY292" if is_windowed else "SPY284",
        f"{context.op.name}: the tensors do not have the structure of a {name}",
        context.location,
        expected=f"one dim in A and B only{also}, in A's stick; a dim in B and C only, in their "
        "sticks",
        found=", ".join(f"{k}{t.dims} stick {' '.join(t.stick_dims)}" for k, t in operands),
    )


def check_packed_matmul(context: PlanContext, roles: MatmulRoles) -> None:
    """Raise for formats and sticks other than those of the operation."""
    kind = context.spec.kernel_op
    wanted = (_FORMATS[kind], _FORMATS[kind], _FORMATS["dl16"])
    for access, formats in zip(context.accesses, wanted, strict=True):
        if access.tensor.data_format not in formats:
            message = f"{access.tensor.name} has a format that is not simulated here"
            raise context.refuse("SPY522", message, " or ".join(formats), access.tensor.data_format)
    k, n = roles.reduction, roles.generated
    shared = context.inputs[0].tensor.stick_dims[1:2] if kind == "int4" else ()
    pair = shared[0] if shared and shared[0] in roles.rows else "a row dim"
    rules = {
        "dl16": ([(k, 64)], [(n, 64)]),
        "fp8": ([(k, 128)], [(k, 2), (n, 64)]),
        "int8": ([(k, 128)], [(k, 2), (n, 64)]),
        "int4": ([(k, 16), (pair, 2), (k, 8)], [(k, 4), (n, 64)]),
    }[kind]
    for access, rule in zip(context.accesses, (*rules, [(n, 64)]), strict=True):
        check_stick(context, access, rule)


def check_stick(context: PlanContext, access: TensorAccess, rule: list[tuple[str, int]]) -> None:
    """Raise SdscError unless the stick is ``rule``: (dim, elements), innermost first."""
    tensor = access.tensor
    stick = list(zip(tensor.stick_dims, tensor.stick_sizes, strict=True))
    if stick != rule:
        message = f"{context.op.name}: the stick of {tensor.name} is not the one of this operation"
        location = JsonLocation(context.op.file, tensor.json_path)
        raise SdscError("SPY293", message, location, expected=_shown(rule), found=_shown(stick))


def _shown(stick: list[tuple[str, int]]) -> str:
    return ", ".join(f"{size} of {dim}" for dim, size in stick) + " (innermost first)"


_Lines = tuple[list[Int64Array], list[Int64Array], list[Int64Array], list[Int64Array]]
"""Offset vectors of one table, outermost first: of batches, rows, columns and reduced dims."""


def plan_packed_matmul(context: PlanContext) -> Iterator[Int64Array]:
    """Tables of a packed matmul or a convolution."""
    roles = find_roles(context)
    check_packed_matmul(context, roles)
    if not context.spec.kernel_op.startswith("int"):
        refuse_chunks(context)
    for all_cores in spaces(context, (*roles.windows, roles.reduction)):
        separate = [dim for dim in context.op.windows if _moves(all_cores, dim, _B)]
        for space in all_cores.peel(separate):
            for region in regions(context, space):
                yield from _region_tables(context, roles, space, region)


def plan_product(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a matmul, or its tables where the operands are accessed by elements."""
    if not context.output.tensor.by_elements:
        yield from plan_matmul(context)
        return
    if context.format_code(context.output.tensor) != tb.FP32:
        refuse_chunks(context)
    roles = find_roles(context)
    for space in spaces(context, (roles.reduction,)):
        yield _block(context, space, _collect(context, roles, space, {}, {}))


def _region_tables(
    context: PlanContext, roles: MatmulRoles, space: OffsetSpace, chosen: dict[str, WindowRegion]
) -> list[Int64Array]:
    stick_dims = (roles.reduction, roles.generated)
    in_sticks = all(context.op.core_extent(d) % STICK == 0 for d in stick_dims)
    if context.spec.kernel_op == "dl16" and in_sticks:
        sticks = dict.fromkeys(stick_dims, STICK)
        tables = _matmul_tables(
            context, roles, space, _collect(context, roles, space, chosen, sticks)
        )
        if tables is not None:
            return tables
    return [_block(context, space, _collect(context, roles, space, chosen, {}))]


def _moves(space: OffsetSpace, dim: str, operand: int) -> bool:
    """True if the cores of a split ``dim`` each have a different ``operand``."""
    return dim in space.slices and bool(space.slices[dim][operand].any())


def _collect(
    context: PlanContext,
    roles: MatmulRoles,
    space: OffsetSpace,
    chosen: dict[str, WindowRegion],
    steps: Mapping[str, int],
) -> _Lines:
    """Offset vectors by role, of every ``steps[dim]``-th element; `_private_slices` are batches."""

    def lines(dims: Sequence[str], absent: int | None = None) -> list[Int64Array]:
        collected = []
        for dim in dims:
            if dim in chosen:
                collected.append(region_line(space, dim, chosen))
                continue
            if dim in space.slices and (absent is None or not _moves(space, dim, absent)):
                collected.append(space.slices[dim])
            collected.append(space.local[dim][:, :: steps.get(dim, 1)])
        return sorted(collected, key=lambda line: -int(np.abs(line[_C]).max(initial=0)))

    lacking = [(d, _B) for d in roles.rows] + [(d, _A) for d in roles.columns]
    private = [space.slices[d] for d, operand in lacking if _moves(space, d, operand)]
    spatial = {window.window_dim: dim for dim, window in context.op.windows.items()}
    places = [place_line(context, space, spatial[d], chosen) for d in roles.windows]
    return (
        private + lines(roles.batch),
        lines(roles.rows, _B),
        lines(roles.columns, _A),
        places + lines([roles.reduction]),
    )


# --- the matmul kernel ------------------------------------------------------------------------


def _matmul_tables(
    context: PlanContext, roles: MatmulRoles, space: OffsetSpace, lines: _Lines
) -> list[Int64Array] | None:
    """The region as tables of the matmul kernel, or None if it has no such form."""
    groups = []
    bases = space.bases.copy()
    for group in lines:
        axes = [line_axis(line[:3]) for line in group]
        if any(axis is None or axis.extent == 0 for axis in axes):
            return None
        bases += sum(line[:, 0] for line in group)
        groups.append([axis for axis in axes if axis is not None])
    batch, rows, columns = (canonical_axes(group, _C) for group in groups[:3])
    depth = join_axes(drop_unit_axes(groups[3]))
    if len(depth) > tb.MATMUL_AXES:
        return None
    start = tuple((bases[:3] // 8).tolist())
    return list(fit_rows(context, roles, start, batch, rows, columns, depth))


# --- the packed matmul kernel ----------------------------------------------------------------


def _block(context: PlanContext, space: OffsetSpace, lines: _Lines) -> Int64Array:
    width = space.bases.size
    batch, rows, columns, depth = (combine(context, group, width) for group in lines)
    row = RowWriter(tb.PACKED_MATMUL_KIND)
    row.operands(context, space.bases.tolist())
    counts = tuple(group.shape[1] for group in (batch, rows, columns, depth))
    _write_counts(context, row, counts)
    return attach(row.words, [batch[:3], rows[[_A, _C]], columns[[_B, _C]], depth[[_A, _B]]])


def _write_counts(context: PlanContext, row: RowWriter, counts: tuple[int, ...]) -> None:
    batches, rows, columns, depth = counts
    column_blocks = -(-columns // tb.PACKED_COLUMN_BLOCK)
    row_block = _row_block(context, rows, batches * column_blocks)
    row_blocks = -(-rows // row_block)
    row.words[tb.COUNTS : tb.COUNTS + 7] = *counts, row_block, row_blocks, column_blocks
    row.header(
        value=float_word(INTEGER_MATMUL_SCALE),
        flags=tb.EXACT_INTEGERS if context.spec.kernel_op.startswith("int") else 0,
        units=batches * column_blocks * row_blocks,
        cost_ns=int(batches * rows * columns * depth * context.spec.element_ns),
    )
