"""From byte offsets in a tile's memory to byte offsets in the larger tensor the tile is cut from.

A kernel compiled for a tile computes addresses with the tile's pitches. On stick-tiled memory the
larger tensor has other ones ([4096, K] is [K/64, 4096, 64], runtime reference §6), so an offset is
taken apart into device coordinates of the tile and put together with the larger tensor's strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.hw.nest import Int64Array

WINDOW_BITS = 40
"""Windows are told apart by the address bits from here on, far above those of real memory."""


@dataclass(frozen=True)
class AddressMap:
    """A mixed-radix change of strides; immutable, usable from several threads.

    ``extents``: device extents of the tile above the stick, outermost first. ``strides_bytes``:
    distance of two steps of each in the larger tensor.
    """

    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]

    @property
    def tile_bytes(self) -> int:
        """Bytes of the tile's own memory."""
        return STICK_BYTES * prod(self.extents)

    @property
    def span_bytes(self) -> int:
        """Bytes of the larger tensor from the tile's corner to the end of its last stick."""
        pairs = zip(self.extents, self.strides_bytes, strict=True)
        return STICK_BYTES + sum((extent - 1) * stride for extent, stride in pairs)

    @cached_property
    def tile_strides_bytes(self) -> tuple[int, ...]:
        """Distance of two steps of each device dim in the tile's own memory."""
        return tuple(STICK_BYTES * prod(self.extents[k + 1 :]) for k in range(len(self.extents)))

    @property
    def is_identity(self) -> bool:
        """True if every offset of the tile stays where it is."""
        pairs = zip(self.extents, self.tile_strides_bytes, self.strides_bytes, strict=True)
        return all(extent == 1 or tile == whole for extent, tile, whole in pairs)

    @cached_property
    def merged(self) -> AddressMap:
        """The same map with neighbouring device dims joined where both memories have them joined.

        Extents of 1 vanish; at least one dim stays.
        """
        extents: list[int] = []
        strides: list[int] = []
        for extent, stride in zip(self.extents, self.strides_bytes, strict=True):
            if extent == 1:
                continue
            if extents and strides[-1] == extent * stride:
                extents[-1] *= extent
                strides[-1] = stride
            else:
                extents.append(extent)
                strides.append(stride)
        return AddressMap(tuple(extents or [1]), tuple(strides or [STICK_BYTES]))

    def coordinates(self, offsets_bytes: Int64Array) -> Int64Array:
        """Device coordinates above the stick, in a last axis; the outermost may leave the tile."""
        rest = offsets_bytes // STICK_BYTES
        found = np.empty((*offsets_bytes.shape, len(self.extents)), np.int64)
        for k in range(len(self.extents) - 1, 0, -1):
            rest, found[..., k] = np.divmod(rest, self.extents[k])
        found[..., 0] = rest
        return found

    def apply(self, offsets_bytes: Int64Array) -> Int64Array:
        """Offsets in the tile's memory → offsets in the larger tensor's, from the tile's corner."""
        coordinates = self.coordinates(offsets_bytes)
        moved: Int64Array = coordinates @ np.array(self.strides_bytes, np.int64)
        return moved + offsets_bytes % STICK_BYTES


@dataclass(frozen=True)
class AddressWindow:
    """A range of addresses that no memory has, seen through a map: a tile of an argument.

    Window k begins at ``(k + 1) << WINDOW_BITS``. ``address_bytes``: where the tile's corner lies.
    """

    map: AddressMap
    address_bytes: int


def window_base(index: int) -> int:
    """First address of window ``index``."""
    return (index + 1) << WINDOW_BITS


def through_windows(addresses: Int64Array, windows: Sequence[AddressWindow]) -> Int64Array:
    """Real addresses of ``addresses``, of which those in a window are mapped."""
    window_of = (addresses >> WINDOW_BITS) - 1
    moved = addresses
    for index, window in enumerate(windows):
        inside = window_of == index
        if inside.any():
            offsets = addresses - window_base(index)
            moved = np.where(inside, window.address_bytes + window.map.apply(offsets), moved)
    return moved
