"""FlexAllocator: device memory behind opaque handles (runtime reference §4.1).

A handle is a number without relation to the address; `resolve` and `composite` are for the flex
layer. Handles are never reused. All methods may be called from any thread.

The lock is that of the device's regions. An owner may be collected at any moment, also in a thread
that holds the lock: its handle is then queued in `finalizers`; the next call that takes the lock
releases these handles first.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, NewType, NoReturn, TypeAlias

import msgspec

from spyre.errors import DeviceOutOfMemory, LaunchError, UnsupportedError
from spyre.hw.device import Device
from spyre.hw.memory import PROGRAM_REGION, TENSOR_REGIONS, DeviceTensor, RegionUsage
from spyre.hw.spec import REGION_BITS, REGION_BYTES, STICK_BYTES
from spyre.interrupts import FinalizerQueue, interrupts
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.runtime.memory.flex_mode import FlexMode, read_mode, region_capacities

AllocationIndex = NewType("AllocationIndex", int)
"""An opaque handle of an allocation; 0 is the handle of an empty one."""

Place: TypeAlias = int | tuple[int, ...]
"""Device address of the one chunk of an allocation, or addresses of its chunks."""

NULL_INDEX = AllocationIndex(0)
"""Handle of an allocation of 0 bytes."""


class VirtualAddress(msgspec.Struct, frozen=True):
    """A location in device memory.

    ``region_id``: index of the region in VF mode, its physical base address in PF mode.
    ``offset``: bytes from the start of the region, a multiple of 128.
    """

    region_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.region_id:#x}:{self.offset:#x}"


class Chunk(msgspec.Struct, frozen=True):
    """One contiguous piece of an allocation, with its memory domain."""

    address: VirtualAddress
    size_bytes: int
    domain_id: int = 0


class CompositeAddress(msgspec.Struct, frozen=True):
    """The chunks of an allocation: one if it is bound, several if it is interleaved."""

    chunks: tuple[Chunk, ...]

    @property
    def size_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self.chunks)


class AllocationPolicy(StrEnum):
    """Bind: one chunk. Interleave: one chunk in each of several domains."""

    BIND = "Bind"
    INTERLEAVE = "Interleave"


class MemoryType(StrEnum):
    """The use of the memory: programs are in segment 7, tensors in the others."""

    TENSOR = "Tensor"
    PROGRAM = "Program"


class AllocationDirective(msgspec.Struct, frozen=True):
    """Policy, domains and memory type of one allocation; LaunchError SPY802 if they conflict.

    A domain is a memory region. Without ``domains`` the allocator chooses. With Bind, one domain
    restricts the allocation to that region; Interleave takes two or more different domains.
    """

    policy: AllocationPolicy = AllocationPolicy.BIND
    domains: tuple[int, ...] = ()
    memory_type: MemoryType = MemoryType.TENSOR

    def __post_init__(self) -> None:
        program = self.memory_type is MemoryType.PROGRAM
        allowed = (PROGRAM_REGION,) if program else range(TENSOR_REGIONS)
        unique = len(set(self.domains)) == len(self.domains)
        if not unique or any(domain not in allowed for domain in self.domains):
            first, last = allowed[0], allowed[-1]
            wanted = f"only {first}" if program else f"different ones of {first} to {last}"
            raise self._wrong(wanted, self.memory_type)
        if self.policy is AllocationPolicy.BIND and len(self.domains) > 1:
            raise self._wrong("at most one domain", "Bind")
        if self.policy is AllocationPolicy.INTERLEAVE and len(self.domains) < 2:
            raise self._wrong("two domains or more", "Interleave")

    def _wrong(self, expected: str, what: str) -> LaunchError:
        message = f"an allocation directive names domains that {what} cannot use"
        return LaunchError("SPY802", message, expected=expected, found=str(list(self.domains)))


BIND = AllocationDirective()
PROGRAM = AllocationDirective(memory_type=MemoryType.PROGRAM)


class Counter(msgspec.Struct, frozen=True):
    """A quantity: its current value, its peak since the last `reset_peak`, the sum of increases."""

    current: int
    peak: int
    accumulated: int


class MemoryStatistics(msgspec.Struct, frozen=True):
    """The allocations of a FlexAllocator, and the usage of its device's regions.

    ``allocated_bytes`` (rounded to 128) and ``allocations``: those with handles, of tensors and
    programs. ``regions``: all regions, including allocations without handles. The properties cover
    the regions for tensors.
    """

    allocated_bytes: Counter
    allocations: Counter
    regions: tuple[RegionUsage, ...]

    @property
    def reserved_bytes(self) -> int:
        return sum(region.capacity_bytes for region in self._tensor_regions)

    @property
    def free_bytes(self) -> int:
        """Free bytes of the tensor regions."""
        return sum(region.free_bytes for region in self._tensor_regions)

    @property
    def largest_free_bytes(self) -> int:
        """Bytes of the largest tensor that could be allocated now."""
        return max(region.largest_free_bytes for region in self._tensor_regions)

    @property
    def _tensor_regions(self) -> Sequence[RegionUsage]:
        return self.regions[:TENSOR_REGIONS]


PressureHook = Callable[[], object]
"""Called without the lock when memory runs out; may release references to storages."""


class FlexAllocator:
    """Allocates the memory of one device behind handles.

    ``mode``: default FLEX_DEVICE; ``capacities_bytes``: of the regions, by default those of the
    mode. The regions of ``device`` must hold no allocations (LaunchError SPY807); allocations of
    the device itself use the same regions. ``Device.reset`` makes all handles void: releasing them
    does nothing, any other use raises LaunchError SPY800.
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
        self._exposed: set[int] = set()
        """Handles whose address was given out; the memory of others cannot have been written."""
        self._uncleared: set[int] = set()
        """Handles of memory that need not be cleared."""
        self.finalizers: FinalizerQueue[AllocationIndex] = FinalizerQueue()
        """Handles whose owners have been collected."""
        self._last = self._void = 0
        """The last handle allocated; the last one that a device reset made void."""
        self._resets = device.resets
        self._bytes = self._peak_bytes = self._accumulated_bytes = self._peak_count = 0

    # --- allocations --------------------------------------------------------------------------

    def allocate(
        self, size_bytes: int, directive: AllocationDirective = BIND, uncleared: bool = False
    ) -> AllocationIndex:
        """Handle of ``size_bytes`` fresh bytes; the null handle for 0 bytes.

        Fresh memory reads as zero (as 0xAA bytes on a device that poisons). ``uncleared``: more
        than `KEEP_BYTES` may have the contents of an earlier ``uncleared`` owner instead, which
        saves the host returning and committing pages. If there is no room, calls the pressure hooks
        without the lock and retries once, then raises DeviceOutOfMemory SPY401. LaunchError SPY807
        for a negative size.
        """
        if not size_bytes:
            return NULL_INDEX
        return self.allocate_place(size_bytes, uncleared, directive, expose=False)[0]

    def deallocate(self, index: AllocationIndex) -> None:
        """Free an allocation. LaunchError SPY800 for a void handle."""
        if index:
            with self._lock:
                if self.finalizers.pending or self._resets != self.device.resets:
                    self._settle()
                self._drop(index)

    def give_back(self, index: AllocationIndex) -> None:
        """`deallocate` for owners; does nothing after a reset of the device.

        LaunchError SPY800 if the handle was given back already.
        """
        # Needs no lock: a reset makes all handles before it void, and no other.
        if index > self._void and self._resets == self.device.resets:
            self.deallocate(index)

    # --- places -------------------------------------------------------------------------------

    def resolve(self, index: AllocationIndex) -> VirtualAddress:
        """Region and offset of an allocation.

        LaunchError SPY800 for a void handle, SPY801 for the null handle, UnsupportedError SPY808
        for an interleaved allocation, which launches cannot use (runtime reference §4.1).
        """
        return self.virtual_address(self.device_address(index))

    def device_address(self, index: AllocationIndex) -> int:
        """The device virtual address (DMVA) of an allocation; errors as `resolve`."""
        if not index:
            raise LaunchError("SPY801", "the null handle has no address")
        with self._lock:
            if self.finalizers.pending or self._resets != self.device.resets:
                self._settle()
            address = self._expose(index)
        if isinstance(address, int):
            return address
        message = "Interleaved not supported yet"
        raise UnsupportedError("SPY808", message, found=f"an allocation of {len(address)} chunks")

    def composite(self, index: AllocationIndex) -> CompositeAddress:
        """All chunks of an allocation, none for the null handle; sizes are rounded up to 128."""
        if not index:
            return CompositeAddress(())
        with self._lock:
            self._settle()
            chunks = self._expose(index)
            return CompositeAddress(
                tuple(
                    Chunk(
                        self.virtual_address(address),
                        self._regions.size_of(address),
                        address >> REGION_BITS,
                    )
                    for address in ((chunks,) if isinstance(chunks, int) else chunks)
                )
            )

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
        """Release the handles of collected owners now, instead of at the next call."""
        with self._lock:
            self._settle()

    def reset_peak(self) -> None:
        """Set the peaks to the current values."""
        with self._lock:
            self._settle()
            self._peak_bytes, self._peak_count = self._bytes, len(self._places)

    def allocate_place(
        self,
        size_bytes: int,
        uncleared: bool = False,
        directive: AllocationDirective = BIND,
        expose: bool = True,
        collects: bool = True,
    ) -> tuple[AllocationIndex, Place]:
        """`allocate` of at least one byte, with the address of the handle, those of its chunks if
        it is interleaved.

        ``expose``: the memory counts as written from now on. ``collects``: calls the pressure hooks
        if there is no room.
        """
        try:
            with self._lock:
                if self.finalizers.pending or self._resets != self.device.resets:
                    self._settle()
                place: Place | None = self._regions.take_kept(size_bytes) if uncleared else None
                is_kept = place is not None  # kept ranges are clear: they are small
                if place is None:
                    place = self._place(size_bytes, directive)
                if self.device.poison or (self.device.leftovers.size_bytes and not is_kept):
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
                self._peak_count = max(self._peak_count, len(self._places))
                return AllocationIndex(index), place
        except DeviceOutOfMemory:
            if not collects:
                raise
        # Uncollected cycles of objects may own device memory; one hook collects garbage.
        for hook in tuple(self.pressure_hooks):
            hook()
        return self.allocate_place(size_bytes, uncleared, directive, expose, False)

    # --- under the lock -----------------------------------------------------------------------

    def _make_fresh(self, place: Place, uncleared: bool) -> None:
        for address in (place,) if isinstance(place, int) else place:
            self.device.make_fresh(address, self._regions.size_of(address), uncleared)

    def _place(self, size_bytes: int, directive: AllocationDirective) -> Place:
        if directive.policy is AllocationPolicy.INTERLEAVE:
            return self._interleave(size_bytes, directive.domains)
        if directive.memory_type is MemoryType.PROGRAM:
            return self._regions.allocate_program(size_bytes)
        if directive.domains:
            return self._regions.allocate_in(directive.domains[0], size_bytes)
        return self._regions.allocate(size_bytes)

    def _interleave(self, size_bytes: int, domains: tuple[int, ...]) -> tuple[int, ...]:
        """One chunk per domain, sticks divided evenly; all of them or none."""
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

    def _settle(self) -> None:
        """Apply device resets and releases that happened without the lock."""
        if self._resets != self.device.resets:
            self._forget()
        for index in self.finalizers.drain():
            if index > self._void:
                self._drop(index)

    def _forget(self) -> None:
        self._resets = self.device.resets
        self._void = self._last
        self._places.clear()
        self._exposed.clear()
        self._uncleared.clear()
        self._bytes = 0

    def _drop(self, index: int) -> None:
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
        """The address of an allocation, which counts as written from now on."""
        chunks = self._places.get(index)
        if chunks is None:
            raise _unknown(index)
        self._exposed.add(index)
        return chunks

    def virtual_address(self, address: int) -> VirtualAddress:
        """Region and offset of a device address (DMVA), region_id in the form of the mode."""
        region = self.mode.region_id(address >> REGION_BITS)
        return VirtualAddress(region, address & REGION_BYTES - 1)


def _unknown(index: int) -> LaunchError:
    message = "nothing is allocated under this handle"
    expected = "a handle of FlexAllocator.allocate that was not given back"
    return LaunchError("SPY800", message, expected=expected, found=f"handle {index}")


# --- owners of device memory ---------------------------------------------------------------------


class DeviceStorage:
    """Owns an allocation and frees it when closed or collected.

    ``size_bytes``: as requested. ``device_index``: of its card. It exposes neither address nor
    pointer, and it cannot be copied or pickled, since that would free the memory twice. It may be
    closed from any thread, several times, and be collected at any moment, also at interpreter exit.
    The memory is free for the allocator's next call.
    """

    __slots__ = ("__weakref__", "_allocator", "_finalizer", "_held", "device_index", "size_bytes")

    def __init__(
        self,
        allocator: FlexAllocator,
        index: AllocationIndex,
        size_bytes: int,
        device_index: int = 0,
    ) -> None:
        self._allocator = allocator
        # A list, since `pop` is atomic: of two threads that close it, one gives the handle back.
        self._held = [index]
        self._finalizer = allocator.finalizers.register(self, index)
        self.size_bytes = size_bytes
        self.device_index = device_index

    @property
    def index(self) -> AllocationIndex:
        """The handle, for launches. LaunchError SPY800 after `close`."""
        references = self._held.copy()
        if not references:
            raise LaunchError("SPY800", "the storage has been closed")
        return references[0]

    @property
    def allocator(self) -> FlexAllocator:
        return self._allocator

    @property
    def closed(self) -> bool:
        return not self._held

    def close(self) -> None:
        """Free the memory; further calls do nothing."""
        with interrupts:
            try:
                index = self._held.pop()
            except IndexError:
                return
            self._allocator.finalizers.cancel(self._finalizer)
            self._allocator.give_back(index)

    def __enter__(self) -> DeviceStorage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"DeviceStorage(device={self.device_index}, size_bytes={self.size_bytes}{state})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a DeviceStorage owns device memory and cannot be copied or pickled")


class ProgramMemory(msgspec.Struct, eq=False):
    """A range of an allocation in segment 7, which it keeps alive, with its address."""

    storage: DeviceStorage
    address_bytes: int
    size_bytes: int

    def split(self, count: int) -> list[ProgramMemory]:
        """``count`` equal pieces; each of them keeps the allocation alive."""
        size_bytes = self.size_bytes // count
        return [
            ProgramMemory(self.storage, self.address_bytes + k * size_bytes, size_bytes)
            for k in range(count)
        ]


class SpyreTensor:
    """A tensor in device memory; it keeps its storage alive.

    ``shape``/``strides``: host extents and strides (elements) that the layout was made for.
    ``dtype``: torch dtype name. ``storage``: the allocation, shared by views. Immutable.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        layout: SpyreTensorLayout,
        storage: DeviceStorage,
        strides: Sequence[int] | None = None,
    ) -> None:
        self.name = name
        self.shape = tuple(shape)
        self.dtype = dtype
        self.layout = layout
        self.storage = storage
        self.strides = tuple(strides) if strides is not None else contiguous_strides(self.shape)

    @property
    def allocation_index(self) -> AllocationIndex:
        """The opaque handle of its memory."""
        return self.storage.index

    @property
    def size_bytes(self) -> int:
        return self.layout.device_bytes

    @cached_property
    def signature(self) -> tuple[object, ...]:
        """Shape, strides, dtype, layout and card: equal for tensors that launches may exchange."""
        return (self.shape, self.strides, self.dtype, self.layout, self.storage.allocator)

    @cached_property
    def address_bytes(self) -> int:
        """Address of its memory, for the flex layer; 0 for an empty tensor."""
        if not self.size_bytes:
            return 0
        return self.storage.allocator.device_address(self.storage.index)

    @cached_property
    def resolved(self) -> DeviceTensor:
        """The tensor with its address, for the flex layer."""
        return DeviceTensor(
            self.name, self.address_bytes, self.layout, self.dtype, self.shape, self.strides
        )

    def __repr__(self) -> str:
        return f"SpyreTensor({self.name}, shape={list(self.shape)}, dtype={self.dtype})"
