"""The memory regions of a card, their allocations, and the history of allocated bytes.

Up to eight regions; tensors go to regions 0 to 6, programs to region 7 and nowhere else (runtime
reference §4.1, §4.2). A region is 16 GiB of addresses, of which its capacity can be allocated.
Addresses and sizes are multiples of 128 bytes; all accounting is in rounded bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

import msgspec
import numpy as np

from spyre.errors import DeviceOutOfMemory, LaunchError
from spyre.hw.spec import REGION_BITS, REGION_BYTES, REGIONS, STICK_BYTES
from spyre.layout import Int64Array

PROGRAM_REGION = REGIONS - 1
TENSOR_REGIONS = REGIONS - 1
"""Number of regions for tensors, the first ones."""
_BLOCK_BITS = STICK_BYTES.bit_length() - 1
_OFFSET_MASK = REGION_BYTES - 1
_EVERY_TENSOR_REGION = range(TENSOR_REGIONS)
KEPT_BLOCKS = 512
"""Blocks of the largest allocation that is kept for reuse by size."""
MAX_KEPT_BLOCKS = 1 << 17
"""Most blocks that are kept in total."""


class RegionUsage(msgspec.Struct, frozen=True):
    """One region: its capacity, free bytes and largest free block, all in bytes."""

    region: int
    capacity_bytes: int
    free_bytes: int
    largest_free_bytes: int

    def __str__(self) -> str:
        return f"{self.region}: {self.free_bytes} ({self.largest_free_bytes})"


class RegionAllocator:
    """Allocates ranges of the regions, best fit inside a region.

    ``lock`` is for callers: no method takes it, and callers that share the allocator between
    threads (Device, FlexAllocator) hold it around every call. It is not reentrant. ``history``:
    records changes, if set. *Kept* ranges are free ranges that were not yet joined with their
    neighbours, for reuse by size: operations allocate and free tensors of few sizes.
    """

    def __init__(self, capacities_bytes: Sequence[int] = (REGION_BYTES,) * REGIONS) -> None:
        self.lock = threading.Lock()
        self.history: AllocationHistory | None = None
        self._set_capacities(capacities_bytes)

    def _set_capacities(self, capacities_bytes: Sequence[int]) -> None:
        self.capacities_bytes = _checked_capacities(capacities_bytes)
        self.reset()

    def reset(self) -> None:
        """Free all allocations."""
        if self.history is not None:
            for region, size_bytes in enumerate(self.allocated_bytes):
                self.history.note(region, -size_bytes)
        self._regions = [FreeBlocks(size >> _BLOCK_BITS) for size in self.capacities_bytes]
        self._sizes: dict[int, int] = {}
        """address → bytes of each allocation."""
        self._free = [region.free for region in self._regions[:TENSOR_REGIONS]]
        """Free blocks of each tensor region, without kept ones."""
        self._kept: dict[int, list[int]] = {}
        """size in blocks → heap of the addresses of kept ranges, the lowest first. A step that
        allocates and frees like the step before then gets the same addresses, for which its
        programs are linked already.
        """
        self._kept_blocks = 0

    @property
    def in_use(self) -> bool:
        return bool(self._sizes)

    @property
    def allocated_bytes(self) -> tuple[int, ...]:
        """Bytes allocated in each region."""
        self._join_kept()
        return tuple((each.capacity - each.free) << _BLOCK_BITS for each in self._regions)

    def resize(self, capacities_bytes: Sequence[int]) -> None:
        """Set the capacity of each region. LaunchError SPY807 while anything is allocated."""
        if tuple(capacities_bytes) == self.capacities_bytes:
            return
        if self._sizes:
            message = "regions cannot change their capacity while they hold allocations"
            found = f"{len(self._sizes)} allocations"
            raise LaunchError("SPY807", message, found=found, hint="reset the device first")
        self._set_capacities(capacities_bytes)

    def take_kept(self, size_bytes: int) -> int | None:
        """Device address of a kept range of this size, None if there is none; see `free`."""
        blocks = (size_bytes + STICK_BYTES - 1) >> _BLOCK_BITS
        if not (kept := self._kept.get(blocks)):
            return None
        self._kept_blocks -= blocks
        return self._hand_out(heappop(kept), blocks)

    def allocate(self, size_bytes: int, region: int | None = None) -> int:
        """Device address of ``size_bytes`` for tensors, rounded up to whole blocks, one at least.

        Tensor region ``region`` modulo 7 is used if it has room, otherwise the emptiest region with
        room. Regions fill evenly: the tensors of a kernel are in different regions, as in baked
        bundles, and do not contend for the same cache sets of the host (`REGION_SKEW_BYTES`). In
        return, a tensor nearly as large as a region needs a nearly empty card. DeviceOutOfMemory
        SPY401, LaunchError SPY807 below 0 bytes.
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
        """Like `allocate`, in tensor region ``region`` only."""
        return self._allocate_only_in(region % TENSOR_REGIONS, size_bytes)

    def allocate_program(self, size_bytes: int) -> int:
        """Like `allocate`, in the program region; the first program gets offset 0."""
        return self._allocate_only_in(PROGRAM_REGION, size_bytes)

    def size_of(self, address_bytes: int) -> int:
        """Bytes allocated at ``address_bytes``; LaunchError SPY360 if there is no allocation."""
        size = self._sizes.get(address_bytes)
        if size is None:
            raise _nothing_at(address_bytes)
        return size

    def free(self, address_bytes: int, keep: bool = False) -> int:
        """Release the range at ``address_bytes``; returns its size in bytes.

        ``keep``: keep it for `take_kept` if it is small.
        """
        size = self._sizes.pop(address_bytes, None)
        if size is None:
            raise _nothing_at(address_bytes)
        blocks = size >> _BLOCK_BITS
        if self.history is not None:
            self.history.note(address_bytes >> REGION_BITS, -size)
        if keep and blocks <= KEPT_BLOCKS and self._kept_blocks < MAX_KEPT_BLOCKS:
            self._kept_blocks += blocks
            heappush(self._kept.setdefault(blocks, []), address_bytes)
        else:
            self._join(address_bytes, blocks)
        return size

    def _join(self, address_bytes: int, blocks: int) -> None:
        """Join a free range with its region's free blocks."""
        region = address_bytes >> REGION_BITS
        self._regions[region].give((address_bytes & _OFFSET_MASK) >> _BLOCK_BITS, blocks)
        if region < TENSOR_REGIONS:
            self._free[region] += blocks

    def _join_kept(self) -> bool:
        """Join all kept ranges with their neighbours; True if there were any."""
        kept, self._kept, self._kept_blocks = self._kept, {}, 0
        for blocks, addresses in kept.items():
            for address_bytes in addresses:
                self._join(address_bytes, blocks)
        return bool(kept)

    def usage(self) -> tuple[RegionUsage, ...]:
        """The current usage of every region."""
        self._join_kept()
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
        return self._hand_out(region << REGION_BITS | start << _BLOCK_BITS, blocks)

    def _hand_out(self, address: int, blocks: int) -> int:
        self._sizes[address] = blocks << _BLOCK_BITS
        if self.history is not None:
            self.history.note(address >> REGION_BITS, blocks << _BLOCK_BITS)
        return address

    def _take_from_another(self, blocks: int) -> tuple[int, int]:
        regions = self._regions
        for region in sorted(_EVERY_TENSOR_REGION, key=lambda k: -self._free[k]):
            start = regions[region].take(blocks)
            if start is not None:
                return region, start
        if self._join_kept():
            return self._take_from_another(blocks)
        raise self._exhausted(blocks, _EVERY_TENSOR_REGION)

    def _allocate_only_in(self, region: int, size_bytes: int) -> int:
        blocks = _blocks_of(size_bytes)
        start = self._regions[region].take(blocks)
        if start is None and self._join_kept():
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
        message = "these are no capacities of a card's regions"
        expected = f"{REGIONS} sizes of 0 to {REGION_BYTES} bytes"
        raise LaunchError("SPY807", message, expected=expected, found=str(list(capacities_bytes)))
    return tuple(size >> _BLOCK_BITS << _BLOCK_BITS for size in capacities_bytes)


# --- free memory of one region -----------------------------------------------------------------

_WORD_BITS = 9
_MASK = (1 << _WORD_BITS) - 1
_BIT = tuple(1 << k for k in range(1 << _WORD_BITS))


class IntegerSet:
    """A set of integers from 0 on that finds the smallest member not below x at a fixed cost.

    Designed for values below 2**27, correct for larger ones. Not locked.
    """

    __slots__ = ("_low", "_middle", "_top")

    def __init__(self) -> None:
        self._low: dict[int, int] = {}
        self._middle: dict[int, int] = {}
        self._top = 0

    def add(self, value: int) -> None:
        """Add ``value``; it may be a member already."""
        low, bit = value >> _WORD_BITS, _BIT[value & _MASK]
        if low in self._low:
            self._low[low] |= bit
            return
        self._low[low] = bit
        middle, bit = low >> _WORD_BITS, _BIT[low & _MASK]
        if middle in self._middle:
            self._middle[middle] |= bit
            return
        self._middle[middle] = bit
        self._top |= 1 << middle

    def remove(self, value: int) -> None:
        """Remove ``value``, which must be a member (otherwise KeyError, or the set is corrupt)."""
        low = value >> _WORD_BITS
        word = self._low[low] ^ _BIT[value & _MASK]
        if word:
            self._low[low] = word
            return
        del self._low[low]
        middle = low >> _WORD_BITS
        word = self._middle[middle] ^ _BIT[low & _MASK]
        if word:
            self._middle[middle] = word
            return
        del self._middle[middle]
        self._top ^= 1 << middle

    def at_least(self, value: int) -> int | None:
        """The smallest member that is not below ``value``, None when there is none."""
        low = value >> _WORD_BITS
        word = self._low.get(low, 0) >> (value & _MASK)
        if word:
            return value + (word & -word).bit_length() - 1
        middle = low >> _WORD_BITS
        # words after this one: the bits above the word's own, hence one shift more
        word = self._middle.get(middle, 0) >> (low & _MASK) >> 1
        if word:
            low += 1 + _lowest(word)
        else:
            word = self._top >> middle >> 1
            if not word:
                return None
            middle += 1 + _lowest(word)
            low = middle << _WORD_BITS | _lowest(self._middle[middle])
        return low << _WORD_BITS | _lowest(self._low[low])

    def largest(self) -> int | None:
        """The largest member, None of an empty set."""
        if not self._top:
            return None
        middle = self._top.bit_length() - 1
        low = middle << _WORD_BITS | self._middle[middle].bit_length() - 1
        return low << _WORD_BITS | self._low[low].bit_length() - 1


def _lowest(word: int) -> int:
    """Position of the lowest bit that is set."""
    return (word & -word).bit_length() - 1


_DEAD_ALLOWED = 256


class FreeBlocks:
    """Free ranges of ``capacity`` blocks, numbered from 0: best fit, neighbours joined at once.

    Not locked. ``free``: number of blocks that are free.
    """

    __slots__ = ("_dead", "_ends", "_heaps", "_sizes", "_starts", "capacity", "free")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self._starts: dict[int, int] = {}
        """start → size of each free range."""
        self._ends: dict[int, int] = {}
        """end → size of each free range."""
        self._heaps: dict[int, list[int]] = {}
        """size → heap of starts; the first one is that of a range of this size."""
        self._sizes = IntegerSet()
        self._dead = 0
        if capacity:
            self._insert(0, capacity)

    def take(self, count: int) -> int | None:
        """Allocate ``count`` blocks and return their start; None if no range is long enough.

        They are the first blocks of the shortest range that is long enough, or of the lowest of
        several such ranges.
        """
        # an exact fit needs no search; otherwise the smallest size that is large enough
        size = count if count in self._heaps else self._sizes.at_least(count)
        if size is None:
            return None
        start = self._heaps[size][0]
        del self._starts[start]
        self._pop(size)
        self.free -= count
        if size == count:
            del self._ends[start + count]
        else:
            self._insert(start + count, size - count)
        return start

    def give(self, start: int, count: int) -> None:
        """Free blocks that `take` allocated; they join the neighbouring free ranges."""
        self.free += count
        end = start + count
        following = self._starts.pop(end, 0)
        if following:
            self._remove(end, following)
            count += following
        before = self._ends.pop(start, 0)
        if before:
            start -= before
            count += before
            del self._starts[start]
            self._remove(start, before)
        self._insert(start, count)

    def largest(self) -> int:
        """Blocks of the longest free range, 0 if there is none."""
        return self._sizes.largest() or 0

    def ranges(self) -> Iterator[tuple[int, int]]:
        """(start, size) of every free range, lowest first."""
        return iter(sorted(self._starts.items()))

    def _insert(self, start: int, size: int) -> None:
        self._starts[start] = self._ends[start + size] = size
        heap = self._heaps.get(size)
        if heap is None:
            self._heaps[size] = [start]
            self._sizes.add(size)
        else:
            heappush(heap, start)

    def _remove(self, start: int, size: int) -> None:
        """Remove the heap entry of a range that is in no other table any more."""
        if self._heaps[size][0] == start:
            self._pop(size)
            return
        # Its entry is inside the heap: it stays there, dead, until it surfaces or a rebuild.
        self._dead += 1
        if self._dead > len(self._starts) + _DEAD_ALLOWED:
            self._rebuild()

    def _pop(self, size: int) -> None:
        """Remove the first entry of a size, and dead ones that follow."""
        heap = self._heaps[size]
        if len(heap) == 1:
            del self._heaps[size]
            self._sizes.remove(size)
            return
        heappop(heap)
        starts = self._starts
        while heap and starts.get(heap[0]) != size:
            heappop(heap)
            self._dead -= 1
        if not heap:
            del self._heaps[size]
            self._sizes.remove(size)

    def _rebuild(self) -> None:
        heaps: dict[int, list[int]] = {}
        for start, size in self._starts.items():
            heaps.setdefault(size, []).append(start)
        for heap in heaps.values():
            heapify(heap)
        for size in self._heaps.keys() - heaps.keys():
            self._sizes.remove(size)
        self._heaps = heaps
        self._dead = 0


# --- allocated bytes over time ----------------------------------------------------------------


class AllocationHistory:
    """Allocated bytes of each region over time. ``begin_bytes``: allocated at the beginning.

    The regions' allocator calls `note` under its lock; read it after the last call.
    """

    def __init__(self, begin_bytes: Sequence[int] = (0,) * REGIONS) -> None:
        self.begin_bytes = tuple(begin_bytes)
        self._changes: list[tuple[int, int, int]] = []

    def note(self, region: int, change_bytes: int) -> None:
        """Record a change of the allocated bytes of ``region``, now."""
        self._changes.append((time.perf_counter_ns(), region, change_bytes))

    @property
    def times_ns(self) -> Int64Array:
        """Host clock of every change, ascending."""
        times_ns: Int64Array = self._columns[0]
        return times_ns

    @property
    def allocated_bytes(self) -> Int64Array:
        """Bytes in each region at the beginning and after each change, [changes + 1, REGIONS]."""
        _, region, change_bytes = self._columns
        changes = np.zeros((len(region) + 1, REGIONS), np.int64)
        changes[0] = self.begin_bytes
        changes[np.arange(1, len(region) + 1), region] = change_bytes
        return np.cumsum(changes, axis=0)

    @property
    def _columns(self) -> Int64Array:
        """Time, region and change of every change, int64 [3, changes]."""
        return np.array(self._changes, np.int64).reshape(-1, 3).T
