"""The memory regions of a card and what is allocated in them.

Up to eight regions; tensors go to regions 0 to 6, programs to region 7 and nowhere else (runtime
reference §4.1, §4.2). A region is 16 GiB of addresses, of which its capacity can be allocated.
Addresses and sizes are multiples of 128 bytes; all accounting is in rounded bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spyre.errors import DeviceOutOfMemory, LaunchError
from spyre.hw.memory.allocation_history import AllocationHistory
from spyre.hw.memory.free_blocks import FreeBlocks
from spyre.hw.spec import REGION_BITS, REGION_BYTES, REGIONS, STICK_BYTES

PROGRAM_REGION = REGIONS - 1
TENSOR_REGIONS = REGIONS - 1
"""Number of regions for tensors, the first ones."""
_BLOCK_BITS = STICK_BYTES.bit_length() - 1
_OFFSET_MASK = REGION_BYTES - 1
_EVERY_TENSOR_REGION = range(TENSOR_REGIONS)


@dataclass(frozen=True, slots=True)
class RegionUsage:
    """One region: its capacity, what of it is free, and its largest free block, all in bytes."""

    region: int
    capacity_bytes: int
    free_bytes: int
    largest_free_bytes: int

    def __str__(self) -> str:
        return f"{self.region}: {self.free_bytes} ({self.largest_free_bytes})"


class RegionAllocator:
    """Hands out ranges of the regions, best fit inside a region.

    ``lock`` is for the callers: nothing here takes it, and whoever shares the allocator between
    threads holds it around every call (Device and FlexAllocator do). It is not reentrant.
    ``history``: where changes are noted, if they are.
    """

    def __init__(self, capacities_bytes: Sequence[int] = (REGION_BYTES,) * REGIONS) -> None:
        self.lock = threading.Lock()
        self.history: AllocationHistory | None = None
        self._set_capacities(capacities_bytes)

    def _set_capacities(self, capacities_bytes: Sequence[int]) -> None:
        self.capacities_bytes = _checked_capacities(capacities_bytes)
        self.reset()

    def reset(self) -> None:
        """Everything is free again."""
        if self.history is not None:
            for region, size_bytes in enumerate(self.allocated_bytes):
                self.history.note(region, -size_bytes)
        self._regions = [FreeBlocks(size >> _BLOCK_BITS) for size in self.capacities_bytes]
        self._sizes: dict[int, int] = {}
        """address → bytes of each allocation."""
        self._free = [region.free for region in self._regions[:TENSOR_REGIONS]]
        """Free blocks of each tensor region."""

    @property
    def in_use(self) -> bool:
        """True if something is allocated."""
        return bool(self._sizes)

    @property
    def allocated_bytes(self) -> tuple[int, ...]:
        """Bytes allocated in each region."""
        return tuple((each.capacity - each.free) << _BLOCK_BITS for each in self._regions)

    def resize(self, capacities_bytes: Sequence[int]) -> None:
        """Other capacities, one per region. LaunchError SPY807 while anything is allocated."""
        if tuple(capacities_bytes) == self.capacities_bytes:
            return
        if self._sizes:
            raise LaunchError(
                "SPY807",
                "regions cannot change their capacity while they hold allocations",
                found=f"{len(self._sizes)} allocations",
                hint="reset the device first",
            )
        self._set_capacities(capacities_bytes)

    def allocate(self, size_bytes: int, region: int | None = None) -> int:
        """Device address of ``size_bytes`` for tensors, rounded up to whole blocks, one at least.

        In tensor region ``region`` modulo 7 if it has room; otherwise in the emptiest region that
        has. So regions fill evenly: the tensors of a kernel lie in regions of their own, as baked
        bundles place them, where they do not contend for the same cache sets of the host
        (`REGION_SKEW_BYTES`). The price is that a tensor nearly as large as a region needs the card
        to be nearly empty. Raises DeviceOutOfMemory SPY401, LaunchError SPY807 below 0 bytes.
        """
        blocks = (size_bytes + STICK_BYTES - 1) >> _BLOCK_BITS
        if blocks <= 0:
            blocks = _blocks_of(size_bytes)
        if region is None:
            region = self._free.index(max(self._free))
        else:
            region %= TENSOR_REGIONS
        start = self._regions[region].take(blocks)
        if start is None:
            region, start = self._take_from_another(blocks)
        return self._note(region, start, blocks)

    def allocate_in(self, region: int, size_bytes: int) -> int:
        """Like `allocate`, in tensor region ``region`` or not at all."""
        return self._allocate_only_in(region % TENSOR_REGIONS, size_bytes)

    def allocate_program(self, size_bytes: int) -> int:
        """Like `allocate`, in the program region; the first program lies at its offset 0."""
        return self._allocate_only_in(PROGRAM_REGION, size_bytes)

    def size_of(self, address_bytes: int) -> int:
        """Bytes allocated at ``address_bytes``; LaunchError SPY360 when nothing is."""
        size = self._sizes.get(address_bytes)
        if size is None:
            raise _nothing_at(address_bytes)
        return size

    def free(self, address_bytes: int) -> int:
        """Release the range at ``address_bytes``; returns its size in bytes."""
        size = self._sizes.pop(address_bytes, None)
        if size is None:
            raise _nothing_at(address_bytes)
        region, blocks = address_bytes >> REGION_BITS, size >> _BLOCK_BITS
        self._regions[region].give((address_bytes & _OFFSET_MASK) >> _BLOCK_BITS, blocks)
        if region < TENSOR_REGIONS:
            self._free[region] += blocks
        if self.history is not None:
            self.history.note(region, -size)
        return size

    def usage(self) -> tuple[RegionUsage, ...]:
        """Every region as it is now."""
        return tuple(
            RegionUsage(
                k,
                region.capacity << _BLOCK_BITS,
                region.free << _BLOCK_BITS,
                region.largest() << _BLOCK_BITS,
            )
            for k, region in enumerate(self._regions)
        )

    def _note(self, region: int, start: int, blocks: int) -> int:
        if region < TENSOR_REGIONS:
            self._free[region] -= blocks
        address = region << REGION_BITS | start << _BLOCK_BITS
        self._sizes[address] = blocks << _BLOCK_BITS
        if self.history is not None:
            self.history.note(region, blocks << _BLOCK_BITS)
        return address

    def _take_from_another(self, blocks: int) -> tuple[int, int]:
        regions = self._regions
        for region in sorted(_EVERY_TENSOR_REGION, key=lambda k: -self._free[k]):
            start = regions[region].take(blocks)
            if start is not None:
                return region, start
        raise self._exhausted(blocks, _EVERY_TENSOR_REGION)

    def _allocate_only_in(self, region: int, size_bytes: int) -> int:
        blocks = _blocks_of(size_bytes)
        start = self._regions[region].take(blocks)
        if start is None:
            raise self._exhausted(blocks, (region,))
        return self._note(region, start, blocks)

    def _exhausted(self, blocks: int, candidates: Iterable[int]) -> DeviceOutOfMemory:
        usage = self.usage()
        asked = [usage[k] for k in candidates]
        free = sum(region.free_bytes for region in asked)
        largest = max(region.largest_free_bytes for region in asked)
        return DeviceOutOfMemory(
            "SPY401",
            f"cannot allocate {blocks << _BLOCK_BITS} bytes of device memory",
            expected=f"a free block of {blocks << _BLOCK_BITS} bytes within one region",
            found=f"{free} bytes free, largest free block {largest} bytes; "
            f"by region, largest block in brackets: {', '.join(map(str, asked))}",
        )


def _nothing_at(address_bytes: int) -> LaunchError:
    return LaunchError("SPY360", f"no allocation at {address_bytes:#x} to free")


def _blocks_of(size_bytes: int) -> int:
    if size_bytes < 0:
        raise LaunchError("SPY807", f"cannot allocate {size_bytes} bytes")
    return (size_bytes + STICK_BYTES - 1) >> _BLOCK_BITS or 1


def _checked_capacities(capacities_bytes: Sequence[int]) -> tuple[int, ...]:
    """One capacity per region, rounded down to whole blocks. LaunchError SPY807."""
    if len(capacities_bytes) != REGIONS or not all(
        0 <= size <= REGION_BYTES for size in capacities_bytes
    ):
        raise LaunchError(
            "SPY807",
            "these are no capacities of a card's regions",
            expected=f"{REGIONS} sizes of 0 to {REGION_BYTES} bytes",
            found=str(list(capacities_bytes)),
        )
    return tuple(size >> _BLOCK_BITS << _BLOCK_BITS for size in capacities_bytes)
