"""Ranges of operations that may share a loop over a dim, and the possible counts of such loops.

A range is a sequence of operations that all have the dim. It ends before an operation that lacks
the dim, which would do the same in every iteration, and before or behind one that reduces it, whose
result is complete only after the loop. Sums are not split, because adding up tiles rounds
differently.

Equal dims of several operations are found from the indices that their bodies read:
`propagate_named_dims` carries names that users gave, `dim_classes` names every dim. Operations that
interrupt a range, and do not depend on it, are moved before it (`hoisted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sympy

from spyre.disjoint_sets import DisjointSets
from spyre.torch_backend.inductor.base.compat import ir
from spyre.torch_backend.inductor.kernel.builder import target_of
from spyre.torch_backend.inductor.tiling.accesses import (
    accesses_of,
    dims_by_variable,
    is_loop_operation,
    layout_of,
    names_read,
)
from spyre.torch_backend.inductor.tiling.groups import is_hinted


@dataclass(frozen=True, slots=True)
class DimExtent:
    """A dim of an operation: its elements, and whether the operation reduces it."""

    elements: int
    is_reduced: bool


_DimNode = tuple[str, str, int]
ITERATION, BUFFER = "iteration", "buffer"


def dim_classes(operations: Sequence[Any]) -> dict[str, tuple[str, ...]]:
    """Return, by name of each Pointwise and Reduction, the class of each range and then of each
    reduction range.

    A class has the name a user gave to one of its dims, else ``dim0``, ``dim1``, … in the order of
    the operations. Dims that are cut, merged or split start new classes. Two dims of one operation
    may be in one class, as those of ``x @ x.T``.
    """
    loops = [op for op in operations if is_loop_operation(op)]
    classes: DisjointSets[_DimNode] = DisjointSets()
    for op in loops:
        _join_dims(op, classes)
    names: dict[_DimNode, str] = {}
    for op in loops:
        for position, name in enumerate(getattr(op, "named_dims", ())):
            if name is not None:
                names.setdefault(classes.find((ITERATION, op.get_name(), position)), name)
    return {op.get_name(): _named(op, classes, names) for op in loops}


def _join_dims(operation: Any, classes: DisjointSets[_DimNode]) -> None:
    name, accesses = operation.get_name(), accesses_of(operation)
    for position in range(len(operation.data.get_pointwise_size())):
        classes.join((ITERATION, name, position), (BUFFER, name, position))
    for read in accesses.reads:
        layout = layout_of(read.buffer)
        if layout is None:
            continue
        for position, dim in dims_by_variable(read, accesses, layout).items():
            classes.join((ITERATION, name, position), (BUFFER, read.buffer, dim))


def _named(
    operation: Any, classes: DisjointSets[_DimNode], names: dict[_DimNode, str]
) -> tuple[str, ...]:
    rank = len(accesses_of(operation).variables)
    roots = [classes.find((ITERATION, operation.get_name(), k)) for k in range(rank)]
    return tuple(names.setdefault(root, f"dim{len(names)}") for root in roots)


def dims_of(operation: Any, classes: Mapping[str, Sequence[str]]) -> dict[str, DimExtent]:
    """Return the dims of an operation by class, without dims of symbolic size and classes that it
    has twice.
    """
    data = operation.data
    sizes = [(n, False) for n in data.get_pointwise_size()]
    sizes += [(n, True) for n in data.get_reduction_size()]
    names = classes[operation.get_name()]
    return {
        name: DimExtent(int(n), is_reduced)
        for name, (n, is_reduced) in zip(names, sizes, strict=True)
        if names.count(name) == 1 and sympy.sympify(n).is_number
    }


Dims = Mapping[str, DimExtent]
"""The dims of one operation, by class."""


@dataclass(frozen=True, slots=True)
class CandidateRange:
    """Operations ``begin`` to ``end`` (exclusive) of a run.

    ``extents``: elements of the dims that all of them have and that may be tiled, by class.
    """

    begin: int
    end: int
    extents: Mapping[str, int]

    def __len__(self) -> int:
        return self.end - self.begin


def candidate_ranges(operations: Sequence[Any], dims: Mapping[str, Dims]) -> list[CandidateRange]:
    """Return all ranges of a run that are worth a trial, the longest first.

    For each class these are the longest ranges, and their parts between matmuls and from one matmul
    to the next: a matmul in tiles of rows reads its weights once per tile. ``dims``: by name of the
    operation.
    """
    ranges: dict[tuple[int, int], CandidateRange] = {}
    for name in dict.fromkeys(name for row in dims.values() for name in row):
        for begin, end in _longest(operations, dims, name):
            for part in _parts(operations, begin, end):
                ranges.setdefault(part, _candidate_range(operations, dims, *part))
    return sorted((r for r in ranges.values() if r.extents), key=lambda r: (-len(r), r.begin))


def _longest(
    operations: Sequence[Any], dims: Mapping[str, Dims], name: str
) -> Iterator[tuple[int, int]]:
    begin = 0
    for position, op in enumerate(operations):
        dim = dims.get(op.get_name(), {}).get(name)
        if dim is None or not may_be_tiled(op):
            yield from _unless_empty(begin, position)
            begin = position + 1
        elif dim.is_reduced:
            yield from _unless_empty(begin, position)
            if reduces_exactly(op):
                yield begin, position + 1
            begin = position + 1
    yield from _unless_empty(begin, len(operations))


def _unless_empty(begin: int, end: int) -> Iterator[tuple[int, int]]:
    if begin < end:
        yield begin, end


def _parts(operations: Sequence[Any], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the range and its parts between matmuls, with and without their first matmul."""
    yield begin, end
    matmuls = [k for k in range(begin, end) if is_matmul(operations[k])]
    borders = [begin, *matmuls, end]
    for first, last in pairwise(borders):
        yield from _unless_empty(first, last)
        if first in matmuls:
            yield from _unless_empty(first + 1, last)


def _candidate_range(
    operations: Sequence[Any], dims: Mapping[str, Dims], begin: int, end: int
) -> CandidateRange:
    members = [dims[op.get_name()] for op in operations[begin:end]]
    common = [name for name in members[0] if all(name in row for row in members)]
    tileable = [name for name in common if _is_tileable(operations[begin:end], members, name)]
    extents = {name: members[0][name].elements for name in tileable}
    return CandidateRange(begin, end, {name: n for name, n in extents.items() if n > 1})


def _is_tileable(operations: Sequence[Any], members: Sequence[Dims], name: str) -> bool:
    """Return True if no operation reduces the dim, or only the last one does, exactly."""
    reducing = [op for op, row in zip(operations, members, strict=True) if row[name].is_reduced]
    return not reducing or (reducing == [operations[-1]] and reduces_exactly(operations[-1]))


def may_be_tiled(operation: Any) -> bool:
    """Return True if `coarse_tile` accepts the operation and no hint tiles it."""
    return is_loop_operation(operation) and not is_hinted(operation)


def reduces_exactly(operation: Any) -> bool:
    """Return True if combining results of tiles gives the same bits: true of max and min."""
    return getattr(operation.data, "reduction_type", None) in ("max", "min")


def is_matmul(operation: Any) -> bool:
    """Return True for a matmul, batched or not."""
    data = operation.data
    return isinstance(data, ir.Reduction) and data.reduction_type == "batchmatmul"


def counts_of(extent: int) -> list[int]:
    """Return the possible numbers of tiles: the divisors from 2 on, ascending."""
    return [n for n in range(2, extent + 1) if extent % n == 0]


def hoisted(operations: Sequence[Any], dims: Mapping[str, Mapping[str, DimExtent]]) -> list[Any]:
    """Return the operations of a run, reordered within their dependencies.

    An operation that lacks a dim of both neighbours is moved directly behind the last operation
    that it reads, or to the front. Operations that mutate a buffer, and readers of such buffers,
    are not moved.
    """
    mutated = {target_of(op) for op in operations if target_of(op) != op.get_name()}
    order = list(operations)
    for op in operations:
        k, reads = order.index(op), names_read(op)
        if not 0 < k < len(order) - 1 or op.get_name() in mutated or reads & mutated:
            continue
        if target_of(op) != op.get_name() or not _interrupts(order, k, dims):
            continue
        order.pop(k)
        behind = (n + 1 for n, other in enumerate(order[:k]) if other.get_name() in reads)
        order.insert(max(behind, default=0), op)
    return order


def _interrupts(
    operations: Sequence[Any], k: int, dims: Mapping[str, Mapping[str, DimExtent]]
) -> bool:
    """Return True if operation ``k`` lacks a dim that both its neighbours have."""
    before, op, after = (set(dims[op.get_name()]) for op in operations[k - 1 : k + 2])
    return bool((before & after) - op)
