"""Stretches of a run that may share a loop over a dim, and how often such a loop may run.

A stretch is a sequence of operations that have the dim. It ends before an operation that lacks it,
which would do the same in every iteration, and before or behind one that reduces it, whose result
is there only after the loop. Sums are not taken apart: adding up tiles rounds otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spyre.torch_backend.inductor.auto_tile.dim_classes import Extent
from spyre.torch_backend.inductor.compat import ir
from spyre.torch_backend.inductor.tiling.accesses import is_loop_operation
from spyre.torch_backend.inductor.tiling.dim_hints import is_hinted

Dims = Mapping[str, Extent]
"""The dims of one operation, by class."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Operations ``begin`` to ``end`` (exclusive) of a run, and the dims all of them have.

    ``extents``: elements by class, of those that may be tiled.
    """

    begin: int
    end: int
    extents: Mapping[str, int]

    def __len__(self) -> int:
        return self.end - self.begin


def stretches(operations: Sequence[Any], dims: Mapping[str, Dims]) -> list[Stretch]:
    """All stretches of a run that are worth a trial, the longest first.

    For every class the longest ones, and their parts between matmuls and from one to the next:
    rows of matmuls in tiles read the weights once per tile. ``dims``: by name of the operation.
    """
    found: dict[tuple[int, int], Stretch] = {}
    for name in dict.fromkeys(name for row in dims.values() for name in row):
        for begin, end in _longest(operations, dims, name):
            for part in _parts(operations, begin, end):
                found.setdefault(part, _stretch(operations, dims, *part))
    return sorted((s for s in found.values() if s.extents), key=lambda s: (-len(s), s.begin))


def _longest(
    operations: Sequence[Any], dims: Mapping[str, Dims], name: str
) -> Iterator[tuple[int, int]]:
    begin = 0
    for place, op in enumerate(operations):
        found = dims.get(op.get_name(), {}).get(name)
        if found is None or not may_be_tiled(op):
            yield from _unless_empty(begin, place)
            begin = place + 1
        elif found.is_reduced:
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


def _stretch(operations: Sequence[Any], dims: Mapping[str, Dims], begin: int, end: int) -> Stretch:
    members = [dims[op.get_name()] for op in operations[begin:end]]
    common = [name for name in members[0] if all(name in row for row in members)]
    kept = [name for name in common if _keeps(operations[begin:end], members, name)]
    extents = {name: members[0][name].elements for name in kept}
    return Stretch(begin, end, {name: n for name, n in extents.items() if n > 1})


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
