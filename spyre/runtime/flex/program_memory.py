"""A piece of program memory with its address: binaries and correction tensors."""

from __future__ import annotations

from spyre.runtime.memory.storage import DeviceStorage


class ProgramMemory:
    """Bytes of an allocation in segment 7, kept alive. For the flex layer: it knows its address."""

    __slots__ = ("address_bytes", "size_bytes", "storage")

    def __init__(self, storage: DeviceStorage, address_bytes: int, size_bytes: int) -> None:
        self.storage = storage
        self.address_bytes = address_bytes
        self.size_bytes = size_bytes

    @classmethod
    def whole(cls, storage: DeviceStorage) -> ProgramMemory:
        """All of an allocation."""
        address_bytes = storage.allocator.device_address(storage.index)
        return cls(storage, address_bytes, storage.size_bytes)

    def split(self, count: int) -> list[ProgramMemory]:
        """``count`` equal pieces; the allocation lives as long as any of them."""
        size_bytes = self.size_bytes // count
        return [
            ProgramMemory(self.storage, self.address_bytes + k * size_bytes, size_bytes)
            for k in range(count)
        ]
