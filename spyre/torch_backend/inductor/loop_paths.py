"""The loops around an operation, and specs put into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any

import sympy

from spyre.torch_backend.inductor.op_spec import LoopSpec, Spec
from spyre.torch_backend.inductor.tiling.accesses import extents_of


@dataclass(frozen=True, slots=True)
class LoopPath:
    """Per enclosing loop, the outermost first: its number, how often it runs (a number or an
    expression of sizes), and the dim of the operation that it moves along, None where the
    operation does not follow it.

    ``singles``: instead of a dim, the place in the iteration space whose tiles have one element: an
    operation's views have no dim there.
    """

    numbers: tuple[int, ...] = ()
    counts: tuple[Any, ...] = ()
    dims: tuple[int | None, ...] = ()
    singles: tuple[int | None, ...] = ()

    def seen_as(self, dims: Mapping[int, int | None]) -> LoopPath:
        """The same loops around an operation whose dims have other numbers; None: that it lacks."""
        found = (None if d is None else dims.get(d, d) for d in self.dims)
        return replace(self, dims=tuple(found))

    def single_tiles(self, place: int) -> int:
        """How many tiles there are of one element at a place of the iteration space; 1: none."""
        return prod(n for p, n in zip(self.singles, self.counts, strict=True) if p == place)

    def single_steps(self, place: int) -> list[tuple[int, int]]:
        """(loop, tiles that an iteration of it moves on by) of tiles of one element."""
        found, step = [], 1
        for loop in reversed(range(len(self.singles))):
            if self.singles[loop] == place:
                found.append((loop, step))
                step *= self.counts[loop]
        return found

    def __bool__(self) -> bool:
        return bool(self.numbers)


NO_LOOPS = LoopPath()


def loop_path(operation: Any) -> LoopPath:
    """The loops that coarse tiling has put an ir.Operation in."""
    numbers = tuple(getattr(operation, "loop_group_id", ()))
    if not numbers:
        return NO_LOOPS
    places = [entry[0] if entry else None for entry in operation.loop_tiled_dims]
    extents = extents_of(operation)
    single = [place is not None and extents[place] == 1 for place in places]
    dims = tuple(None if one else p for p, one in zip(places, single, strict=True))
    singles = tuple(p if one else None for p, one in zip(places, single, strict=True))
    return LoopPath(numbers, tuple(operation.loop_count), dims, singles)


def looped(specs: Sequence[Spec], paths: Sequence[LoopPath]) -> list[Spec]:
    """``specs``, one per path, inside their loops; what follows each other shares a loop."""
    return _nested(list(zip(specs, paths, strict=True)), 0)


def _nested(pairs: Sequence[tuple[Spec, LoopPath]], depth: int) -> list[Spec]:
    found: list[Spec] = []
    for key, run in groupby(pairs, lambda pair: pair[1].numbers[depth : depth + 1]):
        members = list(run)
        if not key:
            found += [spec for spec, _ in members]
            continue
        count = sympy.sympify(members[0][1].counts[depth])
        found.append(LoopSpec(count, _nested(members, depth + 1)))
    return found
