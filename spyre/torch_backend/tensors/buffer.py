"""`DeviceBuffer`: the device memory behind one torch storage, or of what the backend keeps itself.

A storage is a row of host elements to torch, and sticks on the card. The buffer knows which
tensor it was laid out for (its *base*: shape, strides, dtype, layout); tensors that share the
storage are views of that row. A storage that came as raw bytes (``UntypedStorage(n,
device="spyre")``, a loaded checkpoint) has no base until the first tensor reads it: until then its
bytes wait on the host.

The buffer is an attribute of the Python object of the storage, which lives as long as the C++
storage. Where C++ wraps a data_ptr again, it is found by that pointer; so pointers are unique, and
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
"""Pointers from which on those of buffers that are gone are looked for."""


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """What a storage is laid out for: host extents (elements), dtype and layout.

    ``size_bytes``: memory it takes. ``layout_id``: equal for equal ones.
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
    """Memory of one storage. Whoever changes ``base`` does so on the thread that uses the tensor.

    ``host_bytes``: of the storage, as torch sees it. ``pointer``: its data_ptr. ``base``: what it
    is laid out for; None while the content is ``raw`` host bytes, or empty. ``memory``: its
    allocation, from ``address_bytes`` on; launches keep it alive. ``zero_padded``: what lies beyond
    the host elements in its sticks is known to be zero.
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
        """Equal for buffers that are laid out alike; 0 without a base."""
        return 0 if self.base is None else self.base.layout_id

    @property
    def tensor(self) -> DeviceTensor:
        """The tensor it is laid out for, at its address."""
        base = self.base
        assert base is not None
        return DeviceTensor(
            "tensor", self.address_bytes, base.layout, base.dtype, base.shape, base.strides
        )

    def place(self, base: StorageLayout) -> None:
        """Give it new memory for ``base``; large memory may hold anything."""
        size_bytes = base.size_bytes
        with interrupts:
            self._take(*allocate_memory(self.card, size_bytes), size_bytes)
        self.base = base
        self.zero_padded = size_bytes <= KEEP_BYTES

    @classmethod
    def uncounted(cls, card: FlexDevice, base: StorageLayout) -> DeviceBuffer:
        """Zeros for ``base`` that no torch storage and no statistics of tensors know of."""
        buffer = cls(card, 0)
        with interrupts:
            buffer.memory, buffer.address_bytes = allocate_memory(card, base.size_bytes, False)
        buffer.base = base
        buffer.zero_padded = True
        return buffer

    def hold(self, content: npt.NDArray[np.uint8]) -> None:
        """Make it raw: ``content`` waits on the host for the first tensor that reads it."""
        with interrupts:
            self._take(*allocate_memory(self.card, STICK_BYTES), STICK_BYTES)
        self.raw = content

    def _take(self, memory: DeviceStorage, address_bytes: int, counted_bytes: int) -> None:
        """The first memory gives the pointer, and is kept for it. Interrupts are held off."""
        self.memory, self.address_bytes = memory, address_bytes
        # Torch cannot be given another data_ptr for a storage, so the pointer outlives the memory a
        # new layout takes; holding the first memory keeps it from being anybody else's.
        if not self.pointer:
            self._anchor = memory
            self.pointer = self._pointer_to(address_bytes)
            if _buffer_at(self.pointer) is not None:  # it gave its first memory away
                self._anchor, address_bytes = allocate_memory(self.card, STICK_BYTES)
                self.pointer = self._pointer_to(address_bytes)
            _remember_pointer(self)
        counted_bytes = counted_bytes + STICK_BYTES - 1 & -STICK_BYTES
        self._count = tensor_memory(self.card).count(self, counted_bytes, self._count)

    def _pointer_to(self, address_bytes: int) -> int:
        return self.card.device.memory.pointer + host_offset(address_bytes)

    def give_memory_back(self) -> None:
        """It keeps its base and its pointer, which nobody else is given, and loses the content.

        Launches that were submitted before keep the memory until they have run. Until `place` or
        `hold` nobody may use it.
        """
        self.memory = self._anchor = self.raw = None
        self.address_bytes = 0
        self.leave_uncounted()

    @property
    def is_constant(self) -> bool:
        """Whether the backend keeps it, a number or a sequence, so that nobody writes to it."""
        return not self._count and self.memory is not None

    def leave_uncounted(self) -> None:
        """Take its memory out of torch's statistics: it is a constant the backend keeps."""
        with interrupts:
            self._count = tensor_memory(self.card).count(self, 0, self._count)


def _buffer_at(pointer: int) -> DeviceBuffer | None:
    """The living buffer whose storage has this data_ptr."""
    reference = _by_pointer.get(pointer)
    return None if reference is None else reference()


def living_buffers(card: FlexDevice) -> list[DeviceBuffer]:
    """Those of storages on ``card``. Any thread."""
    known = (reference() for reference in list(_by_pointer.values()))
    return [buffer for buffer in known if buffer is not None and buffer.card is card]


def _remember_pointer(buffer: DeviceBuffer) -> None:
    """Let `_buffer_at` find it. Any thread."""
    # References without a callback: as many buffers come and go as operations run, and most of
    # them take a pointer that was known before.
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
    """The buffer behind a spyre tensor."""
    return buffer_of_storage(tensor.untyped_storage())


def buffer_of_storage(storage: torch.UntypedStorage) -> DeviceBuffer:
    """The buffer behind a storage on the card."""
    try:
        buffer: DeviceBuffer = storage._spyre_buffer
    except AttributeError:
        if freed_buffer(storage) is not None:
            raise LaunchError(
                "SPY905",
                "the memory of this tensor's storage was freed",
                found="a use after UntypedStorage.resize_(0)",
                hint="resize_ it to its size first; what it held is gone",
            ) from None
        known = _buffer_at(storage.data_ptr())
        buffer = known if known is not None else _empty_buffer(storage)
        attach(storage, buffer)
    return buffer


def detach(storage: torch.UntypedStorage) -> DeviceBuffer:
    """Take a storage's buffer from it and give back the memory, until `attach`: whoever asks for
    the buffer meanwhile gets LaunchError SPY905.
    """
    buffer = buffer_of_storage(storage)
    buffer.give_memory_back()
    storage._spyre_freed = buffer
    del storage._spyre_buffer
    return buffer


def freed_buffer(storage: torch.UntypedStorage) -> DeviceBuffer | None:
    """The buffer of a storage whose memory was given back; None for others."""
    freed: DeviceBuffer | None = getattr(storage, "_spyre_freed", None)
    return freed


def attach(storage: torch.UntypedStorage, buffer: DeviceBuffer) -> None:
    """Keep ``buffer`` for as long as ``storage`` lives."""
    storage._spyre_buffer = buffer


def _empty_buffer(storage: torch.UntypedStorage) -> DeviceBuffer:
    """Storages that ATen made by itself have no bytes. RuntimeError for one that is not ours."""
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
