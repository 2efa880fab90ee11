"""Host dim of every device dim of a layout, size-1 dims included where the layout tells.

A stride of -1 says nothing about the host dim it stands for. Layouts made by the default
constructor have a known order (runtime reference §1.1), which fills those gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spyre.hw.nest import Int64Array
from spyre.layout import SpyreTensorLayout, transfer_geometry


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

    def walked_by(self, host_dim: int) -> list[int]:
        """Device dims above the stick that walk ``host_dim``, by falling multiplier."""
        found = [k for k in range(len(self.extents) - 1) if self.host_dims[k] == host_dim]
        return sorted(found, key=lambda k: -self.multipliers[k])

    def offsets_bytes(self, host_dim: int, coordinates: Int64Array) -> Int64Array:
        """Byte offset of the sticks at ``coordinates`` along ``host_dim``."""
        rest = np.asarray(coordinates, np.int64)
        total = np.zeros_like(rest)
        for k in self.walked_by(host_dim):
            steps, rest = np.divmod(rest, self.multipliers[k])
            total = total + steps * self.strides_bytes[k]
        return total


@lru_cache(maxsize=1024)
def device_dims(
    layout: SpyreTensorLayout, shape: tuple[int, ...], strides: tuple[int, ...]
) -> DeviceDims:
    """Device dims of a tensor of host ``shape``/``strides`` (elements) in ``layout``.

    LaunchError SPY322 when the layout does not fit.
    """
    geometry = transfer_geometry(layout, shape, strides)
    found, multipliers = list(geometry.host_dims), list(geometry.multipliers)
    default = _default_order(len(shape))
    fits = len(default) == len(found) and all(
        known in (-1, guess) for known, guess in zip(found, default, strict=True)
    )
    for k, step in enumerate(found):
        if step >= 0 or not fits:
            continue
        stick = k < len(found) - 1 and default[k] == default[-1]
        found[k] = default[k]
        multipliers[k] = layout.elements_per_stick if stick else 1
    if layout.stride_map[-1] < 0 and shape and shape[default[-1]] > 1:
        found[-1] = -1
    bits = layout.data_format.bits
    steps = tuple(stride * bits // 8 for stride in layout.device_strides[:-1])
    return DeviceDims(tuple(found), tuple(multipliers), layout.device_size, steps)


def _default_order(rank: int) -> Sequence[int]:
    """Host dim of every device dim in the default layout."""
    return (-1, -1) if rank == 0 else (*range(1, rank), 0, rank - 1)
