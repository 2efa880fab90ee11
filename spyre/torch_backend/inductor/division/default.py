"""Pass 3: the cores that are left go to the largest dims (hardware reference §4.1, step 5)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import sympy

from spyre.torch_backend.inductor.division.divisors import core_split
from spyre.torch_backend.inductor.division.iteration import Iteration, IterationDim


def distribute(
    iteration: Iteration, cores: int, committed: Mapping[sympy.Symbol, int]
) -> dict[sympy.Symbol, int]:
    """Splits of all dims, ``committed`` ones as they are.

    Dims of the result are divided first, the largest (in units) before smaller ones, each as far
    as the cores left allow; what remains goes to the one reduced dim that can use most of it,
    unless a reduced dim is committed.
    """
    found = dict.fromkeys(iteration.symbols, 1) | dict(committed)
    left = cores // prod(found.values())
    free = [d for d in iteration.dims if found[d.symbol] == 1 and not d.kept_whole]
    by_size = sorted(free, key=lambda dim: -dim.units)
    for dim in by_size:
        if dim.is_output:
            found[dim.symbol] = core_split(dim.units, left)
            left //= found[dim.symbol]
    reduced = [dim for dim in by_size if not dim.is_output]
    if left > 1 and reduced and all(found[symbol] == 1 for symbol in iteration.reduced):
        best = _most_divisible(reduced, left)
        found[best.symbol] = core_split(best.units, left)
    return found


def _most_divisible(dims: list[IterationDim], cores: int) -> IterationDim:
    return max(dims, key=lambda dim: core_split(dim.units, cores))
