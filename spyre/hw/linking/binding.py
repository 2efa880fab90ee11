"""The binding of a launch: parameter values, base addresses of segments, accessible memory.

Symbolic bundles take addresses as parameter values. Baked bundles carry addresses whose segment
(16 GiB each) names the argument; the segment table gives that argument's address. A tile of a
larger tensor is bound through a window, which maps the tile's offsets to the tensor's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Generic, TypeVar

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.errors import LaunchError
from spyre.hw.spec import HBM_BYTES, REGION_BITS, REGION_BYTES, REGIONS
from spyre.layout import AccessMap, Axis, Int64Array, drop_unit_axes, join_axes

WINDOW_BITS = 40
"""The address bits from here on are a window's number; addresses of real memory are below."""


@dataclass(frozen=True)
class TileMap:
    """Maps offsets in a tile's memory to offsets in the larger tensor that the tile is cut from.

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
    """A range of virtual addresses, mapped to a tile of an argument.

    Window k begins at ``(k + 1) << WINDOW_BITS``. ``address_bytes``: of the tile's corner.
    ``allocation``: index of the argument's.
    """

    map: TileMap
    address_bytes: int
    allocation: int


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
T = TypeVar("T")


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
                f"{self.name} spans several memory regions",
                expected=f"{REGIONS} regions of {1 << REGION_BITS} bytes",
                found=f"{self.size_bytes} bytes at {self.address_bytes:#x}",
            )

    @property
    def end_bytes(self) -> int:
        """First byte behind the allocation."""
        return self.address_bytes + self.size_bytes


@dataclass(frozen=True, slots=True)
class AddressOwners(Generic[T]):
    """The memory that begins at each address a program is given.

    By parameter name, by segment of a baked bundle, and by number of the device_mem_allocate.
    Parameters that are not named hold no address.
    """

    parameters: Mapping[str, T] = field(default_factory=dict)
    segments: Mapping[int, T] = field(default_factory=dict)
    scratch: Sequence[T] = ()


@dataclass(frozen=True)
class Binding:
    """The memory and the parameter values of one launch.

    ``parameters``: value per function parameter. ``segments``: base address per segment of a
    bundle without parameters (None: addresses come from parameters). ``allocations``: all memory in
    HBM that the program may touch. ``scratch_addresses``: one per device_mem_allocate. ``owners``:
    index of the allocation that begins at each of these addresses and moves it; a launch without
    them cannot be moved. ``windows``: tiles of larger tensors, which parameters and segments may
    address.
    """

    parameters: Mapping[str, int] = field(default_factory=dict)
    segments: Mapping[int, int] | None = None
    allocations: tuple[Allocation, ...] = ()
    scratch_addresses: tuple[int, ...] = ()
    owners: AddressOwners[int] = AddressOwners()
    windows: tuple[AddressWindow, ...] = ()

    def relocate(self, addresses: Int64Array) -> Int64Array:
        """Device addresses of the file → addresses in the simulator's memory.

        LaunchError SPY363 for an address in a segment without argument. Arguments beyond the last
        segment cannot be addressed by baked bundles.
        """
        return through_windows(self._of_segments(addresses), self.windows)

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
            f"address {address:#x} is in a segment to which no argument is bound",
            expected=f"addresses in segments {segments or '(none)'}",
            found=f"segment {address >> REGION_BITS}",
        )

    def moved(self, bases: Sequence[int], names: Sequence[str] = ()) -> Binding:
        """The same launch with allocation ``k`` at ``bases[k]``, called ``names[k]`` if given.

        The order of the allocations stays, whatever their addresses.
        """
        owners, segments = self.owners, self.segments
        titles = names or tuple(a.name for a in self.allocations)
        moved = zip(self.allocations, bases, titles, strict=True)
        return replace(
            self,
            parameters={**self.parameters, **_moved(self.parameters, owners.parameters, bases)},
            segments=None if segments is None else _moved(segments, owners.segments, bases),
            allocations=tuple(replace(a, address_bytes=b, name=n) for a, b, n in moved),
            scratch_addresses=tuple(bases[k] for k in owners.scratch),
            windows=tuple(replace(w, address_bytes=bases[w.allocation]) for w in self.windows),
        )


def _moved(values: Mapping[K, int], owners: Mapping[K, int], bases: Sequence[int]) -> dict[K, int]:
    """New addresses of allocations; a window's own address stays, its tile moves."""
    return {
        name: values[name] if values[name] >> WINDOW_BITS else bases[k]
        for name, k in owners.items()
    }
