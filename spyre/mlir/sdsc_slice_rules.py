"""Checks on work slices: how the iteration space is divided over cores.

Part of the rule table of :mod:`.sdsc_rules`. Rules: SuperDSC reference §2, §3, §6.1 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from spyre.errors import Severity
from spyre.mlir.operation import Operation
from spyre.mlir.sdsc_structs import given, int_or_none
from spyre.mlir.sdsc_subject import Rule, Subject, Violation, show_table
from spyre.mlir.sdsc_support import dim_entries


def _slice_range(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    for core, row in zip(op.cores, op.core_slices, strict=True):
        for dim, index in row.items():
            if not 0 <= index < op.slices[dim]:
                path = f"{subject.path}.coreIdToWkSlice_.{core}.{dim}"
                message = f"core {core} has a work slice out of range"
                yield Violation(path, message, f"0 to {op.slices[dim] - 1}", str(index))


def _slice_product(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    count = prod(op.slices.values())
    if min(op.slices.values()) < 1 or count > len(op.cores):
        expected = f"positive, product {len(op.cores)}"
        path = f"{subject.path}.numWkSlicesPerDim_"
        message = "work slices do not match the number of cores"
        yield Violation(path, message, expected, show_table(op.slices))


def _slice_grid(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    count = prod(op.slices.values())
    seen = {tuple(row.values()) for row in op.core_slices}
    if len(seen) != count:
        path = f"{subject.path}.coreIdToWkSlice_"
        message = "some work slices belong to no core"
        expected, found = f"{count} different work slices", f"{len(seen)} on {len(op.cores)} cores"
        yield Violation(path, message, expected, found)


def _replication(subject: Subject) -> Iterator[Violation]:
    """§2: fewer slices than cores means some cores do the same work; nobody says what for."""
    op = subject.op
    count = prod(op.slices.values())
    if count < len(op.cores):
        path = f"{subject.path}.numWkSlicesPerDim_"
        message = "several cores have the same work slice"
        yield Violation(path, message, f"product {len(op.cores)}", show_table(op.slices))


def _divisible(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    for dim, extent in op.extents.items():
        if op.slices[dim] > 0 and dim not in op.last_extents and extent % op.slices[dim]:
            message = f"extent of {dim} is not divisible by its work slices"
            expected = f"a multiple of {op.slices[dim]}"
            yield Violation(f"{subject.dsc_path}.N_.{dim}_", message, expected, str(extent))


def _core_extents(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    for key, stage in given(subject.dsc.stages, {}).items():
        for dim, extent in dim_entries(stage.steady).items():
            wanted = op.core_extent(dim) if dim in op.extents else -1
            if int_or_none(extent) not in (wanted, -1 if dim in op.symbolic_dims else wanted):
                path = f"{subject.dsc_path}.dataStageParam_.{key}.ss_.{dim}_"
                message = f"per-core extent of {dim} differs from N_ / slices"
                yield Violation(path, message, str(wanted), str(extent))


def _split_reductions(subject: Subject) -> Iterator[Violation]:
    op = subject.op
    split = [d for d in op.dims if op.slices[d] > 1 and _is_reduced(op, d)]
    if len(split) > 1:
        path = f"{subject.path}.numWkSlicesPerDim_"
        message = "several reduction dims are split"
        yield Violation(path, message, "at most one", ", ".join(split))


def _is_reduced(op: Operation, dim: str) -> bool:
    outputs, inputs = op.outputs, op.inputs
    return any(t.holds(dim) for t in inputs) and not any(t.holds(dim) for t in outputs)


GRID_RULES: tuple[Rule, ...] = (
    Rule("SPY210", Severity.ERROR, _slice_range),
    Rule("SPY211", Severity.ERROR, _slice_product),
    Rule("SPY214", Severity.ERROR, _divisible),
)
"""Rules the others build on: after them every slice count is positive and divides its dim."""

SLICE_RULES: tuple[Rule, ...] = (
    Rule("SPY212", Severity.ERROR, _slice_grid),
    Rule("SPY215", Severity.ERROR, _core_extents),
    Rule("SPY247", Severity.WARNING, _split_reductions),
    Rule("SPY253", Severity.WARNING, _replication),
)
"""The other rules on work slices."""
