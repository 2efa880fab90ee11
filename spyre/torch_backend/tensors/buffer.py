"""`DeviceBuffer`: the device memory behind one torch storage, or of a constant of the backend.

To torch a storage is a row of host elements; on the card it consists of sticks. The buffer holds
the shape, strides, dtype and layout that the sticks were laid out for, its *base*; tensors that
share the storage are views of the row. A storage of raw bytes (``UntypedStorage(n,
device="spyre")``, a loaded checkpoint) has no base until a tensor first reads it, and its bytes
stay on the host until then.

The buffer is an attribute of the storage's Python object, which lives as long as the C++ storage.
When C++ wraps a data_ptr again, the buffer is found by this pointer, so pointers are unique, and
valid on the host.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from spyre.errors import LaunchError
from spyre.hw.memory import KEEP_BYTES, DeviceTensor
from spyre.hw.spec import STICK_BYTES, host_offset
from spyre.interrupts import interrupts
from spyre.layout import SpyreTensorLayout, storage_bytes
from spyre.lru_cache import LruCache
from spyre.torch_backend.device import allocate_memory, card_at, tensor_memory

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice
    from spyre.runtime.memory import DeviceStorage

Ints = tuple[int, ...]

_by_pointer: dict[int, weakref.ref[DeviceBuffer]] = {}
MIN_POINTERS = 4096
_max_pointers = MIN_POINTERS
"""Entries of ``_by_pointer`` above which those of collected buffers are removed."""


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """Host extents (elements), dtype and device layout of a storage.

    ``size_bytes``: of device memory. ``layout_id``: equal for equal layouts.
    """

    shape: Ints
    strides: Ints
    dtype: str
    layout: SpyreTensorLayout
    size_bytes: int
    layout_id: int

    @classmethod
    def of(cls, shape: Ints, strides: Ints, dtype: str, layout: SpyreTensorLayout) -> StorageLayout:
        size_bytes = storage_bytes(layout, shape, dtype)
        return cls(
            shape, strides, dtype, layout, size_bytes, _layout_id((shape, strides, dtype, layout))
        )


class DeviceBuffer:
    """Memory of one storage. ``base`` is changed only by the thread that uses the tensor.

    ``host_bytes``: size of the storage in torch. ``pointer``: its data_ptr. ``base``: None while
    the content is ``raw`` host bytes, or empty. ``memory``: its allocation at ``address_bytes``,
    which launches keep alive. ``zero_padded``: elements of its sticks beyond the host elements are
    known to be zero.
    """

    __slots__ = (
        "__weakref__",
        "_anchor",
        "_count",
        "address_bytes",
        "base",
        "card",
        "host_bytes",
        "memory",
        "pointer",
        "raw",
        "zero_padded",
    )

    def __init__(self, card: FlexDevice, host_bytes: int) -> None:
        self.card = card
        self.host_bytes = host_bytes
        self.base: StorageLayout | None = None
        self.memory: DeviceStorage | None = None
        self.address_bytes = 0
        self.raw: npt.NDArray[np.uint8] | None = None
        self.zero_padded = False
        self._anchor: DeviceStorage | None = None
        self._count = 0
        self.pointer = 0

    @property
    def layout_id(self) -> int:
        """Equal for buffers with equal bases; 0 without a base."""
        return 0 if self.base is None else self.base.layout_id

    @property
    def tensor(self) -> DeviceTensor:
        """The base as a tensor at the buffer's address."""
        base = self.base
        assert base is not None
        return DeviceTensor(
            "tensor", self.address_bytes, base.layout, base.dtype, base.shape, base.strides
        )

    def allocate(self, base: StorageLayout) -> None:
        """Allocate new memory for ``base``, uninitialised if larger than `KEEP_BYTES`."""
        size_bytes = base.size_bytes
        with interrupts:
            self._take(*allocate_memory(self.card, size_bytes), size_bytes)
        self.base = base
        self.zero_padded = size_bytes <= KEEP_BYTES

    @classmethod
    def uncounted(cls, card: FlexDevice, base: StorageLayout) -> DeviceBuffer:
        """Return zeros for ``base`` without a torch storage, not counted in torch's statistics."""
        buffer = cls(card, 0)
        with interrupts:
            buffer.memory, buffer.address_bytes = allocate_memory(card, base.size_bytes, False)
        buffer.base = base
        buffer.zero_padded = True
        return buffer

    def set_raw(self, content: npt.NDArray[np.uint8]) -> None:
        """Hold ``content`` on the host until a tensor first reads it."""
        with interrupts:
            self._take(*allocate_memory(self.card, STICK_BYTES), STICK_BYTES)
        self.raw = content

    def _take(self, memory: DeviceStorage, address_bytes: int, counted_bytes: int) -> None:
        """Set the memory; the first one also gives the pointer. The caller holds interrupts off."""
        self.memory, self.address_bytes = memory, address_bytes
        # A storage's data_ptr cannot be changed, so the pointer stays when a new layout takes other
        # memory; keeping the first memory reserves the pointer.
        if not self.pointer:
            self._anchor = memory
            self.pointer = self._pointer_to(address_bytes)
            if _buffer_at(self.pointer) is not None:  # its owner has freed its first memory
                self._anchor, address_bytes = allocate_memory(self.card, STICK_BYTES)
                self.pointer = self._pointer_to(address_bytes)
            _remember_pointer(self)
        counted_bytes = counted_bytes + STICK_BYTES - 1 & -STICK_BYTES
        self._count = tensor_memory(self.card).count(self, counted_bytes, self._count)

    def _pointer_to(self, address_bytes: int) -> int:
        return self.card.device.memory.pointer + host_offset(address_bytes)

    def free(self) -> None:
        """Free the memory; base and pointer are kept, the content is lost.

        Launches submitted before keep the memory until they have run. The buffer must not be used
        before the next `allocate` or `set_raw`.
        """
        self.memory = self._anchor = self.raw = None
        self.address_bytes = 0
        self.leave_uncounted()

    @property
    def is_constant(self) -> bool:
        """True for a constant of the backend, which must not be written."""
        return not self._count and self.memory is not None

    def leave_uncounted(self) -> None:
        """Remove it from torch's statistics, as a constant of the backend."""
        with interrupts:
            self._count = tensor_memory(self.card).count(self, 0, self._count)


def _buffer_at(pointer: int) -> DeviceBuffer | None:
    """Return the buffer whose storage has this data_ptr, if it is alive."""
    reference = _by_pointer.get(pointer)
    return None if reference is None else reference()


def living_buffers(card: FlexDevice) -> list[DeviceBuffer]:
    """Return the buffers of storages on ``card``. Thread-safe."""
    known = (reference() for reference in list(_by_pointer.values()))
    return [buffer for buffer in known if buffer is not None and buffer.card is card]


def _remember_pointer(buffer: DeviceBuffer) -> None:
    """Register ``buffer`` for `_buffer_at`. Thread-safe."""
    # References without a callback: every operation creates and frees buffers, and most of them
    # take a pointer that is registered already.
    global _max_pointers
    _by_pointer[buffer.pointer] = weakref.ref(buffer)
    if len(_by_pointer) > _max_pointers:
        for pointer, reference in list(_by_pointer.items()):
            if reference() is None and _by_pointer.get(pointer) is reference:
                _by_pointer.pop(pointer, None)
        _max_pointers = max(2 * len(_by_pointer), MIN_POINTERS)


def _layout_id(signature: tuple[object, ...]) -> int:
    layout_id = _layout_ids.get(signature)
    if layout_id is None:
        layout_id = next(_next_layout_id)
        _layout_ids.put(signature, layout_id)
    return layout_id


MAX_LAYOUTS = 16384
_layout_ids: LruCache[tuple[object, ...], int] = LruCache(MAX_LAYOUTS)
_next_layout_id = itertools.count(1)


def buffer_of(tensor: torch.Tensor) -> DeviceBuffer:
    """Return the buffer behind a spyre tensor."""
    return buffer_of_storage(tensor.untyped_storage())


def buffer_of_storage(storage: torch.UntypedStorage) -> DeviceBuffer:
    """Return the buffer behind a storage; LaunchError SPY905 if its memory was freed."""
    try:
        buffer: DeviceBuffer = storage._spyre_buffer
    except AttributeError:
        if freed_buffer(storage) is not None:
            raise LaunchError(
                "SPY905",
                "the memory of this tensor's storage was freed",
                found="a use after UntypedStorage.resize_(0)",
                hint="resize_ it to its size first; its content is lost",
            ) from None
        known = _buffer_at(storage.data_ptr())
        buffer = known if known is not None else _empty_buffer(storage)
        attach(storage, buffer)
    return buffer


def detach(storage: torch.UntypedStorage) -> DeviceBuffer:
    """Free the memory of a storage's buffer and detach it; until `attach`, `buffer_of_storage`
    raises LaunchError SPY905.
    """
    buffer = buffer_of_storage(storage)
    buffer.free()
    storage._spyre_freed = buffer
    del storage._spyre_buffer
    return buffer


def freed_buffer(storage: torch.UntypedStorage) -> DeviceBuffer | None:
    """Return the buffer that `detach` took from a storage; None for other storages."""
    freed: DeviceBuffer | None = getattr(storage, "_spyre_freed", None)
    return freed


def attach(storage: torch.UntypedStorage, buffer: DeviceBuffer) -> None:
    """Make ``buffer`` the buffer of ``storage``, which keeps it alive."""
    storage._spyre_buffer = buffer


def _empty_buffer(storage: torch.UntypedStorage) -> DeviceBuffer:
    """Return a buffer for a storage that ATen created, which has no bytes. RuntimeError for a
    storage of another device or backend.
    """
    if storage.device.type != "spyre":
        raise RuntimeError(
            "Expected all tensors to be on the same device, "
            f"but found at least two devices, spyre:0 and {storage.device}!"
        )
    if storage.nbytes():
        raise RuntimeError(
            f"a spyre storage of {storage.nbytes()} bytes was not allocated by this backend"
        )
    return DeviceBuffer(card_at(storage.device.index or 0), 0)
