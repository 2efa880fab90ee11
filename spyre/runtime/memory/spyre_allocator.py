"""SpyreAllocator: the thin layer that torch's allocator interface stands on (documents' term)."""

from __future__ import annotations

from dataclasses import dataclass

from spyre.runtime.memory.flex_allocator import FlexAllocator
from spyre.runtime.memory.statistics import MemoryStatistics
from spyre.runtime.memory.storage import DeviceStorage


@dataclass(frozen=True, slots=True)
class SpyreAllocator:
    """Allocations of one card for torch. May be used from any thread."""

    flex: FlexAllocator
    device_index: int = 0

    def allocate(self, size_bytes: int) -> DeviceStorage:
        """Fresh device memory and its owner, which is what a DataPtr's context holds.

        0 bytes give an owner of the null handle. Raises as FlexAllocator.allocate.
        """
        index = self.flex.allocate(size_bytes)
        return DeviceStorage(self.flex, index, size_bytes, self.device_index)

    def report_and_delete(self, storage: DeviceStorage) -> None:
        """What torch calls when the last tensor of a storage is gone: counts and frees."""
        storage.close()

    def memory_stats(self) -> MemoryStatistics:
        """Statistics of the card's memory."""
        return self.flex.statistics()

    def empty_cache(self) -> None:
        """Does nothing: freed memory is free at once, no cache is kept (runtime reference §4.1)."""

    def record_stream(self, storage: DeviceStorage, stream: object) -> None:
        """Does nothing (runtime reference §4.1): a launch holds references until it is done."""
