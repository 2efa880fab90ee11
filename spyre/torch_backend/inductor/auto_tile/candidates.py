"""Ranges of operations that may share a loop over a dim, and how often such a loop may run.

A range is a sequence of operations that have the dim. It ends before an operation that lacks it,
which would do the same in every iteration, and before or behind one that reduces it, whose result
is there only after the loop. Sums are not taken apart: adding up tiles rounds otherwise.

Dims that are one and the same in several operations are found from what bodies read: where
`propagate_named_dims` carries names users gave, `dim_classes` gives every dim a name. Operations
that stand in the way of a loop, and do not need what is before them, go first (`hoisted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sympy

from spyre.torch_backend.inductor.base import ir
from spyre.torch_backend.inductor.kernel import target_of
from spyre.torch_backend.inductor.tiling import (
    accesses_of,
    dims_by_variable,
    is_hinted,
    is_loop_operation,
    layout_of,
    names_read,
)


@dataclass(frozen=True, slots=True)
class DimExtent:
    """A dim of an operation: elements, and whether the operation reduces it."""

    elements: int
    is_reduced: bool


_DimNode = tuple[str, str, int]
ITERATION, BUFFER = "iteration", "buffer"


class _Classes:
    """Disjoint sets of nodes."""

    def __init__(self) -> None:
        self._parents: dict[_DimNode, _DimNode] = {}

    def find(self, node: _DimNode) -> _DimNode:
        """The node that stands for the class of ``node``."""
        parent = self._parents.setdefault(node, node)
        while parent != node:
            node, parent = parent, self._parents[parent]
        return node

    def join(self, one: _DimNode, other: _DimNode) -> None:
        """Both are the same dim."""
        self._parents[self.find(one)] = self.find(other)


def dim_classes(operations: Sequence[Any]) -> dict[str, tuple[str, ...]]:
    """Per Pointwise and Reduction, by name: a class per range, then one per reduction range.

    A class has the name a user gave one of its dims, where there is one, else ``dim0``, ``dim1``, …
    in the order of the operations. Dims that are cut, merged or split begin new classes. Two dims
    of one operation may be of the same class, as those of ``x @ x.T``.
    """
    loops = [op for op in operations if is_loop_operation(op)]
    classes = _Classes()
    for op in loops:
        _join_dims(op, classes)
    names: dict[_DimNode, str] = {}
    for op in loops:
        for place, given in enumerate(getattr(op, "named_dims", ())):
            if given is not None:
                names.setdefault(classes.find((ITERATION, op.get_name(), place)), given)
    return {op.get_name(): _named(op, classes, names) for op in loops}


def _join_dims(operation: Any, classes: _Classes) -> None:
    name, accesses = operation.get_name(), accesses_of(operation)
    for place in range(len(operation.data.get_pointwise_size())):
        classes.join((ITERATION, name, place), (BUFFER, name, place))
    for read in accesses.reads:
        layout = layout_of(read.buffer)
        if layout is None:
            continue
        for place, dim in dims_by_variable(read, accesses, layout).items():
            classes.join((ITERATION, name, place), (BUFFER, read.buffer, dim))


def _named(operation: Any, classes: _Classes, names: dict[_DimNode, str]) -> tuple[str, ...]:
    rank = len(accesses_of(operation).variables)
    roots = [classes.find((ITERATION, operation.get_name(), place)) for place in range(rank)]
    return tuple(names.setdefault(root, f"dim{len(names)}") for root in roots)


def dims_of(operation: Any, classes: Mapping[str, Sequence[str]]) -> dict[str, DimExtent]:
    """The dims of an operation by class, where sizes are numbers; of a class it has twice none."""
    data = operation.data
    places = [(n, False) for n in data.get_pointwise_size()]
    places += [(n, True) for n in data.get_reduction_size()]
    names = classes[operation.get_name()]
    return {
        name: DimExtent(int(n), is_reduced)
        for name, (n, is_reduced) in zip(names, places, strict=True)
        if names.count(name) == 1 and sympy.sympify(n).is_number
    }


Dims = Mapping[str, DimExtent]
"""The dims of one operation, by class."""


@dataclass(frozen=True, slots=True)
class CandidateRange:
    """Operations ``begin`` to ``end`` (exclusive) of a run, and the dims all of them have.

    ``extents``: elements by class, of those that may be tiled.
    """

    begin: int
    end: int
    extents: Mapping[str, int]

    def __len__(self) -> int:
        return self.end - self.begin


def candidate_ranges(operations: Sequence[Any], dims: Mapping[str, Dims]) -> list[CandidateRange]:
    """All stretches of a run that are worth a trial, the longest first.

    For every class the longest ones, and their parts between matmuls and from one to the next:
    rows of matmuls in tiles read the weights once per tile. ``dims``: by name of the operation.
    """
    ranges: dict[tuple[int, int], CandidateRange] = {}
    for name in dict.fromkeys(name for row in dims.values() for name in row):
        for begin, end in _longest(operations, dims, name):
            for part in _parts(operations, begin, end):
                ranges.setdefault(part, _candidate_range(operations, dims, *part))
    return sorted((s for s in ranges.values() if s.extents), key=lambda s: (-len(s), s.begin))


def _longest(
    operations: Sequence[Any], dims: Mapping[str, Dims], name: str
) -> Iterator[tuple[int, int]]:
    begin = 0
    for place, op in enumerate(operations):
        dim = dims.get(op.get_name(), {}).get(name)
        if dim is None or not may_be_tiled(op):
            yield from _unless_empty(begin, place)
            begin = place + 1
        elif dim.is_reduced:
            yield from _unless_empty(begin, place)
            if reduces_exactly(op):
                yield begin, place + 1
            begin = place + 1
    yield from _unless_empty(begin, len(operations))


def _unless_empty(begin: int, end: int) -> Iterator[tuple[int, int]]:
    if begin < end:
        yield begin, end


def _parts(operations: Sequence[Any], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The stretch, and those that matmuls divide it into, with and without the first matmul."""
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
    kept = [name for name in common if _keeps(operations[begin:end], members, name)]
    extents = {name: members[0][name].elements for name in kept}
    return CandidateRange(begin, end, {name: n for name, n in extents.items() if n > 1})


def _keeps(operations: Sequence[Any], members: Sequence[Dims], name: str) -> bool:
    """Whether none of the operations reduces a dim, or only the last one, exactly."""
    reducing = [op for op, row in zip(operations, members, strict=True) if row[name].is_reduced]
    return not reducing or (reducing == [operations[-1]] and reduces_exactly(operations[-1]))


def may_be_tiled(operation: Any) -> bool:
    """Whether `coarse_tile` could take it, and no hint has said how."""
    return is_loop_operation(operation) and not is_hinted(operation)


def reduces_exactly(operation: Any) -> bool:
    """Whether results of tiles give the same bits as the whole: those of the largest element do."""
    return getattr(operation.data, "reduction_type", None) in ("max", "min")


def is_matmul(operation: Any) -> bool:
    """True for batched matmuls too."""
    data = operation.data
    return isinstance(data, ir.Reduction) and data.reduction_type == "batchmatmul"


def counts_of(extent: int) -> list[int]:
    """Numbers of tiles a dim can be cut into: divisors from 2 on, ascending."""
    return [n for n in range(2, extent + 1) if extent % n == 0]


def hoisted(operations: Sequence[Any], dims: Mapping[str, Mapping[str, DimExtent]]) -> list[Any]:
    """The operations of a run in another order their dependencies allow.

    One that lacks a dim its neighbours have goes directly behind what it reads, or to the front.
    Operations that change a buffer in place, and readers of such buffers, stay where they are.
    """
    mutated = {target_of(op) for op in operations if target_of(op) != op.get_name()}
    order = list(operations)
    for op in operations:
        place = order.index(op)
        if not 0 < place < len(order) - 1 or op.get_name() in mutated or names_read(op) & mutated:
            continue
        if target_of(op) != op.get_name() or not _is_in_the_way(order, place, dims):
            continue
        order.pop(place)
        order.insert(_earliest(order[:place], names_read(op)), op)
    return order


def _is_in_the_way(
    operations: Sequence[Any], place: int, dims: Mapping[str, Mapping[str, DimExtent]]
) -> bool:
    before, own, after = (set(dims[op.get_name()]) for op in operations[place - 1 : place + 2])
    return bool((before & after) - own)


def _earliest(before: Sequence[Any], needed: set[str]) -> int:
    """The place behind the last operation that makes one of ``needed``."""
    return max((k + 1 for k, op in enumerate(before) if op.get_name() in needed), default=0)
