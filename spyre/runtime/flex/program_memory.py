"""A piece of program memory with its address: binaries and correction tensors."""

from __future__ import annotations

from spyre.runtime.memory.address import VirtualAddress
from spyre.runtime.memory.storage import DeviceStorage


class ProgramMemory:
    """An allocation in segment 7, kept alive. For the flex layer: it shows its address."""

    __slots__ = ("address_bytes", "size_bytes", "storage", "virtual_address")

    def __init__(self, storage: DeviceStorage) -> None:
        self.storage = storage
        self.size_bytes = storage.size_bytes
        self.address_bytes = storage.allocator.device_address(storage.index)
        self.virtual_address: VirtualAddress = storage.allocator.resolve(storage.index)
