"""FlexAllocator: device memory behind opaque handles (runtime reference §4.1).

A handle is a number that does not encode the address; `resolve` and `composite` are for the flex
layer. Handles are never used twice. All methods may be called from any thread.

The lock is the one of the device's regions. An owner may be collected at any moment, also in a
thread that holds the lock: its handle is then queued in `finalizers`, and the next holder of the
lock frees it first.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, TypeAlias

from spyre.errors import DeviceOutOfMemory, LaunchError, UnsupportedError
from spyre.hw.device import Device
from spyre.hw.memory import PROGRAM_REGION, TENSOR_REGIONS, RegionUsage
from spyre.hw.spec import REGION_BITS, REGION_BYTES, STICK_BYTES
from spyre.interrupts import FinalizerQueue
from spyre.runtime.memory.flex_mode import FlexMode, read_mode, region_capacities

AllocationIndex = NewType("AllocationIndex", int)
"""An opaque handle of an allocation; 0 is the handle of an empty one."""

Place: TypeAlias = int | tuple[int, ...]
"""Device address of the one chunk of an allocation, or addresses of its chunks."""

NULL_INDEX = AllocationIndex(0)
"""Handle of an allocation of 0 bytes."""


@dataclass(frozen=True, slots=True)
class VirtualAddress:
    """A location in device memory; the size is kept beside it.

    ``region_id``: index of the region in VF mode, its physical base address in PF mode.
    ``offset``: bytes from the start of the region, a multiple of 128.
    """

    region_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.region_id:#x}:{self.offset:#x}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of an allocation: where it starts, its size in bytes, its memory domain."""

    address: VirtualAddress
    size_bytes: int
    domain_id: int = 0


@dataclass(frozen=True, slots=True)
class CompositeAddress:
    """Where an allocation lies: one chunk when it is bound, several when it is interleaved."""

    chunks: tuple[Chunk, ...]

    @property
    def size_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self.chunks)


def device_virtual_address(region: int, offset: int) -> int:
    """The address a program carries (DMVA): region · 16 GiB + offset (runtime reference §4.2)."""
    return region * REGION_BYTES + offset


class AllocationPolicy(StrEnum):
    """Bind: one chunk. Interleave: one chunk in each of several domains."""

    BIND = "Bind"
    INTERLEAVE = "Interleave"


class MemoryType(StrEnum):
    """What the memory is for: tensors never lie in segment 7, programs lie nowhere else."""

    TENSOR = "Tensor"
    PROGRAM = "Program"


@dataclass(frozen=True, slots=True)
class AllocationDirective:
    """Policy, domains and memory type of one allocation; LaunchError SPY802 if they do not agree.

    A domain is a memory region here. ``domains`` empty: the allocator chooses. One domain with
    Bind: that region or none. Interleave names two or more, each once.
    """

    policy: AllocationPolicy = AllocationPolicy.BIND
    domains: tuple[int, ...] = ()
    memory_type: MemoryType = MemoryType.TENSOR

    def __post_init__(self) -> None:
        self._check_domains()
        if self.policy is AllocationPolicy.BIND and len(self.domains) > 1:
            raise self._wrong("at most one domain", "Bind")
        if self.policy is AllocationPolicy.INTERLEAVE and len(self.domains) < 2:
            raise self._wrong("two domains or more", "Interleave")

    def _check_domains(self) -> None:
        program = self.memory_type is MemoryType.PROGRAM
        allowed = (PROGRAM_REGION,) if program else range(TENSOR_REGIONS)
        unique = len(set(self.domains)) == len(self.domains)
        if not unique or any(domain not in allowed for domain in self.domains):
            first, last = allowed[0], allowed[-1]
            wanted = f"only {first}" if program else f"different ones of {first} to {last}"
            raise self._wrong(wanted, self.memory_type)

    def _wrong(self, expected: str, what: str) -> LaunchError:
        return LaunchError(
            "SPY802",
            f"an allocation directive names domains that {what} cannot use",
            expected=expected,
            found=str(list(self.domains)),
        )


BIND = AllocationDirective()
PROGRAM = AllocationDirective(memory_type=MemoryType.PROGRAM)


@dataclass(frozen=True, slots=True)
class Counter:
    """A quantity now, its highest value since the last `reset_peak`, and all ever added to it."""

    current: int
    peak: int
    accumulated: int


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """What a FlexAllocator has handed out, and what its device has left.

    ``allocated_bytes`` (rounded to 128) and ``allocations``: through handles, of tensors and
    programs. ``regions``: all of them, with everything allocated on the device. The properties are
    about the regions for tensors.
    """

    allocated_bytes: Counter
    allocations: Counter
    regions: tuple[RegionUsage, ...]

    @property
    def reserved_bytes(self) -> int:
        return sum(region.capacity_bytes for region in self._tensor_regions)

    @property
    def free_bytes(self) -> int:
        """Bytes of the tensor regions that nobody has."""
        return sum(region.free_bytes for region in self._tensor_regions)

    @property
    def largest_free_bytes(self) -> int:
        """The largest tensor that could be allocated now."""
        return max(region.largest_free_bytes for region in self._tensor_regions)

    @property
    def fragmentation(self) -> float:
        """1 - (sum of each region's largest free block) / (free bytes), 0 when nothing is free.

        0: what is free in a region is one block, as on an empty card; towards 1: many small ones.
        Taken per region, since no allocation reaches from one region into the next.
        """
        free = self.free_bytes
        largest = sum(region.largest_free_bytes for region in self._tensor_regions)
        return 1 - largest / free if free else 0.0

    @property
    def _tensor_regions(self) -> Sequence[RegionUsage]:
        return self.regions[:TENSOR_REGIONS]


PressureHook = Callable[[], object]
"""Called without the lock when memory runs out; may drop references to storages."""


class FlexAllocator:
    """The memory of one device, for handles.

    ``mode``: default FLEX_DEVICE; ``capacities_bytes``: of the regions, default as the mode says.
    Takes over the regions of ``device``, which must hold no allocations (LaunchError SPY807); what
    the device allocates itself afterwards comes from the same regions. ``Device.reset`` makes all
    handles void; giving them back is then nothing, any other use LaunchError SPY800.
    """

    def __init__(
        self,
        device: Device,
        mode: FlexMode | None = None,
        capacities_bytes: Sequence[int] | None = None,
    ) -> None:
        self.device = device
        self.mode = mode or read_mode()
        self.pressure_hooks: list[PressureHook] = [gc.collect]
        self._regions = device.regions
        self._lock = device.regions.lock
        with self._lock:
            self._regions.resize(capacities_bytes or region_capacities(self.mode))
        self._places: dict[int, Place] = {}
        """By handle."""
        self._extra_references: dict[int, int] = {}
        """handle → references beyond the first."""
        self._exposed: set[int] = set()
        """Handles whose place somebody has been told; the memory of others cannot have changed."""
        self._uncleared: set[int] = set()
        """Handles of memory that need not be cleared."""
        self.finalizers: FinalizerQueue[AllocationIndex] = FinalizerQueue()
        """Handles whose owners have been collected."""
        self._last = self._void = 0
        """The last handle handed out; the last one that a device reset made void."""
        self._resets = device.resets
        self._bytes = self._peak_bytes = self._accumulated_bytes = self._peak_count = 0

    # --- allocations --------------------------------------------------------------------------

    def allocate(
        self, size_bytes: int, directive: AllocationDirective = BIND, uncleared: bool = False
    ) -> AllocationIndex:
        """Handle of ``size_bytes`` fresh bytes with one reference; the null handle for 0 bytes.

        Fresh memory reads as zero (as 0xAA bytes on a device that poisons). ``uncleared``: what an
        earlier owner that asked for the same has left may be there instead, if it is more than
        `KEEP_BYTES`; that saves the host giving pages back and forth. When there is no room,
        calls the pressure hooks without the lock and tries once more, then raises
        DeviceOutOfMemory SPY401. LaunchError SPY807 for a negative size.
        """
        if not size_bytes:
            return NULL_INDEX
        return self._allocate_or_collect(size_bytes, directive, uncleared, False)[0]

    def allocate_with_address(
        self, size_bytes: int, uncleared: bool = False
    ) -> tuple[AllocationIndex, int]:
        """`allocate` of at least a byte, and `device_address` of the handle."""
        index, place = self._allocate_or_collect(size_bytes, BIND, uncleared, True)
        assert isinstance(place, int)
        return index, place

    def deallocate(self, index: AllocationIndex) -> None:
        """Give one reference back; the last one frees. LaunchError SPY800 for a void handle."""
        if index:
            with self._lock:
                if self.finalizers.pending or self._resets != self.device.resets:
                    self._settle()
                self._drop(index)

    def give_back(self, index: AllocationIndex) -> None:
        """`deallocate` for owners, which may live longer than a reset of the device: nothing then.

        LaunchError SPY800 when somebody else gave the reference back.
        """
        if index and not self._is_void(index):
            self.deallocate(index)

    def retain(self, index: AllocationIndex) -> None:
        """Another reference to an allocation. LaunchError SPY800 for a void handle."""
        if index:
            with self._lock:
                self._settle()
                if index not in self._places:
                    raise _unknown(index)
                self._extra_references[index] = self._extra_references.get(index, 0) + 1

    # --- places -------------------------------------------------------------------------------

    def resolve(self, index: AllocationIndex) -> VirtualAddress:
        """Region and offset of an allocation.

        LaunchError SPY800 for a void handle, SPY801 for the null handle, UnsupportedError SPY808
        for an interleaved allocation, which launches cannot use (runtime reference §4.1).
        """
        return self.virtual_address(self.device_address(index))

    def device_address(self, index: AllocationIndex) -> int:
        """The address of an allocation that a program carries (DMVA); errors as `resolve`."""
        if not index:
            raise LaunchError("SPY801", "the null handle has no address")
        with self._lock:
            if self.finalizers.pending or self._resets != self.device.resets:
                self._settle()
            address = self._expose(index)
        if isinstance(address, int):
            return address
        raise UnsupportedError(
            "SPY808",
            "Interleaved not supported yet",
            found=f"an allocation of {len(address)} chunks",
        )

    def composite(self, index: AllocationIndex) -> CompositeAddress:
        """All chunks of an allocation, none for the null handle; sizes are rounded up to 128."""
        if not index:
            return CompositeAddress(())
        with self._lock:
            self._settle()
            chunks = self._expose(index)
            addresses = (chunks,) if isinstance(chunks, int) else chunks
            return CompositeAddress(tuple(self._chunk(address) for address in addresses))

    def device_virtual_address(self, address: VirtualAddress) -> int:
        """The DMVA of a location, whatever the mode says about region_id."""
        return device_virtual_address(self.mode.region_of(address.region_id), address.offset)

    # --- the whole ----------------------------------------------------------------------------

    def statistics(self) -> MemoryStatistics:
        """Counters and regions at one moment."""
        with self._lock:
            self._settle()
            return MemoryStatistics(
                Counter(self._bytes, self._peak_bytes, self._accumulated_bytes),
                Counter(len(self._places), self._peak_count, self._last),
                self._regions.usage(),
            )

    def collect(self) -> None:
        """Free what objects that are gone have left, now and not with the next call."""
        with self._lock:
            self._settle()

    def reset_peak(self) -> None:
        """Peaks start again at the current values."""
        with self._lock:
            self._settle()
            self._peak_bytes, self._peak_count = self._bytes, len(self._places)

    # --- under the lock -----------------------------------------------------------------------

    def _allocate_or_collect(
        self, size_bytes: int, directive: AllocationDirective, uncleared: bool, expose: bool
    ) -> tuple[AllocationIndex, Place]:
        try:
            return self._allocate(size_bytes, directive, uncleared, expose)
        except DeviceOutOfMemory:
            # Garbage may own device memory: cycles of objects wait for a collection (a hook).
            for hook in tuple(self.pressure_hooks):
                hook()
        return self._allocate(size_bytes, directive, uncleared, expose)

    def _allocate(
        self, size_bytes: int, directive: AllocationDirective, uncleared: bool, expose: bool
    ) -> tuple[AllocationIndex, Place]:
        with self._lock:
            if self.finalizers.pending or self._resets != self.device.resets:
                self._settle()
            place: Place
            if directive is BIND:
                place = self._regions.allocate(size_bytes, use_kept=uncleared)
            else:
                place = self._place(size_bytes, directive)
            if self.device.poison or self.device.leftovers.size_bytes:
                self._make_fresh(place, uncleared)
            self._last = index = self._last + 1
            if uncleared:
                self._uncleared.add(index)
            if expose:
                self._exposed.add(index)
            self._places[index] = place
            rounded = size_bytes + STICK_BYTES - 1 & -STICK_BYTES
            self._accumulated_bytes += rounded
            self._bytes = now = self._bytes + rounded
            if now > self._peak_bytes:
                self._peak_bytes = now
            if len(self._places) > self._peak_count:
                self._peak_count = len(self._places)
        return AllocationIndex(index), place

    def _place(self, size_bytes: int, directive: AllocationDirective) -> Place:
        if directive.policy is AllocationPolicy.INTERLEAVE:
            return self._interleave(size_bytes, directive.domains)
        if directive.memory_type is MemoryType.PROGRAM:
            return self._regions.allocate_program(size_bytes)
        if directive.domains:
            return self._regions.allocate_in(directive.domains[0], size_bytes)
        return self._regions.allocate(size_bytes)

    def _interleave(self, size_bytes: int, domains: tuple[int, ...]) -> tuple[int, ...]:
        """One chunk per domain, sticks shared out evenly; all of them or none."""
        sticks, more = divmod(-(-size_bytes // STICK_BYTES), len(domains))
        addresses: list[int] = []
        try:
            for k, domain in enumerate(domains):
                if count := sticks + (k < more):
                    addresses.append(self._regions.allocate_in(domain, count * STICK_BYTES))
        except DeviceOutOfMemory:
            for address in addresses:
                self._regions.free(address)
            raise
        return tuple(addresses)

    def _make_fresh(self, chunks: Place, uncleared: bool) -> None:
        for address in (chunks,) if isinstance(chunks, int) else chunks:
            self.device.make_fresh(address, self._regions.size_of(address), uncleared)

    def _settle(self) -> None:
        """Do what has happened without the lock: a device reset, references given back."""
        if self._resets != self.device.resets:
            self._forget()
        for index in self.finalizers.drain():
            if index > self._void:
                self._drop(index)

    def _forget(self) -> None:
        self._resets = self.device.resets
        self._void = self._last
        self._places.clear()
        self._extra_references.clear()
        self._exposed.clear()
        self._uncleared.clear()
        self._bytes = 0

    def _drop(self, index: int) -> None:
        extra = self._extra_references
        if extra and index in extra:
            if extra[index] == 1:
                del extra[index]
            else:
                extra[index] -= 1
            return
        chunks = self._places.pop(index, None)
        if chunks is None:
            raise _unknown(index)
        untouched = index not in self._exposed
        if not untouched:
            self._exposed.remove(index)
        uncleared = index in self._uncleared
        self._uncleared.discard(index)
        for address in (chunks,) if isinstance(chunks, int) else chunks:
            self._bytes -= self.device.release(address, untouched, uncleared)

    def _expose(self, index: int) -> Place:
        """The place of an allocation, which from now on may be written to."""
        chunks = self._places.get(index)
        if chunks is None:
            raise _unknown(index)
        self._exposed.add(index)
        return chunks

    def _is_void(self, index: int) -> bool:
        """Whether a device reset has made the handle void. Needs no lock."""
        return index <= self._void or self._resets != self.device.resets

    def virtual_address(self, address: int) -> VirtualAddress:
        """Region and offset of a device address (DMVA), as the mode says."""
        region = self.mode.region_id(address >> REGION_BITS)
        return VirtualAddress(region, address & REGION_BYTES - 1)

    def _chunk(self, address: int) -> Chunk:
        size_bytes = self._regions.size_of(address)
        return Chunk(self.virtual_address(address), size_bytes, address >> REGION_BITS)


def _unknown(index: int) -> LaunchError:
    return LaunchError(
        "SPY800",
        "nothing is allocated under this handle",
        expected="a handle of FlexAllocator.allocate that has references left",
        found=f"handle {index}",
    )
