"""Who owns device memory: storages, tensors over them, program memory, torch's allocator interface.

`SpyreTensor` is the pipeline RFC's, `SpyreAllocator` the documents' thin layer for torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from spyre.errors import LaunchError
from spyre.hw.memory import DeviceTensor
from spyre.interrupts import interrupts
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.runtime.memory.allocator import (
    AllocationIndex,
    FlexAllocator,
    MemoryStatistics,
    VirtualAddress,
)


class DeviceStorage:
    """Holds one reference to an allocation and gives it back when closed or collected; then the
    memory is free for the next call of the allocator.

    ``size_bytes``: as asked for. ``device_index``: the card it is on. It shows neither address nor
    pointer, and it cannot be copied or pickled, since that would give the reference back twice.
    May be closed from any thread, several times, and be collected at any moment, also while the
    interpreter ends.
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

    def share(self) -> DeviceStorage:
        """Another owner of the same allocation, for a launch that must outlive this one."""
        with interrupts:
            index = self.index
            self._allocator.retain(index)
            return DeviceStorage(self._allocator, index, self.size_bytes, self.device_index)

    def close(self) -> None:
        """Give the reference back; nothing happens the second time."""
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


@dataclass(frozen=True, slots=True)
class SpyreAllocator:
    """Allocations of one card for torch. May be used from any thread."""

    flex: FlexAllocator
    device_index: int = 0

    def allocate(self, size_bytes: int) -> DeviceStorage:
        """Fresh device memory and its owner, which is what a DataPtr's context holds.

        0 bytes give an owner of the null handle. Raises as FlexAllocator.allocate.
        """
        with interrupts:
            index = self.flex.allocate(size_bytes)
            return DeviceStorage(self.flex, index, size_bytes, self.device_index)

    def report_and_delete(self, storage: DeviceStorage) -> None:
        """What torch calls when the last tensor of a storage is gone: counts and frees."""
        storage.close()

    def memory_stats(self) -> MemoryStatistics:
        return self.flex.statistics()

    def empty_cache(self) -> None:
        """Does nothing: freed memory is free at once, no cache is kept (runtime reference §4.1)."""

    def record_stream(self, storage: DeviceStorage, stream: object) -> None:
        """Does nothing (runtime reference §4.1): a launch holds references until it is done."""


class ProgramMemory:
    """Bytes of an allocation in segment 7, kept alive. For the flex layer: it knows its address."""

    __slots__ = ("address_bytes", "size_bytes", "storage")

    def __init__(self, storage: DeviceStorage, address_bytes: int, size_bytes: int) -> None:
        self.storage = storage
        self.address_bytes = address_bytes
        self.size_bytes = size_bytes

    @classmethod
    def whole(cls, storage: DeviceStorage) -> ProgramMemory:
        address_bytes = storage.allocator.device_address(storage.index)
        return cls(storage, address_bytes, storage.size_bytes)

    def split(self, count: int) -> list[ProgramMemory]:
        """``count`` equal pieces; the allocation lives as long as any of them."""
        size_bytes = self.size_bytes // count
        return [
            ProgramMemory(self.storage, self.address_bytes + k * size_bytes, size_bytes)
            for k in range(count)
        ]


class SpyreTensor:
    """A tensor in device memory; it keeps its storage alive.

    ``shape``/``strides``: host extents and strides (elements) the layout was made for. ``dtype``:
    torch dtype name. ``storage``: the allocation, shared by views. Immutable.
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
        """What launches compare: shape, strides, dtype, layout."""
        return (self.shape, self.strides, self.dtype, self.layout)

    @cached_property
    def address_bytes(self) -> int:
        """Where its memory begins, for the flex layer."""
        return self.storage.allocator.device_address(self.storage.index)

    @cached_property
    def virtual_address(self) -> VirtualAddress:
        """Region and offset of its memory, for the flex layer."""
        return self.storage.allocator.resolve(self.storage.index)

    @cached_property
    def resolved(self) -> DeviceTensor:
        """The tensor with its address, for the flex layer."""
        return DeviceTensor(
            self.name,
            self.address_bytes,
            self.layout,
            self.dtype,
            self.shape,
            self.strides,
        )

    def __repr__(self) -> str:
        return f"SpyreTensor({self.name}, shape={list(self.shape)}, dtype={self.dtype})"
