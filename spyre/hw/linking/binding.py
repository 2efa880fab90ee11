"""The binding of a launch: parameter values, base addresses of segments, and its memory.

Symbolic bundles take addresses as parameter values. Baked bundles carry addresses whose segment
(16 GiB each) names the argument; the segment table gives that argument's address. A tile of a
larger tensor is bound through a window, which maps the tile's offsets to the tensor's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.errors import LaunchError
from spyre.hw.spec import HBM_BYTES, REGION_BITS, REGION_BYTES, REGIONS
from spyre.layout import AccessMap, Axis, Int64Array, drop_unit_axes, join_axes

FIXED = -1
"""Owner of a value that depends on no address: scratchpads, sizes, constants."""
UNKNOWN = -2
"""Owner of a value that depends on several addresses, or on one other than by adding to it."""
WINDOW_BITS = 40
"""The address bits from here on are a window's number; addresses of real memory are below."""


class TileMap(msgspec.Struct, frozen=True, dict=True):
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


class AddressWindow(msgspec.Struct, frozen=True):
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


class Allocation(msgspec.Struct, frozen=True):
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


class AddressOwners(msgspec.Struct, Generic[T], frozen=True):
    """The memory that begins at each address a program is given.

    By parameter name, by segment of a baked bundle, and by number of the device_mem_allocate.
    Parameters that are not named hold no address.
    """

    parameters: Mapping[str, T] = msgspec.field(default_factory=dict)
    segments: Mapping[int, T] = msgspec.field(default_factory=dict)
    scratch: Sequence[T] = ()


class Binding(msgspec.Struct, frozen=True):
    """The memory and the parameter values of one launch.

    ``parameters``: value per function parameter. ``segments``: base address per segment of a
    bundle without parameters (None: addresses come from parameters). ``allocations``: all memory in
    HBM that the program may touch. ``scratch_addresses``: one per device_mem_allocate. ``owners``:
    index of the allocation that begins at each of these addresses and moves it; a launch without
    them cannot be moved. ``windows``: tiles of larger tensors, which parameters and segments may
    address.
    """

    parameters: Mapping[str, int] = msgspec.field(default_factory=dict)
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

        The order of the allocations stays, also if that of their addresses changes.
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


# --- allocations that overlap -----------------------------------------------------------------

# Allocations that overlap, directly or through others, form a group that moves together.
AliasStructure = tuple[tuple[int, int], ...]
"""Per allocation: the group, named by its first allocation in the order given, and the bytes from
the group's lowest address."""


def alias_structure(addresses: Sequence[int], sizes: Sequence[int]) -> AliasStructure | None:
    """The structure of allocations at ``addresses`` of ``sizes`` bytes; None when none overlap."""
    groups: list[list[int]] = []
    end = -1
    for low, size, k in sorted(zip(addresses, sizes, range(len(sizes)), strict=True)):
        if low < end:
            groups[-1].append(k)
        else:
            groups.append([k])
        end = max(end, low + size)
    if len(groups) == len(sizes):
        return None
    found = {k: (min(g), addresses[k] - addresses[g[0]]) for g in groups for k in g}
    return tuple(found[k] for k in range(len(sizes)))


def alias_rows(addresses: Int64Array, sizes: Int64Array) -> Int64Array:
    """`alias_structure` of many launches at once: int64 [launch, allocation, 2].

    ``addresses``: [launch, allocation]; ``sizes``: [allocation]. Without overlaps every allocation
    is one group with offset 0.
    """
    if not sizes.size:
        return np.zeros((*addresses.shape, 2), np.int64)
    # as `alias_structure`, in order of address, for all launches at once
    order = np.lexsort((np.broadcast_to(sizes, addresses.shape), addresses), axis=1)
    lows = np.take_along_axis(addresses, order, 1)
    ends = np.maximum.accumulate(lows + sizes[order], axis=1)
    begins = np.ones(lows.shape, np.bool_)
    begins[:, 1:] = lows[:, 1:] >= ends[:, :-1]
    first = np.maximum.accumulate(np.where(begins, lows, np.iinfo(np.int64).min), axis=1)
    groups, offsets = np.empty_like(order), np.empty_like(lows)
    np.put_along_axis(groups, order, np.cumsum(begins, axis=1), 1)
    np.put_along_axis(offsets, order, lows - first, 1)
    names = (groups[:, :, None] == groups[:, None, :]).argmax(axis=2)
    return np.stack((names, offsets), axis=2)


def equal_runs(*columns: npt.NDArray[np.generic]) -> Iterator[tuple[int, int]]:
    """(first, last) of neighbouring launches that are equal in all ``columns``, [launch, ...]."""
    count = len(columns[0])
    if not count:
        return
    changed = np.zeros(count - 1, np.bool_)
    for column in columns:
        flat = column.reshape(count, -1)
        changed |= (flat[1:] != flat[:-1]).any(axis=1)
    yield from pairwise([0, *(np.flatnonzero(changed) + 1).tolist(), count])


class AllocationTable:
    """The allocations of a launch, searched with arrays of addresses."""

    def __init__(self, allocations: Sequence[Allocation]) -> None:
        lows, sizes = [a.address_bytes for a in allocations], [a.size_bytes for a in allocations]
        self._lows = np.array(lows, np.int64)
        self._ends = self._lows + np.array(sizes, np.int64)
        structure = alias_structure(lows, sizes)
        groups = range(len(sizes)) if structure is None else [group for group, _ in structure]
        self._groups = np.array(groups, np.int64)
        self._order = np.argsort(self._lows, kind="stable")
        # Views may overlap: per allocation in order of address, the one up to it that ends last.
        reached = np.maximum.accumulate(self._ends[self._order])
        self._widest = self._order[np.searchsorted(reached, reached, side="left")]

    def holders(self, low: Int64Array, high: Int64Array) -> Int64Array:
        """The allocation that contains bytes ``low`` to ``high``, elementwise; -1 if none does."""
        if not self._order.size:
            return np.full(low.shape, -1, np.int64)
        before = np.searchsorted(self._lows[self._order], low, side="right") - 1
        widest = self._widest[np.maximum(before, 0)]
        return np.where((before >= 0) & (high <= self._ends[widest]), widest, -1)

    def confirmed(self, owners: Int64Array, holders: Int64Array, bases: Int64Array) -> Int64Array:
        """``owners``, UNKNOWN where an operand is or begins in the memory of another group.

        ``owners``, ``bases`` (start of the first core): [member, operand]. ``holders``: the
        allocation that contains each core's operand, [member, operand, core], -1 for LX.
        """
        if not self._groups.size:
            return owners
        group = self._groups[np.maximum(owners, 0)]
        holder = np.maximum(holders, 0)
        in_group = (self._groups[holder] == group[:, :, None]) & (holders >= 0)
        first = holder[:, :, 0]
        begins = (bases >= self._lows[first]) & (bases < self._ends[first])
        good = in_group.all(axis=2) & begins
        return np.where((owners < 0) | good, owners, UNKNOWN)
