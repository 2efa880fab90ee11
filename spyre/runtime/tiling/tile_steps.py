"""Copies between a partial tile of a tensor and its temporary, as strided boxes of device bytes.

Only existing elements are copied: whole sticks, and the first bytes of the last stick along a
partial stick dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from spyre.dtypes import STICK_BYTES
from spyre.errors import LaunchError
from spyre.layout import AccessMap, Axis
from spyre.runtime.tiling.tile_plan import TiledTensor, TilePlan


class TileBuffer(StrEnum):
    """A temporary of one tensor, of the size of a tile.

    ``TILE``: replaces a tile of the tensor; of an accumulated output, it holds the sum so far.
    ``RESULT``: the summand of one iteration.
    """

    TILE = "tile"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class CopyIn:
    """Temporary ← zeros, then the valid part of the tile. ``tensor``: number in the plan."""

    iteration: int
    tensor: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Run the kernel. ``temporaries``: (number of a tensor, buffer) for each tensor whose tile is
    replaced by a temporary.
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
    for iteration in range(plan.iterations):
        yield from _iteration_steps(plan, iteration)


def _iteration_steps(plan: TilePlan, iteration: int) -> Iterator[TileStep]:
    padded = _padded(plan, iteration)
    sums = _accumulated(plan)
    first, last = _first_and_last(plan, iteration)
    for tensor in sorted(padded):
        if plan.tensors[tensor].is_read:
            yield CopyIn(iteration, tensor)
    buffers = {tensor: TileBuffer.TILE for tensor in sorted(padded | sums)}
    if not first:
        buffers |= dict.fromkeys(sums, TileBuffer.RESULT)
    yield Compute(iteration, tuple(buffers.items()))
    for tensor in sorted(sums):
        if not first:
            yield Accumulate(iteration, tensor, plan.accumulation)
    for tensor in sorted(padded | sums):
        if plan.tensors[tensor].is_written and (last or tensor not in sums):
            yield CopyOut(iteration, tensor)


def _padded(plan: TilePlan, iteration: int) -> set[int]:
    """Tensors whose tile is not whole in ``iteration``."""
    partial = {int(dim) for dim in np.flatnonzero(plan.partial[iteration])}
    return {
        k for k, tensor in enumerate(plan.tensors) if any(dim in partial for dim, _ in tensor.walks)
    }


def _accumulated(plan: TilePlan) -> set[int]:
    """Outputs that are sums over tiles."""
    if not any(dim.is_reduction for dim in plan.dims):
        return set()
    return {k for k, tensor in enumerate(plan.tensors) if tensor.is_written}


def _first_and_last(plan: TilePlan, iteration: int) -> tuple[bool, bool]:
    """Whether the iteration begins, and whether it ends, the tiles that are reduced together."""
    reduced = [k for k, dim in enumerate(plan.dims) if dim.is_reduction]
    row = plan.indices[iteration, reduced]
    ends = np.array([plan.counts[k] - 1 for k in reduced], np.int64)
    return not row.any(), bool((row == ends).all())


Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class CopyBox:
    """``nbytes`` from the start of every stick of a walk.

    ``sticks``: byte offsets from the corner of the temporary (space 0) and of the tile in the
    larger tensor (space 1).
    """

    sticks: AccessMap
    nbytes: int

    def views(self, tile: Bytes, tensor: Bytes) -> tuple[Bytes, Bytes]:
        """The box in the memory of the temporary and of the tensor (from the tile's corner)."""
        return self._view(tile, 0), self._view(tensor, 1)

    def _view(self, memory: Bytes, space: int) -> Bytes:
        axes = self.sticks.axes
        assert self.sticks.highest(space) + self.nbytes <= memory.size, "a copy leaves its memory"
        return np.lib.stride_tricks.as_strided(
            memory[self.sticks.first[space] :],
            (*[axis.extent for axis in axes], self.nbytes),
            (*[axis.pitches[space] for axis in axes], 1),
        )


def valid_shape(plan: TilePlan, number: int, iteration: int) -> tuple[int, ...]:
    """Host extents of the existing part of the iteration's tile of tensor ``number``."""
    tensor = plan.tensors[number]
    shape = list(tensor.expected.shape)
    for dim, host_dim in tensor.walks:
        if plan.partial[iteration, dim]:
            shape[host_dim] = plan.dims[dim].valid_last
    return tuple(shape)


def copy_boxes(tensor: TiledTensor, valid: tuple[int, ...]) -> tuple[CopyBox, ...]:
    """The boxes to copy of a tile of which ``valid`` host extents exist."""
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
    return tuple(box for box in boxes if box.sticks.count)


def _check_simple(tensor: TiledTensor, host_dim: int) -> None:
    device, layout = tensor.expected.device_dims, tensor.expected.layout
    arranged = layout.element_arrangement != "STANDARD" and host_dim == device.stick_host_dim
    if len(device.walked_by(host_dim)) > 1 or arranged:
        raise LaunchError(
            "SPY855",
            f"the layout of {tensor.actual.name} cannot express part of a tile: dim {host_dim} "
            "is split over several device dims",
            expected="one device dim above the stick, and a standard element arrangement",
            found=str(layout),
        )


def _boxes(
    tensor: TiledTensor, steps: list[int], partial_stick: tuple[int, int] | None
) -> list[CopyBox]:
    """One box of whole sticks, and one of partial sticks if ``partial_stick`` is (dim, lanes)."""
    if partial_stick is None:
        return [CopyBox(_sticks(tensor, steps), STICK_BYTES)]
    k, lanes = partial_stick
    last = steps[k] - 1
    front, end = list(steps), list(steps)
    front[k], end[k] = last, 1
    bits = tensor.expected.layout.data_format.bits
    return [
        CopyBox(_sticks(tensor, front), STICK_BYTES),
        CopyBox(_sticks(tensor, end, k, last), lanes * bits // 8),
    ]


def _sticks(tensor: TiledTensor, steps: list[int], along: int = 0, first: int = 0) -> AccessMap:
    """``steps`` of every device dim, from step ``first`` of dim ``along`` on, in both memories."""
    strides = zip(tensor.map.tile_strides_bytes, tensor.map.strides_bytes, strict=True)
    axes = tuple(map(Axis, steps, strides))
    start = tuple(first * pitch for pitch in axes[along].pitches) if axes else (0, 0)
    return AccessMap(start, axes)
