"""The steps of a tiled launch: what is copied, computed, added and copied back, in order.

Most plans are one `Compute` per iteration on the tensors themselves; then the plan's arrays are all
there is to know. Tiles that are not whole go through temporaries in the kernel's own layout, and
results of reduced tiles are added up in one (the pipeline RFC and runtime reference §6 leave both
open). The flex layer walks these steps; :mod:`.execute` does so synchronously.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from spyre.runtime.tiling.tile_plan import TilePlan


class Buffer(StrEnum):
    """A temporary of one tensor, of the size of a tile.

    ``TILE``: stands in for a tile of the tensor; of an output that is accumulated, it holds the
    sum so far. ``RESULT``: what one iteration adds to it.
    """

    TILE = "tile"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class CopyIn:
    """Temporary ← zeros, then the valid part of the tile. ``tensor``: place in the plan."""

    iteration: int
    tensor: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Run the kernel. ``temporaries``: (place of a tensor, buffer) where it sees no tile of the
    tensor itself.
    """

    iteration: int
    temporaries: tuple[tuple[int, Buffer], ...] = ()


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Buffer TILE ← TILE ``operation`` RESULT, element by element, rounded to the format."""

    iteration: int
    tensor: int
    operation: str


@dataclass(frozen=True, slots=True)
class CopyOut:
    """The valid part of the tile ← temporary TILE."""

    iteration: int
    tensor: int


TileStep = CopyIn | Compute | Accumulate | CopyOut


def tile_steps(plan: TilePlan) -> Iterator[TileStep]:
    """All steps of ``plan`` in order."""
    for iteration in range(plan.iterations):
        yield from _iteration_steps(plan, iteration)


def _iteration_steps(plan: TilePlan, iteration: int) -> Iterator[TileStep]:
    padded = _padded(plan, iteration)
    sums = _accumulated(plan)
    first, last = _first_and_last(plan, iteration)
    for place in sorted(padded):
        if plan.tensors[place].is_read:
            yield CopyIn(iteration, place)
    buffers = {place: Buffer.TILE for place in sorted(padded | sums)}
    if not first:
        buffers |= dict.fromkeys(sums, Buffer.RESULT)
    yield Compute(iteration, tuple(buffers.items()))
    for place in sorted(sums):
        if not first:
            yield Accumulate(iteration, place, plan.accumulation)
    for place in sorted(padded | sums):
        if plan.tensors[place].is_written and (last or place not in sums):
            yield CopyOut(iteration, place)


def _padded(plan: TilePlan, iteration: int) -> set[int]:
    """Tensors whose tile is not whole in ``iteration``."""
    partial = {int(dim) for dim in np.flatnonzero(plan.partial[iteration])}
    return {
        place
        for place, tensor in enumerate(plan.tensors)
        if any(dim in partial for dim, _ in tensor.walks)
    }


def _accumulated(plan: TilePlan) -> set[int]:
    """Outputs that are sums over tiles."""
    if not any(dim.is_reduction for dim in plan.dims):
        return set()
    return {place for place, tensor in enumerate(plan.tensors) if tensor.is_written}


def _first_and_last(plan: TilePlan, iteration: int) -> tuple[bool, bool]:
    """Whether the iteration begins, and whether it ends, the tiles that are reduced together."""
    reduced = [k for k, dim in enumerate(plan.dims) if dim.is_reduction]
    row = plan.indices[iteration, reduced]
    ends = np.array([plan.counts[k] - 1 for k in reduced], np.int64)
    return not row.any(), bool((row == ends).all())
