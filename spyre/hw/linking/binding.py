"""What a launch binds: parameter values, where segments lie, and which memory is allowed.

Symbolic bundles get addresses as parameter values; baked bundles carry addresses whose segment
(16 GiB each) names the argument, and the segment table says where that argument really lies. A
tile of a larger tensor is bound through a window, which maps the tile's offsets to the tensor's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.errors import LaunchError
from spyre.hw.spec import HBM_BYTES, REGION_BITS, REGION_BYTES, REGIONS
from spyre.layout import AccessMap, Axis, Int64Array, drop_unit_axes, join_axes

WINDOW_BITS = 40
"""Windows are told apart by the address bits from here on, far above those of real memory."""


@dataclass(frozen=True)
class TileMap:
    """Where what lies in a tile's memory lies in the larger tensor that the tile is cut from.

    A kernel compiled for a tile computes addresses with the tile's pitches. On stick-tiled memory
    the larger tensor has other ones ([4096, K] is [K/64, 4096, 64], runtime reference §6).
    ``extents``: device extents of the tile above the stick, outermost first. ``strides_bytes``:
    distance of two steps of each in the larger tensor. Immutable, usable from several threads.
    """

    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]

    @cached_property
    def walk(self) -> AccessMap:
        """The tile's sticks in bytes of the tile's memory and of the larger tensor's."""
        pairs = zip(self.tile_strides_bytes, self.strides_bytes, strict=True)
        return AccessMap((0, 0), tuple(map(Axis, self.extents, pairs)))

    @cached_property
    def tile_strides_bytes(self) -> tuple[int, ...]:
        """Distance of two steps of each device dim in the tile's own memory."""
        return tuple(STICK_BYTES * prod(self.extents[k + 1 :]) for k in range(len(self.extents)))

    @property
    def tile_bytes(self) -> int:
        """Bytes of the tile's own memory."""
        return STICK_BYTES * self.walk.count

    @property
    def span_bytes(self) -> int:
        """Bytes of the larger tensor from the tile's corner to the end of its last stick."""
        return STICK_BYTES + self.walk.highest(1)

    @property
    def is_identity(self) -> bool:
        """True if every offset of the tile stays where it is."""
        return all(axis.extent == 1 or len({*axis.pitches}) == 1 for axis in self.walk.axes)

    @cached_property
    def merged(self) -> TileMap:
        """The same map with neighbouring device dims joined where both memories have them joined.

        Extents of 1 vanish; at least one dim stays.
        """
        axes = join_axes(drop_unit_axes(self.walk.axes)) or [Axis(1, (STICK_BYTES,) * 2)]
        return TileMap(tuple(a.extent for a in axes), tuple(a.pitches[1] for a in axes))

    def coordinates(self, offsets_bytes: Int64Array) -> Int64Array:
        """Device coordinates above the stick, in a last axis; the outermost may leave the tile."""
        return self.walk.steps_of(offsets_bytes, beyond=True)[0]

    def apply(self, offsets_bytes: Int64Array) -> Int64Array:
        """Offsets in the tile's memory → offsets in the larger tensor's, from the tile's corner."""
        return self.walk.locate(offsets_bytes, 0, 1, beyond=True)


@dataclass(frozen=True)
class AddressWindow:
    """A range of addresses that no memory has, seen through a map: a tile of an argument.

    Window k begins at ``(k + 1) << WINDOW_BITS``. ``address_bytes``: where the tile's corner lies.
    """

    map: TileMap
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


K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Allocation:
    """A range of device memory a program may touch.

    ``name`` for messages, ``address_bytes``/``size_bytes`` in HBM, ``arrangement`` the element
    arrangement of the tensor's layout, ``device_dims`` extent and stride in bytes of that layout's
    dims above the stick (empty where there is no layout).
    """

    name: str
    address_bytes: int
    size_bytes: int
    arrangement: str = "STANDARD"
    device_dims: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        last = self.address_bytes + max(self.size_bytes, 1) - 1
        if (
            self.address_bytes < 0
            or last >= HBM_BYTES
            or (last >> REGION_BITS != self.address_bytes >> REGION_BITS)
        ):
            raise LaunchError(
                "SPY403",
                f"{self.name} does not lie within one memory region",
                expected=f"{REGIONS} regions of {1 << REGION_BITS} bytes",
                found=f"{self.size_bytes} bytes at {self.address_bytes:#x}",
            )

    @property
    def end_bytes(self) -> int:
        """First byte behind the allocation."""
        return self.address_bytes + self.size_bytes


@dataclass(frozen=True, slots=True)
class AddressProvenance:
    """Which allocation (index) begins at each address a program is given.

    By parameter name, by segment of a baked bundle, by device_mem_allocate, and by window.
    Parameters that are not named hold no address that moves.
    """

    parameters: Mapping[str, int] = field(default_factory=dict)
    segments: Mapping[int, int] = field(default_factory=dict)
    scratch: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Binding:
    """One launch's view of memory.

    ``parameters``: value per function parameter. ``segments``: real base address per segment of a
    bundle without parameters (None: addresses come from parameters and are real ones).
    ``allocations``: everything the program may touch in HBM.
    ``scratch_addresses``: one per device_mem_allocate. ``anchors``: which of these addresses are
    starts of allocations and move with them (None: nobody knows, so nothing can be moved).
    ``windows``: tiles of larger tensors; parameters and segments may lead into them.
    """

    parameters: Mapping[str, int] = field(default_factory=dict)
    segments: Mapping[int, int] | None = None
    allocations: tuple[Allocation, ...] = ()
    scratch_addresses: tuple[int, ...] = ()
    anchors: AddressProvenance | None = None
    windows: tuple[AddressWindow, ...] = ()

    def relocate(self, addresses: Int64Array) -> Int64Array:
        """Device addresses of the file → addresses in the simulator's memory.

        LaunchError SPY363 for an address in a segment without argument. Arguments beyond the last
        segment cannot be addressed by baked bundles.
        """
        return through_windows(self._of_segments(addresses), self.windows)

    def origin(self, address_bytes: int) -> int:
        """Where memory bound at ``address_bytes`` begins: behind a window, at the tile's corner."""
        window = (address_bytes >> WINDOW_BITS) - 1
        return self.windows[window].address_bytes if window >= 0 else address_bytes

    def _of_segments(self, addresses: Int64Array) -> Int64Array:
        if self.segments is None:
            return addresses
        bases = np.full(REGIONS, -1, np.int64)
        for segment, base in self.segments.items():
            if segment < REGIONS:
                bases[segment] = base
        segment_of = addresses >> REGION_BITS
        known = (segment_of >= 0) & (segment_of < REGIONS)
        base_of = np.where(known, bases[np.clip(segment_of, 0, REGIONS - 1)], -1)
        if (base_of < 0).any():
            self._refuse(int(addresses[base_of < 0][0]))
        moved: Int64Array = base_of + (addresses & (REGION_BYTES - 1))
        return moved

    def _refuse(self, address: int) -> None:
        segments = ", ".join(str(segment) for segment in sorted(self.segments or {}))
        raise LaunchError(
            "SPY363",
            f"address {address:#x} lies in a segment to which no argument is bound",
            expected=f"addresses in segments {segments or '(none)'}",
            found=f"segment {address >> REGION_BITS}",
        )

    def moved(self, bases: Sequence[int], names: Sequence[str] = ()) -> Binding:
        """The same launch with allocation ``k`` at ``bases[k]``, called ``names[k]`` if given.

        The order of the allocations stays, whatever their addresses. Needs ``anchors``.
        """
        anchors = self.anchors
        assert anchors is not None
        titles = names or tuple(a.name for a in self.allocations)
        moved = zip(self.allocations, bases, titles, strict=True)
        segments = self.segments
        return replace(
            self,
            parameters={
                **self.parameters,
                **_moved(self.parameters, anchors.parameters, bases),
            },
            segments=None if segments is None else _moved(segments, anchors.segments, bases),
            allocations=tuple(replace(a, address_bytes=b, name=n) for a, b, n in moved),
            scratch_addresses=tuple(bases[k] for k in anchors.scratch),
            windows=tuple(
                replace(window, address_bytes=bases[k])
                for window, k in zip(self.windows, anchors.windows, strict=True)
            ),
        )


def _moved(values: Mapping[K, int], anchors: Mapping[K, int], bases: Sequence[int]) -> dict[K, int]:
    """New addresses of what has an anchor; a window stays where it is, its tile moves."""
    return {
        name: values[name] if values[name] >> WINDOW_BITS else bases[k]
        for name, k in anchors.items()
    }
