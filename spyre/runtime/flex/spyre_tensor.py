"""`SpyreTensor`: a tensor on a card, as launches and copies take it.

The pipeline RFC's SpyreTensor, with the layout fields of the newest specification. Which memory it
has is known by a handle only; the flex layer resolves it to an address.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from spyre.hw.device import DeviceTensor
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.runtime.memory.address import AllocationIndex, VirtualAddress
from spyre.runtime.memory.storage import DeviceStorage


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
        """Bytes it occupies on the device."""
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
