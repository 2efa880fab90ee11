"""The owner of a device allocation: what a tensor's storage holds on to."""

from __future__ import annotations

from typing import Any, NoReturn

from spyre.errors import LaunchError
from spyre.runtime.memory.address import AllocationIndex
from spyre.runtime.memory.flex_allocator import FlexAllocator


class DeviceStorage:
    """Holds one reference to an allocation and gives it back when closed or collected.

    ``size_bytes``: as asked for. ``device_index``: the card it is on. It shows neither address nor
    pointer, and it cannot be copied or pickled, since that would give the reference back twice.
    May be closed from any thread, several times, and be collected at any moment, also while the
    interpreter ends.
    """

    __slots__ = ("__weakref__", "_allocator", "_held", "device_index", "size_bytes")

    def __init__(
        self,
        allocator: FlexAllocator,
        index: AllocationIndex,
        size_bytes: int,
        device_index: int = 0,
    ) -> None:
        self._allocator = allocator
        self._held = [index]
        self.size_bytes = size_bytes
        self.device_index = device_index

    @property
    def index(self) -> AllocationIndex:
        """The handle, for launches. LaunchError SPY800 after `close`."""
        held = self._held.copy()
        if not held:
            raise LaunchError("SPY800", "the storage has been closed")
        return held[0]

    @property
    def allocator(self) -> FlexAllocator:
        """Who the allocation belongs to."""
        return self._allocator

    @property
    def closed(self) -> bool:
        """Whether the reference has been given back."""
        return not self._held

    def share(self) -> DeviceStorage:
        """Another owner of the same allocation, for a launch that must outlive this one."""
        index = self.index
        self._allocator.retain(index)
        return DeviceStorage(self._allocator, index, self.size_bytes, self.device_index)

    def close(self) -> None:
        """Give the reference back; nothing happens the second time."""
        try:
            index = self._held.pop()
        except IndexError:
            return
        self._allocator.give_back(index)

    def __del__(self) -> None:
        if hasattr(self, "_held"):
            self.close()

    def __enter__(self) -> DeviceStorage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"DeviceStorage(device={self.device_index}, size_bytes={self.size_bytes}{state})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a DeviceStorage owns device memory and cannot be copied or pickled")
