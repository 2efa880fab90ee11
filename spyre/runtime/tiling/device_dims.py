"""Expected and actual tensors of a launch, and the host dim that each of their device dims walks.

A stride of -1 leaves the host dim of a device dim open. Layouts created from a dim order have that
dim at a known position (runtime reference §1.1): the first order that fits fills those gaps, the
default order before others. It is a guess; :mod:`.tile_plan` compares it with the bound tensor's
layout, in which the relevant dims are longer than 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.hw.memory import DeviceTensor
from spyre.layout import AccessMap, Axis, Int64Array, SpyreTensorLayout, exact_geometry
from spyre.runtime.program import Role

_MAX_RANK = 6


@dataclass(frozen=True)
class DeviceDims:
    """Device dims of a tensor, outermost first, the stick last.

    ``host_dims``: the host dim each walks, -1 where unknown or none. ``multipliers``: host
    coordinates per step. ``strides_bytes``: of the dims above the stick.
    """

    host_dims: tuple[int, ...]
    multipliers: tuple[int, ...]
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]

    @property
    def stick_host_dim(self) -> int:
        """Host dim along the stick, or -1: one value per stick."""
        return self.host_dims[-1]

    @cached_property
    def sticks(self) -> AccessMap:
        """The sticks in bytes (space 0) and coordinates of whichever host dim a step walks (1)."""
        pairs = zip(self.strides_bytes, self.multipliers[:-1], strict=True)
        return AccessMap((0, 0), tuple(map(Axis, self.extents[:-1], pairs)))

    def walked_by(self, host_dim: int) -> list[int]:
        """Device dims above the stick that walk ``host_dim``, by falling multiplier."""
        dims = [k for k, walked in enumerate(self.host_dims[:-1]) if walked == host_dim]
        return sorted(dims, key=lambda k: -self.multipliers[k])

    def offsets_bytes(self, host_dim: int, coordinates: Int64Array) -> Int64Array:
        """Byte offset of the sticks at ``coordinates`` along ``host_dim``."""
        axes = tuple(self.sticks.axes[k] for k in self.walked_by(host_dim))
        # Nothing is clipped along the outermost dim: that a tile fits is checked elsewhere.
        steps, _ = AccessMap((0, 0), axes).steps_of(np.asarray(coordinates), 1, beyond=True)
        return steps @ np.array([axis.pitches[0] for axis in axes], np.int64)

    def coordinates(self, host_dim: int, offsets_bytes: Int64Array) -> Int64Array:
        """Element of ``host_dim`` at byte offsets: the inverse of `offsets_bytes`."""
        steps, in_stick = self.sticks.steps_of(offsets_bytes, beyond=True)
        total = np.zeros(offsets_bytes.shape, np.int64)
        for k in self.walked_by(host_dim):
            total += steps[..., k] * self.multipliers[k]
        if host_dim == self.stick_host_dim:
            total += in_stick * self.extents[-1] // STICK_BYTES
        return total


@lru_cache(maxsize=1024)
def device_dims(
    layout: SpyreTensorLayout, shape: tuple[int, ...], strides: tuple[int, ...]
) -> DeviceDims:
    """Device dims of a tensor of host ``shape``/``strides`` (elements) in ``layout``.

    LaunchError SPY322 and SPY810 when the layout does not fit, as in `exact_geometry`.
    """
    geometry = exact_geometry(layout, shape, strides)
    host_dims, multipliers = list(geometry.host_dims), list(geometry.multipliers)
    order = next(
        (o for o in _orders(layout, shape) if _fits(o, host_dims, layout, shape)), host_dims
    )
    # What the geometry tells is kept; the order only fills its gaps.
    for k, host_dim in enumerate(order):
        if host_dims[k] >= 0 or host_dim < 0:
            continue
        host_dims[k] = host_dim
        counts_sticks = k < len(host_dims) - 1 and host_dim == order[-1]
        multipliers[k] = layout.elements_per_stick if counts_sticks else 1
    bits = layout.data_format.bits
    steps = tuple(stride * bits // 8 for stride in layout.device_strides[:-1])
    return DeviceDims(tuple(host_dims), tuple(multipliers), layout.device_size, steps)


def _orders(layout: SpyreTensorLayout, shape: tuple[int, ...]) -> Iterator[Sequence[int]]:
    """Host dim of every device dim in layouts of this many dims, the default order first."""
    rank = len(shape)
    if len(layout.device_size) not in (rank + 1, rank + 2) or rank > _MAX_RANK:
        return
    sparse = (-1,) if len(layout.device_size) == rank + 2 else ()
    for permuted in permutations(range(rank)):
        order = (*permuted, *sparse)
        if order:
            yield (*order[1:], order[0], order[-1])


def _fits(
    order: Sequence[int], known: Sequence[int], layout: SpyreTensorLayout, shape: tuple[int, ...]
) -> bool:
    """True if a layout of ``order`` could walk the host dims ``known`` (-1: not known)."""
    last = len(known) - 1
    for k, (guess, host_dim) in enumerate(zip(order, known, strict=True)):
        short = guess < 0 or shape[guess] <= 1 or (k < last and layout.device_size[k] <= 1)
        if guess != host_dim and not (host_dim < 0 and short):
            return False
    return True


@dataclass(frozen=True, slots=True)
class KernelDim:
    """One dim of a kernel as its arguments share it; equal in all of them.

    ``name``: of the operation that has it first. ``reduced_by``: the operation that reduces it.
    ``accumulated_by``: the operation that combines results of its tiles ('' where none does).
    ``fixed``: why it cannot be tiled.
    """

    index: int
    name: str
    reduced_by: str = ""
    accumulated_by: str = ""
    fixed: str = ""


@dataclass(frozen=True)
class ExpectedTensor:
    """An argument as the kernel was compiled for it.

    ``shape``/``strides`` in elements; ``dims``: the kernel's dim of every host dim, None where no
    operation walks it.
    """

    arg_index: int
    name: str
    role: Role
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype_name: str
    layout: SpyreTensorLayout
    dims: tuple[KernelDim | None, ...]

    @property
    def device_dims(self) -> DeviceDims:
        return device_dims(self.layout, self.shape, self.strides)


@dataclass(frozen=True)
class ActualTensor:
    """A tensor bound at launch: ``shape`` and ``strides`` in elements, and its device layout."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype_name: str
    layout: SpyreTensorLayout

    @classmethod
    def of(cls, tensor: DeviceTensor) -> ActualTensor:
        return cls(tensor.name, tensor.sizes, tensor.strides, tensor.dtype, tensor.layout)

    @property
    def device_dims(self) -> DeviceDims:
        return device_dims(self.layout, self.shape, self.strides)
