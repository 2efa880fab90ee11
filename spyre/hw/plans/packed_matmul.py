"""Planner of packed matmuls and of convolutions: C[.., m, n] = Σ_k A[.., m, k] · B[.., k, n].

One table per region of output positions (see :mod:`.windowing`). A region of a DL16 convolution
whose offset vectors have constant pitches is a table of the matmul kernel, any other one of the
packed matmul kernel, which takes arbitrary vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from spyre.errors import JsonLocation, SdscError
from spyre.hw import plan_table as tb
from spyre.hw.access import TensorAccess
from spyre.hw.plans.context import PlanContext, RowWriter, float_word, refuse_chunks
from spyre.hw.plans.matmul import STICK, MatmulRoles, dims_with, fit_rows, plan_matmul
from spyre.hw.plans.offset_tables import OffsetSpace, attach, combine, line_axis, spaces
from spyre.hw.plans.windowing import WindowRegion, place_line, region_line, regions, window_dims
from spyre.hw.spec_choices import INTEGER_MATMUL_SCALE
from spyre.layout import Int64Array, canonical_axes, drop_unit_axes, join_axes

_FORMATS = {
    "dl16": ("SEN169_FP16",),
    "fp8": ("SEN143_FP8", "SEN152_FP8"),
    "int8": ("SENINT8",),
    "int4": ("SENINT4",),
}
"""Formats of A and B by the op table's kernel name; C is SEN169_FP16."""


def find_packed_roles(context: PlanContext) -> MatmulRoles:
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
    conv = context.spec.windowed
    name = "convolution" if conv else "matmul"
    a, b, c = (access.tensor for access in context.accesses)
    return SdscError(
        "SPY292" if conv else "SPY284",
        f"{context.op.name}: the tensors do not have the structure of a {name}",
        context.location,
        expected="one dim in A and B only (and window dims in B), in A's stick; "
        "a dim in B and C only, in their sticks",
        found=f"A{a.dims} stick {a.stick_dims}, B{b.dims} stick {b.stick_dims}, "
        f"C{c.dims} stick {c.stick_dims}",
    )


def check_packed_matmul(context: PlanContext, roles: MatmulRoles) -> None:
    """Raise for formats and sticks other than those of the operation."""
    kind = context.spec.kernel_op
    wanted = (_FORMATS[kind], _FORMATS[kind], _FORMATS["dl16"])
    for access, formats in zip(context.accesses, wanted, strict=True):
        if access.tensor.data_format not in formats:
            raise context.refuse(
                "SPY522",
                f"{access.tensor.name} has a format that is not simulated here",
                " or ".join(formats),
                access.tensor.data_format,
            )
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
        raise SdscError(
            "SPY293",
            f"{context.op.name}: the stick of {tensor.name} is not the one of this operation",
            JsonLocation(context.op.file, tensor.json_path),
            expected=_shown(rule),
            found=_shown(stick),
        )


def _shown(stick: list[tuple[str, int]]) -> str:
    return ", ".join(f"{size} of {dim}" for dim, size in stick) + " (innermost first)"


_A, _B, _C = 0, 1, 2
_MOST_ROWS = 768
"""Rows of one unit at most: its sums take 768 KiB."""

_Lines = tuple[list[Int64Array], list[Int64Array], list[Int64Array], list[Int64Array]]
"""Offset vectors of one table, outermost first: of batches, rows, columns and reduced dims."""


def plan_packed_matmul(context: PlanContext) -> Iterator[Int64Array]:
    """Tables of a packed matmul or a convolution."""
    roles = find_packed_roles(context)
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
    refuse_chunks(context)
    roles = find_packed_roles(context)
    for space in spaces(context, (roles.reduction,)):
        yield _block(context, space, _collect(context, roles, space, {}, {}))


def _region_tables(
    context: PlanContext,
    roles: MatmulRoles,
    space: OffsetSpace,
    chosen: dict[str, WindowRegion],
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
    """Offset vectors by role; of every ``steps[dim]``-th element. Slices whose cores have separate
    operands are batches.
    """

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
    wanted = -(-2 * context.threads // (batches * column_blocks))
    blocks = max(-(-rows // _MOST_ROWS), min(wanted, -(-rows // 64)))
    row_block = -(-rows // blocks)
    row_blocks = -(-rows // row_block)
    row.words[tb.COUNTS : tb.COUNTS + 7] = *counts, row_block, row_blocks, column_blocks
    row.header(
        value=float_word(INTEGER_MATMUL_SCALE),
        flags=tb.EXACT_INTEGERS if context.spec.kernel_op.startswith("int") else 0,
        units=batches * column_blocks * row_blocks,
        cost_ns=int(batches * rows * columns * depth * context.spec.element_ns),
    )
