"""Owners of device memory: storages, tensors (`SpyreTensor` of the RFC) and program memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from spyre.errors import LaunchError
from spyre.hw.memory import DeviceTensor
from spyre.interrupts import interrupts
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.runtime.memory.allocator import AllocationIndex, FlexAllocator


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


@dataclass(slots=True, eq=False)
class ProgramMemory:
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
            self.name,
            self.address_bytes,
            self.layout,
            self.dtype,
            self.shape,
            self.strides,
        )

    def __repr__(self) -> str:
        return f"SpyreTensor({self.name}, shape={list(self.shape)}, dtype={self.dtype})"
