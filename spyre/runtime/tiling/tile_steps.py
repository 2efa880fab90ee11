"""Copies between a partial tile of a tensor and its temporary, as strided boxes of device bytes.

Only what exists is copied: whole sticks, and of the last stick along a partial stick dim the bytes
of the elements that exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import prod

import numpy as np
import numpy.typing as npt

from spyre.dtypes import STICK_BYTES
from spyre.errors import LaunchError
from spyre.layout.access_map import Int64Array
from spyre.runtime.tiling.tile_plan import TiledTensor, TilePlan


class TileBuffer(StrEnum):
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
    temporaries: tuple[tuple[int, TileBuffer], ...] = ()


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
    buffers = {place: TileBuffer.TILE for place in sorted(padded | sums)}
    if not first:
        buffers |= dict.fromkeys(sums, TileBuffer.RESULT)
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


Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CopyBox:
    """``nbytes`` from the start of every stick of a box of ``steps`` sticks.

    ``tile_bytes``/``tensor_bytes``: the first stick, from the corner of temporary and tile;
    ``tile_strides``/``tensor_strides``: bytes per step.
    """

    steps: tuple[int, ...]
    tile_bytes: int
    tile_strides: tuple[int, ...]
    tensor_bytes: int
    tensor_strides: tuple[int, ...]
    nbytes: int

    def views(self, tile: Bytes, tensor: Bytes) -> tuple[Bytes, Bytes]:
        """The box in the memory of the temporary and of the tensor (from the tile's corner)."""
        return (
            _strided(tile[self.tile_bytes :], self.steps, self.tile_strides, self.nbytes),
            _strided(tensor[self.tensor_bytes :], self.steps, self.tensor_strides, self.nbytes),
        )

    @property
    def tensor_sticks_bytes(self) -> Int64Array:
        """Byte offset of every stick in the tensor, from the tile's corner."""
        total = np.full(1, self.tensor_bytes, np.int64)
        for count, stride in zip(self.steps, self.tensor_strides, strict=True):
            total = (total[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
        return total


def _strided(memory: Bytes, steps: tuple[int, ...], strides: tuple[int, ...], n: int) -> Bytes:
    last = sum((count - 1) * stride for count, stride in zip(steps, strides, strict=True)) + n
    assert last <= memory.size, "a copy leaves its memory"
    return np.lib.stride_tricks.as_strided(memory, (*steps, n), (*strides, 1))


def valid_shape(plan: TilePlan, place: int, iteration: int) -> tuple[int, ...]:
    """Host extents of the part of the iteration's tile of tensor ``place`` that exists."""
    tensor = plan.tensors[place]
    shape = list(tensor.expected.shape)
    for dim, host_dim in tensor.walks:
        if plan.partial[iteration, dim]:
            shape[host_dim] = plan.dims[dim].valid_last
    return tuple(shape)


def copy_boxes(tensor: TiledTensor, valid: tuple[int, ...]) -> tuple[CopyBox, ...]:
    """What is copied of a tile of which ``valid`` host extents exist."""
    device = tensor.expected.device_dims
    steps = list(tensor.map.extents)
    partial_stick: tuple[int, int] | None = None
    for host_dim, (size, tile) in enumerate(zip(valid, tensor.expected.shape, strict=True)):
        if size == tile:
            continue
        _check_simple(tensor, host_dim)
        for k in device.walked_by(host_dim):
            steps[k] = -(-size // device.multipliers[k])
            lanes = size % device.multipliers[k]
            if host_dim == device.stick_host_dim and lanes:
                partial_stick = k, lanes
    boxes = _boxes(tensor, steps, partial_stick)
    return tuple(box for box in boxes if prod(box.steps))


def _check_simple(tensor: TiledTensor, host_dim: int) -> None:
    device, layout = tensor.expected.device_dims, tensor.expected.layout
    arranged = layout.element_arrangement != "STANDARD" and host_dim == device.stick_host_dim
    if len(device.walked_by(host_dim)) > 1 or arranged:
        raise LaunchError(
            "SPY855",
            f"the layout of {tensor.actual.name} cannot express part of a tile: dim {host_dim} "
            "lies in pieces",
            expected="one device dim above the stick, and a standard element arrangement",
            found=str(layout),
        )


def _boxes(
    tensor: TiledTensor, steps: list[int], partial_stick: tuple[int, int] | None
) -> list[CopyBox]:
    """One box, or, before a partial last stick along device dim k, one of whole sticks and one of
    parts.
    """
    map_ = tensor.map
    if partial_stick is None:
        whole = tuple(steps)
        return [CopyBox(whole, 0, map_.tile_strides_bytes, 0, map_.strides_bytes, STICK_BYTES)]
    k, lanes = partial_stick
    last = steps[k] - 1
    front = tuple(last if j == k else n for j, n in enumerate(steps))
    end = tuple(1 if j == k else n for j, n in enumerate(steps))
    bits = tensor.expected.layout.data_format.bits
    tile, whole_strides = map_.tile_strides_bytes, map_.strides_bytes
    return [
        CopyBox(front, 0, tile, 0, whole_strides, STICK_BYTES),
        CopyBox(
            end, last * tile[k], tile, last * whole_strides[k], whole_strides, lanes * bits // 8
        ),
    ]
