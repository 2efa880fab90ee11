"""Planner of packed matmuls and of convolutions: C[.., m, n] = Σ_k A[.., m, k] · B[.., k, n].

Per region of output positions (see :mod:`.window_regions`) one table. A region of a DL16
convolution whose lines have constant pitches is a table of the matmul kernel, anything else one of
the contract kernel, which takes the lines as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw import matmul_table as mt
from spyre.hw import table as tb
from spyre.hw import vector_table as vt
from spyre.hw.access import per_core
from spyre.hw.kernels.opcodes import CONTRACT_KIND
from spyre.hw.nest import Int64Array, drop_unit_axes, merge_axes, normalise
from spyre.hw.plans.context import PlanContext, RowWriter, float_word, refuse_chunks
from spyre.hw.plans.contract_roles import ContractRoles, check_contract, find_contract_roles
from spyre.hw.plans.lines import Space, attach, combine, line_axis, spaces
from spyre.hw.plans.matmul import STICK, Roles, fit_rows
from spyre.hw.plans.window_regions import Region, place_line, region_line, regions
from spyre.hw.readings import INTEGER_MATMUL_SCALE

_A, _B, _C = 0, 1, 2
_MOST_ROWS = 768
"""Rows of one unit at most: its sums take 768 KiB."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines of one table by role, outermost first."""

    batch: list[Int64Array]
    rows: list[Int64Array]
    columns: list[Int64Array]
    depth: list[Int64Array]


def plan_contract(context: PlanContext) -> Iterator[Int64Array]:
    """Tables of a packed matmul or a convolution."""
    roles = find_contract_roles(context)
    check_contract(context, roles)
    if not context.spec.kernel_op.startswith("int"):
        refuse_chunks(context)
    for whole in spaces(context, roles.reduced):
        apart = [dim for dim in context.op.windows if _moves(whole, dim, _B)]
        for space in whole.peel(apart):
            for chosen in regions(context, space):
                yield from _region_tables(context, roles, space, chosen)


def _region_tables(
    context: PlanContext, roles: ContractRoles, space: Space, chosen: dict[str, Region]
) -> list[Int64Array]:
    whole = all(per_core(context.op, d) % STICK == 0 for d in (roles.channel, roles.generated))
    if context.spec.kernel_op == "dl16" and whole:
        sticks = {roles.channel: STICK, roles.generated: STICK}
        tables = _matmul_tables(
            context, roles, space, _collect(context, roles, space, chosen, sticks)
        )
        if tables is not None:
            return tables
    return [_block(context, space, _collect(context, roles, space, chosen, {}))]


def _moves(space: Space, dim: str, operand: int) -> bool:
    """True if the cores of a split ``dim`` each have an ``operand`` of their own."""
    return dim in space.slices and bool(space.slices[dim][operand].any())


def _collect(
    context: PlanContext,
    roles: ContractRoles,
    space: Space,
    chosen: dict[str, Region],
    steps: Mapping[str, int],
) -> _Lines:
    """Lines by role; every ``steps[dim]``-th element only. Slices with own operands are batches."""

    def lines(dims: Sequence[str], absent: int | None = None) -> list[Int64Array]:
        found = []
        for dim in dims:
            if dim in chosen:
                found.append(region_line(space, dim, chosen))
                continue
            if dim in space.slices and (absent is None or not _moves(space, dim, absent)):
                found.append(space.slices[dim])
            found.append(space.local[dim][:, :: steps.get(dim, 1)])
        return sorted(found, key=lambda line: -int(np.abs(line[_C]).max(initial=0)))

    lacking = [(d, _B) for d in roles.rows] + [(d, _A) for d in roles.columns]
    private = [space.slices[d] for d, operand in lacking if _moves(space, d, operand)]
    spatial = {window.window_dim: dim for dim, window in context.op.windows.items()}
    places = [place_line(context, space, spatial[d], chosen) for d in roles.reduced[:-1]]
    return _Lines(
        private + lines(roles.batch),
        lines(roles.rows, _B),
        lines(roles.columns, _A),
        places + lines(roles.reduced[-1:]),
    )


# --- the matmul kernel ------------------------------------------------------------------------


def _matmul_tables(
    context: PlanContext, roles: ContractRoles, space: Space, lines: _Lines
) -> list[Int64Array] | None:
    """The region as tables of the matmul kernel, or None if it has no such form."""
    groups = []
    bases = space.bases.copy()
    for group in (lines.batch, lines.rows, lines.columns, lines.depth):
        axes = [line_axis(line[:3]) for line in group]
        if any(axis is None or axis.extent == 0 for axis in axes):
            return None
        bases += sum(line[:, 0] for line in group)
        groups.append([axis for axis in axes if axis is not None])
    batch, rows, columns = (normalise(group, _C) for group in groups[:3])
    depth = merge_axes(drop_unit_axes(groups[3]))
    if len(depth) > mt.AXES:
        return None
    names = Roles(roles.channel, roles.generated, roles.rows, roles.columns, roles.batch)
    start = tuple((bases[:3] // 8).tolist())
    return list(fit_rows(context, names, start, batch, rows, columns, depth))


# --- the contract kernel ----------------------------------------------------------------------


def _block(context: PlanContext, space: Space, lines: _Lines) -> Int64Array:
    width = space.bases.size
    batch, rows, columns, depth = (
        combine(context, group, width)
        for group in (lines.batch, lines.rows, lines.columns, lines.depth)
    )
    row = RowWriter(CONTRACT_KIND)
    for k, access in enumerate(context.accesses):
        code = context.any_format_code(access.tensor)
        row.operand(k, k, int(space.bases[k]), tb.WHOLE_STICK, code)
    counts = tuple(group.shape[1] for group in (batch, rows, columns, depth))
    _write_counts(context, row, counts)
    return attach(row.words, [batch[:3], rows[[_A, _C]], columns[[_B, _C]], depth[[_A, _B]]])


def _write_counts(context: PlanContext, row: RowWriter, counts: tuple[int, ...]) -> None:
    batches, rows, columns, depth = counts
    column_blocks = -(-columns // vt.COLUMN_BLOCK)
    wanted = -(-2 * context.threads // (batches * column_blocks))
    blocks = max(-(-rows // _MOST_ROWS), min(wanted, -(-rows // 64)))
    row_block = -(-rows // blocks)
    words = row.words
    words[vt.BATCHES], words[vt.ROWS], words[vt.COLUMNS], words[vt.DEPTH] = counts
    words[vt.ROW_BLOCK], words[vt.ROW_BLOCKS] = row_block, -(-rows // row_block)
    words[vt.COLUMN_BLOCKS] = column_blocks
    row.header(
        value=float_word(INTEGER_MATMUL_SCALE),
        flags=vt.EXACT_INTEGERS if context.spec.kernel_op.startswith("int") else 0,
        units=batches * column_blocks * -(-rows // row_block),
        cost_ns=int(batches * rows * columns * depth * context.spec.element_ns),
    )
