"""Finds tiles in the reference values of a function: inputs, results of operations, outputs.

A tile is a block of a value. Its dims are some of the value's dims in any order; each is whole or
one of several equal parts, and the remaining dims are fixed at one index. The *grid* counts parts
and fixed indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations, product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.runtime.compare import Tolerance

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
Coords = tuple[int, ...]

TOLERANCE = 2.0**-6
"""Relative to the value and to the root mean square of all: several successive DL16 roundings."""
LANES = 64
"""Stick dims are padded to a multiple of this (or less); the padding may hold any number."""
_SAMPLES = 24
"""Elements compared first, which rules out most positions."""


def is_constant(values: Array) -> bool:
    """True if all numbers are equal. Such a tile matches too many others to be located."""
    return bool(values.size) and bool((values == values.flat[0]).all())


@dataclass(frozen=True, eq=False)
class ReferenceValue:
    """Numbers that the function computes; ``name``: of the input, operation or output."""

    name: str
    values: Array

    @cached_property
    def squeezed(self) -> Array:
        """The numbers as float32, without dims of size 1."""
        return self.values.squeeze().astype(np.float32)

    @cached_property
    def atol(self) -> float:
        """Absolute part of the tolerance."""
        finite = self.squeezed[np.isfinite(self.squeezed)]
        size = float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
        return TOLERANCE * size + 1e-6

    @property
    def tolerance(self) -> Tolerance:
        """Tolerance for several successive roundings."""
        return Tolerance(TOLERANCE, self.atol, merged_nan=True)

    def differs(self, found: Array, expected: Array) -> BoolArray:
        """True for elements of ``found`` that are not within the tolerance of ``expected``."""
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(found - expected) <= self.atol + TOLERANCE * np.abs(expected)
        # DL16 has no NaN, and stores numbers beyond its range as infinity.
        finite = np.isfinite(expected)
        differs: BoolArray = np.where(finite, ~near, np.isfinite(found))
        return differs


def match_outputs(found: Sequence[Array], expected: Sequence[Array]) -> dict[int, Array]:
    """The expected array of each output of a run, by number of the output.

    A kernel lists its outputs in the order in which it writes them, which may differ from the order
    of the function's results, and may have further ones for a backward pass. Each expected array is
    assigned to the output of its shape that agrees with it best; arrays of other shapes are
    assigned to the remaining outputs in order.
    """
    costs = sorted(
        (int(ReferenceValue("", e).differs(f.astype(np.float64), e).sum()), k, number)
        for number, e in enumerate(expected)
        for k, f in enumerate(found)
        if f.shape == e.shape
    )
    matches: dict[int, int] = {}
    for _, k, number in costs:
        if k not in matches and number not in matches.values():
            matches[k] = number
    rest = [number for number in range(len(expected)) if number not in matches.values()]
    free = [k for k in range(len(found)) if k not in matches]
    matches |= dict(zip(free, rest, strict=False))
    return {k: expected[matches[k]] for k in sorted(matches)}


@dataclass(frozen=True, eq=False)
class TileLayout:
    """One way to cut a value into tiles of a shape: ``tiles[grid coordinates]`` is one tile.

    ``order``: dims of the value that the tile's dims are; ``grid``: its extents; ``tile_shape``:
    elements of a tile without padding.
    """

    value: ReferenceValue
    order: tuple[int, ...]
    grid: tuple[int, ...]
    tiles: Array
    tile_shape: tuple[int, ...]

    def wrong(self, tile: Array, coords: Coords) -> BoolArray:
        """Elements of ``tile``, without padding, that differ from the tile at ``coords``."""
        return self.value.differs(self._cut(tile), self.tiles[coords])

    def positions(self, tile: Array) -> Iterator[Coords]:
        """Grid coordinates of all tiles that ``tile`` agrees with."""
        cut = self._cut(tile).ravel()
        chosen = np.linspace(0, cut.size - 1, min(_SAMPLES, cut.size)).astype(np.int64)
        inside = np.unravel_index(chosen, self.tile_shape)
        samples: tuple[Any, ...] = (..., *inside)
        likely = ~self.value.differs(cut[chosen], self.tiles[samples]).any(axis=-1)
        for indices in np.argwhere(likely):
            coords = tuple(int(i) for i in indices)
            if not self.wrong(tile, coords).any():
                yield coords

    def _cut(self, tile: Array) -> Array:
        return tile[tuple(slice(n) for n in self.tile_shape)]


def tile_layouts(value: ReferenceValue, shape: Sequence[int]) -> Iterator[TileLayout]:
    """All ways to cut ``value`` into tiles of ``shape``, which has no dim of size 1."""
    whole = value.squeezed
    for order in permutations(range(whole.ndim), len(shape)):
        pairs = [(whole.shape[k], n) for k, n in zip(order, shape, strict=True)]
        if not all(_fits(have, need) for have, need in pairs):
            continue
        rest = [k for k in range(whole.ndim) if k not in order]
        moved = whole.transpose(*rest, *order)
        tile_shape = tuple(min(pair) for pair in pairs)
        counts = [have // min(have, need) for have, need in pairs]
        split: list[int] = []
        for count, n in zip(counts, tile_shape, strict=True):
            split += [count, n]
        outer = [whole.shape[k] for k in rest]
        parts = moved.reshape(*outer, *split)
        first = len(outer)
        grid_axes = [*range(first), *range(first, parts.ndim, 2)]
        tiles = parts.transpose(*grid_axes, *range(first + 1, parts.ndim, 2))
        yield TileLayout(value, order, (*outer, *counts), tiles, tile_shape)


def _fits(have: int, need: int) -> bool:
    return have % need == 0 if have >= need else need == -(-have // LANES) * LANES


# --- tiles of a loop --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TilePath:
    """The tiles that a loop nest visits: per dim of the grid a fixed coordinate, or the loops
    (indices into the nest) that count it.
    """

    layout: TileLayout
    steps: tuple[int | tuple[int, ...], ...]

    def coords(self, nest: Sequence[int], row: int) -> Coords:
        """Grid coordinates in execution number ``row`` of a nest with these trip counts."""
        at = np.unravel_index(row, nest) if nest else ()
        return tuple(
            step if isinstance(step, int) else _count(step, at, nest) for step in self.steps
        )

    @property
    def moving(self) -> int:
        """Number of grid dims that loops count."""
        return sum(not isinstance(step, int) for step in self.steps)


def _count(loops: tuple[int, ...], at: Sequence[Any], nest: Sequence[int]) -> int:
    total = 0
    for loop in loops:
        total = total * nest[loop] + int(at[loop])
    return total


def find_paths(
    starts: Sequence[tuple[TileLayout, Coords]], nest: Sequence[int]
) -> tuple[TilePath, ...]:
    """Paths that begin at the given tiles.

    A grid dim with as many coordinates as loops have trips is counted by them, if possible.
    """
    levels = [k for k, trips in enumerate(nest) if trips > 1]
    groups = [g for n in range(1, len(levels) + 1) for g in combinations(levels, n)]
    by_layout: dict[tuple[int, tuple[int, ...]], list[TilePath]] = {}
    for layout, coords in starts:
        choices: list[list[int | tuple[int, ...]]] = []
        for size, index in zip(layout.grid, coords, strict=True):
            moving = [g for g in groups if size > 1 and prod(nest[k] for k in g) == size]
            choices.append([index, *(moving if index == 0 else [])])
        for steps in product(*choices):
            used = [loop for step in steps if not isinstance(step, int) for loop in step]
            if len(used) == len(set(used)):
                key = id(layout.value), layout.order
                by_layout.setdefault(key, []).append(TilePath(layout, steps))
    return tuple(
        path
        for paths in by_layout.values()
        for path in paths
        if path.moving == max(each.moving for each in paths)
    )
