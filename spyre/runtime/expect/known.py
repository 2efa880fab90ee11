"""Where a tile lies in the values of a function: among its inputs, results of operations, outputs.

A tile is a block of a value: its dims are some of the value's, in any order, each whole or one of
equal parts; along the other dims it has one place. The *grid* counts those parts and places.
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
"""Of the value and of the root mean square of all: several roundings to DL16 after another."""
LANES = 64
"""Stick dims are padded to a multiple of this (or less), with anything."""
_SAMPLES = 24
"""Elements compared first: most places differ in them."""


def is_constant(values: Array) -> bool:
    """True if all numbers are one: such a tile is like any other."""
    return bool(values.size) and bool((values == values.flat[0]).all())


@dataclass(frozen=True, eq=False)
class KnownValue:
    """A value of the function, as numbers; ``name``: of the input, operation or output."""

    name: str
    values: Array

    @cached_property
    def squeezed(self) -> Array:
        """Without dims of one element."""
        return self.values.squeeze().astype(np.float32)

    @cached_property
    def atol(self) -> float:
        """Absolute part of the tolerance."""
        finite = self.squeezed[np.isfinite(self.squeezed)]
        size = float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
        return TOLERANCE * size + 1e-6

    @property
    def tolerance(self) -> Tolerance:
        """What several roundings may change."""
        return Tolerance(TOLERANCE, self.atol, merged_nan=True)

    def differs(self, found: Array, expected: Array) -> BoolArray:
        """Where numbers differ from those expected of this value by more than its tolerance."""
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(found - expected) <= self.atol + TOLERANCE * np.abs(expected)
        # DL16 has no NaN, and its infinity stands for what is too large.
        finite = np.isfinite(expected)
        differs: BoolArray = np.where(finite, ~near, np.isfinite(found))
        return differs


def placed_outputs(found: Sequence[Array], expected: Sequence[Array]) -> dict[int, Array]:
    """What is expected of the outputs of a run, by their number: of those of a function, each at
    the output of its shape with which it agrees best.

    A kernel has its outputs in the order in which it writes them, which may be another one than
    that of the function, and may have more: what a backward pass needs. Values of a shape that no
    output has stand at those that are left, in order.
    """
    costs = sorted(
        (int(KnownValue("", e).differs(f.astype(np.float64), e).sum()), k, number)
        for number, e in enumerate(expected)
        for k, f in enumerate(found)
        if f.shape == e.shape
    )
    places: dict[int, int] = {}
    for _, k, number in costs:
        if k not in places and number not in places.values():
            places[k] = number
    rest = [number for number in range(len(expected)) if number not in places.values()]
    free = [k for k in range(len(found)) if k not in places]
    places |= dict(zip(free, rest, strict=False))
    return {k: expected[places[k]] for k in sorted(places)}


@dataclass(frozen=True, eq=False)
class Arrangement:
    """One way in which tiles of a shape lie in a value: ``tiles[grid coordinates]`` is one of them.

    ``tile_shape``: elements of a tile that the value has, without padding.
    """

    value: KnownValue
    order: tuple[int, ...]
    grid: tuple[int, ...]
    tiles: Array
    tile_shape: tuple[int, ...]

    def wrong(self, tile: Array, coords: Coords) -> BoolArray:
        """Elements of a tile (padding cut off) that are not those at ``coords``."""
        return self.value.differs(self._cut(tile), self.tiles[coords])

    def places(self, tile: Array) -> Iterator[Coords]:
        """Where in the grid the tile lies."""
        cut = self._cut(tile).ravel()
        chosen = np.linspace(0, cut.size - 1, min(_SAMPLES, cut.size)).astype(np.int64)
        inside = np.unravel_index(chosen, self.tile_shape)
        place: tuple[Any, ...] = (..., *inside)
        sampled = self.tiles[place]
        likely = ~self.value.differs(cut[chosen], sampled).any(axis=-1)
        for coords in np.argwhere(likely):
            place = tuple(int(i) for i in coords)
            if not self.wrong(tile, place).any():
                yield place

    def _cut(self, tile: Array) -> Array:
        return tile[tuple(slice(n) for n in self.tile_shape)]


def arrangements(value: KnownValue, shape: Sequence[int]) -> Iterator[Arrangement]:
    """All ways in which tiles of ``shape`` (no dim of 1) may lie in ``value``."""
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
        yield Arrangement(value, order, (*outer, *counts), tiles, tile_shape)


def _fits(have: int, need: int) -> bool:
    return have % need == 0 if have >= need else need == -(-have // LANES) * LANES


# --- tiles that loops walk --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Course:
    """How a loop nest takes a tile through an arrangement: per dim of the grid a place that stays,
    or the loops (indices into the nest) that count it.
    """

    arrangement: Arrangement
    steps: tuple[int | tuple[int, ...], ...]

    def coords(self, nest: Sequence[int], row: int) -> Coords:
        """Where the tile of execution ``row`` lies."""
        at = np.unravel_index(row, nest) if nest else ()
        return tuple(
            step if isinstance(step, int) else _count(step, at, nest) for step in self.steps
        )

    @property
    def moving(self) -> int:
        """Dims that a loop counts."""
        return sum(not isinstance(step, int) for step in self.steps)


def _count(loops: tuple[int, ...], at: Sequence[Any], nest: Sequence[int]) -> int:
    total = 0
    for loop in loops:
        total = total * nest[loop] + int(at[loop])
    return total


def courses(found: Sequence[tuple[Arrangement, Coords]], nest: Sequence[int]) -> tuple[Course, ...]:
    """Ways through the arrangements that begin at the places found.

    A dim of as many places as a loop has trips is counted by it, if any loop may count it.
    """
    levels = [k for k, trips in enumerate(nest) if trips > 1]
    groups = [g for n in range(1, len(levels) + 1) for g in combinations(levels, n)]
    best: dict[tuple[int, tuple[int, ...]], list[Course]] = {}
    for arrangement, coords in found:
        choices: list[list[int | tuple[int, ...]]] = []
        for size, place in zip(arrangement.grid, coords, strict=True):
            moving = [g for g in groups if size > 1 and prod(nest[k] for k in g) == size]
            choices.append([place, *(moving if place == 0 else [])])
        for steps in product(*choices):
            used = [loop for step in steps if not isinstance(step, int) for loop in step]
            if len(used) == len(set(used)):
                key = id(arrangement.value), arrangement.order
                best.setdefault(key, []).append(Course(arrangement, steps))
    return tuple(
        course
        for ways in best.values()
        for course in ways
        if course.moving == max(way.moving for way in ways)
    )
