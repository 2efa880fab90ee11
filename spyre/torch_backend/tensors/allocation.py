"""`DeviceBuffer`, the device memory behind a torch storage or a constant, and tensors over it.

To torch a storage is a row of host elements; on the card it consists of sticks. The buffer holds
the shape, strides, dtype and layout that the sticks were laid out for, its *base*; tensors that
share the storage are views of the row. A storage of raw bytes (``UntypedStorage(n,
device="spyre")``, a loaded checkpoint) has no base until a tensor first reads it, and its bytes
stay on the host until then.

The buffer is an attribute of the storage's Python object, which lives as long as the C++ storage.
When C++ wraps a data_ptr again, the buffer is found by this pointer, so pointers are unique, and
valid on the host.

Tensors are created from DLPack capsules: ATen maps device type kDLExtDev to PrivateUse1 and creates
an ordinary tensor, whose storage owns no memory. The structs are never freed and have no deleter:
ATen would call it while an exception may be pending, when no Python code can run.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from spyre.errors import LaunchError
from spyre.hw.memory import KEEP_BYTES, DeviceTensor
from spyre.hw.spec import STICK_BYTES, host_offset
from spyre.interrupts import interrupts
from spyre.layout import SpyreTensorLayout, contiguous_strides, storage_bytes
from spyre.lru_cache import LruCache
from spyre.torch_backend.compat import from_dlpack
from spyre.torch_backend.device import (
    DTYPES,
    PARTS,
    allocate_memory,
    card_at,
    different_devices,
    name_of,
    tensor_memory,
    warn_of_downcast,
)

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice
    from spyre.runtime.memory import DeviceStorage

Ints = tuple[int, ...]

_by_pointer: dict[int, weakref.ref[DeviceBuffer]] = {}
MIN_POINTERS = 4096
_max_pointers = MIN_POINTERS
"""Entries of ``_by_pointer`` above which those of collected buffers are removed."""


class StorageLayout(msgspec.Struct, frozen=True):
    """Host extents (elements), dtype and device layout of a storage.

    ``size_bytes``: of device memory. ``layout_id``: equal for equal layouts. ``host_bytes``: of the
    elements on the host.
    """

    shape: Ints
    strides: Ints
    dtype: str
    layout: SpyreTensorLayout
    size_bytes: int
    layout_id: int
    host_bytes: int

    @classmethod
    def of(cls, shape: Ints, strides: Ints, dtype: str, layout: SpyreTensorLayout) -> StorageLayout:
        return _layouts.get_or_make(
            (shape, strides, dtype, layout),
            lambda: cls(
                *(shape, strides, dtype, layout, storage_bytes(layout, shape, dtype)),
                *(next(_next_layout_id), prod(shape) * DTYPES[dtype].itemsize),
            ),
        )


MAX_LAYOUTS = 16384
_layouts: LruCache[tuple[object, ...], StorageLayout] = LruCache(MAX_LAYOUTS)
_next_layout_id = itertools.count(1)


class DeviceBuffer(msgspec.Struct, eq=False, weakref=True):
    """Memory of one storage. ``base`` is changed only by the thread that uses the tensor.

    ``host_bytes``: size of the storage in torch. ``pointer``: its data_ptr. ``base``: None while
    the content is ``raw`` host bytes, or empty. ``memory``: its allocation at ``address_bytes``,
    which launches keep alive. ``zero_padded``: elements of its sticks beyond the host elements are
    known to be zero.
    """

    card: FlexDevice
    host_bytes: int
    base: StorageLayout | None = None
    memory: DeviceStorage | None = None
    address_bytes: int = 0
    raw: npt.NDArray[np.uint8] | None = None
    zero_padded: bool = False
    _anchor: DeviceStorage | None = None
    _count: int = 0
    pointer: int = 0

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
            self._anchor, origin = memory, self.card.device.memory.pointer
            self.pointer = origin + host_offset(address_bytes)
            known = _by_pointer.get(self.pointer)
            if known is not None and known() is not None:  # its owner has freed its first memory
                self._anchor, address_bytes = allocate_memory(self.card, STICK_BYTES)
                self.pointer = origin + host_offset(address_bytes)
            # References without a callback: every operation creates and frees buffers, and most of
            # them take a pointer that is registered already.
            _by_pointer[self.pointer] = weakref.ref(self)
            if len(_by_pointer) > _max_pointers:
                _forget_pointers()
        counted_bytes = counted_bytes + STICK_BYTES - 1 & -STICK_BYTES
        self._count = tensor_memory(self.card).count(self, counted_bytes, self._count)
        if _watch is not None:
            _watch(self, counted_bytes)

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
        if _watch is not None:
            _watch(self, 0)


_watch: Callable[[DeviceBuffer, int], None] | None = None


def watch_memory(watch: Callable[[DeviceBuffer, int], None] | None) -> None:
    """Call ``watch`` with every buffer whose memory changes, and its bytes; None: no longer."""
    global _watch
    _watch = watch


def living_buffers(card: FlexDevice) -> list[DeviceBuffer]:
    """Return the buffers of storages on ``card``. Thread-safe."""
    known = (reference() for reference in list(_by_pointer.values()))
    return [buffer for buffer in known if buffer is not None and buffer.card is card]


def _forget_pointers() -> None:
    """Remove the pointers of collected buffers. Thread-safe."""
    global _max_pointers
    for pointer, reference in list(_by_pointer.items()):
        if reference() is None and _by_pointer.get(pointer) is reference:
            _by_pointer.pop(pointer, None)
    _max_pointers = max(2 * len(_by_pointer), MIN_POINTERS)


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
        reference = _by_pointer.get(storage.data_ptr())
        known = None if reference is None else reference()
        buffer = _empty_buffer(storage) if known is None else known
        storage._spyre_buffer = buffer
    return buffer


def detach(storage: torch.UntypedStorage) -> DeviceBuffer:
    """Free the memory of a storage's buffer and detach it; `buffer_of_storage` then raises
    LaunchError SPY905.
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


def _empty_buffer(storage: torch.UntypedStorage) -> DeviceBuffer:
    """Return a buffer for a storage that ATen created, which has no bytes. RuntimeError for a
    storage of another device or backend.
    """
    if storage.device.type != "spyre":
        raise different_devices("spyre:0", storage.device)
    if storage.nbytes():
        raise RuntimeError(
            f"a spyre storage of {storage.nbytes()} bytes was not allocated by this backend"
        )
    return DeviceBuffer(card_at(storage.device.index or 0), 0)


# --- tensors from DLPack capsules ----------------------------------------------------------------

EXTENSION_DEVICE = 12
"""kDLExtDev."""
MAX_RANK = 64
MAX_EXTENTS = 4096
MAX_STRUCTS = 4096
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_lock = threading.Lock()

TYPE_CODES = {
    **dict.fromkeys((torch.int8, torch.int16, torch.int32, torch.int64), 0),
    torch.uint8: 1,
    **dict.fromkeys((torch.float16, torch.float32), 2),
    torch.bfloat16: 4,
    torch.complex64: 5,
    torch.bool: 6,
    torch.float8_e4m3fn: 10,
    torch.float8_e5m2fnuz: 13,
}
"""DLPack's type codes."""

Struct = ctypes.Array[ctypes.c_uint64]
"""A DLManagedTensor as eight words: data_ptr, device (type, index), rank with dtype (code, bits,
lanes), addresses of sizes and strides, offset, context, deleter; behind them sizes and strides.
"""
_structs: dict[tuple[Ints, Ints, torch.dtype, int], Struct] = {}
"""The first MAX_STRUCTS; never removed, since ATen reads the deleter when a tensor is freed."""
_other_struct: Struct = (ctypes.c_uint64 * (8 + 2 * MAX_RANK))()


def _new_struct(size: Ints, stride: Ints, dtype: torch.dtype, device_index: int) -> Struct:
    """Return the struct of such tensors, whatever their data_ptr; the caller holds the lock."""
    rank = len(size)
    if rank > MAX_RANK:
        raise RuntimeError(f"only tensors with up to {MAX_RANK} dims are supported")
    device = EXTENSION_DEVICE | device_index << 32
    rank_and_dtype = rank | TYPE_CODES[dtype] << 32 | 8 * dtype.itemsize << 40 | 1 << 48
    struct = _other_struct
    if len(_structs) < MAX_STRUCTS:
        struct = (ctypes.c_uint64 * (8 + 2 * rank))()
        _structs[size, stride, dtype, device_index] = struct
    sizes = ctypes.addressof(struct) + 8 * 8
    words = [0, device, rank_and_dtype, sizes, sizes + 8 * rank, 0, 0, 0, *size, *stride]
    struct[: len(words)] = words
    return struct


def tensor_at(
    pointer: int, size: Ints, stride: Ints, dtype: torch.dtype, device_index: int
) -> torch.Tensor:
    """Return a tensor on ``spyre:device_index`` with a new storage whose data_ptr is ``pointer``.

    ``size`` and ``stride`` are in elements; the storage has the bytes they span. Thread-safe.
    """
    with _lock:  # all threads share a struct; from_dlpack copies its content
        struct = _structs.get((size, stride, dtype, device_index))
        if struct is None:
            struct = _new_struct(size, stride, dtype, device_index)
        struct[0] = pointer
        capsule = _new_capsule(ctypes.addressof(struct), b"dltensor", None)
        tensor: torch.Tensor = from_dlpack(capsule)
    return tensor


def allocate(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device_index: int = -1,
    layout: SpyreTensorLayout | None = None,
) -> torch.Tensor:
    """Return an uninitialised tensor; ``device_index`` -1: on the current card.

    ``layout``: by default that of `default_base`. UnsupportedError SPY311 for the dtype,
    DeviceOutOfMemory.
    """
    card = card_at(device_index)
    return allocate_on(card, tuple(size), tuple(stride), dtype, layout)


def empty_strided_on(size: Ints, stride: Ints, *, device: str, dtype: torch.dtype) -> torch.Tensor:
    """`allocate` for compiled wrappers, which pass ``device`` as text, such as "spyre:0"."""
    return allocate_on(card_at(int(device.partition(":")[2] or -1)), size, stride, dtype)


def with_strides(tensor: torch.Tensor, size: Ints, stride: Ints) -> torch.Tensor:
    """Return the tensor, of sizes ``size``, or a copy where its strides (elements) are others."""
    assert tensor.shape == size, f"expected sizes {size}, found {tuple(tensor.shape)}"
    found = tensor.stride()
    if found == stride or all(n < 2 or a == b for n, a, b in zip(size, found, stride, strict=True)):
        return tensor
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def allocate_on(
    card: FlexDevice,
    size: Ints,
    stride: Ints,
    dtype: torch.dtype,
    layout: SpyreTensorLayout | None = None,
) -> torch.Tensor:
    host_bytes, base = _storage_of(size, stride, dtype, layout)
    buffer = DeviceBuffer(card, host_bytes)
    if base is not None:
        buffer.allocate(base)
    return tensor_over(buffer, size, stride, dtype)


@lru_cache(MAX_EXTENTS)
def _storage_of(
    size: Ints, stride: Ints, dtype: torch.dtype, layout: SpyreTensorLayout | None
) -> tuple[int, StorageLayout | None]:
    """Return the host bytes of a new tensor's storage and its base, None without elements."""
    name, elements = name_of(PARTS.get(dtype, dtype)), storage_elements(size, stride)
    if not elements:
        return 0, None
    if elements * dtype.itemsize >= 1 << 63:
        raise RuntimeError(f"Storage size calculation overflowed with sizes={list(size)}")
    if layout is not None:
        return elements * dtype.itemsize, StorageLayout.of(size, stride, name, layout)
    return elements * dtype.itemsize, usual_base(size, stride, dtype)


def allocate_based(
    card: FlexDevice, base: StorageLayout, extents: tuple[Ints, Ints, torch.dtype] | None = None
) -> tuple[torch.Tensor, DeviceBuffer]:
    """Return a new tensor in the layout of ``base``, and its buffer. ``extents``: its sizes,
    strides and dtype, by default those of ``base``.
    """
    buffer = DeviceBuffer(card, base.host_bytes)
    buffer.allocate(base)
    size, stride, dtype = extents or (base.shape, base.strides, DTYPES[base.dtype])
    return tensor_over(buffer, size, stride, dtype), buffer


def tensor_over(buffer: DeviceBuffer, size: Ints, stride: Ints, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor with a new storage, whose memory is that of ``buffer``."""
    if dtype is torch.int64:
        warn_of_downcast()
    tensor = tensor_at(buffer.pointer, size, stride, dtype, buffer.card.index)
    tensor.untyped_storage()._spyre_buffer = buffer
    return tensor


def allocate_raw(content: npt.NDArray[np.uint8], device_index: int = -1) -> torch.Tensor:
    """Return a byte tensor whose storage has ``content`` and gets its layout at the first read."""
    card = card_at(device_index)
    buffer = DeviceBuffer(card, content.size)
    if content.size:
        buffer.set_raw(content)
    return tensor_over(buffer, (content.size,), (1,), torch.uint8)


def storage_elements(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return the elements of the smallest storage for a tensor at offset 0."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


@lru_cache(4096)
def default_base(size: Ints, stride: Ints, dtype: str) -> StorageLayout:
    """Return the base of a new tensor's storage.

    For a dense tensor: its dims by falling stride, in the default layout of runtime reference §1.1,
    so that a transposed tensor has the layout of the contiguous one it is a view of. For a tensor
    with gaps or overlapping elements: one dim over the whole storage.
    """
    shape = size
    if stride != contiguous_strides(size):
        dims = range(len(size))
        by_stride = sorted(dims, key=lambda dim: -stride[dim])
        # the stride of an extent of 1 has no meaning, but it may hide that the others are dense
        orders = by_stride, sorted(by_stride, key=lambda dim: size[dim] > 1)
        dense = (_extents_of_dense(size, stride, order) for order in orders)
        shape = next(filter(None, dense), (storage_elements(size, stride),))
    layout = SpyreTensorLayout.from_host(shape, dtype)
    return StorageLayout.of(shape, contiguous_strides(shape), dtype, layout)


def usual_base(size: Ints, stride: Ints, dtype: torch.dtype) -> StorageLayout:
    """Return `default_base`, which of `PARTS` has one dim more. UnsupportedError SPY311."""
    if (part := PARTS.get(dtype)) is not None:
        size, stride, dtype = (*size, 2), (*(2 * n for n in stride), 1), part
    return default_base(size, stride, name_of(dtype))


def argument_base(
    size: Ints, stride: Ints, dtype: str, device_dims: tuple[Ints, Ints] | None = None
) -> StorageLayout:
    """Return the base that a compiled kernel requires of an argument: the default one, or the one
    of ``device_dims``, a device size and a stride map (`SpyreTensorLayout`).
    """
    base = default_base(size, stride, dtype)
    if device_dims is None:
        return base
    layout = SpyreTensorLayout(*device_dims, base.layout.device_dtype)
    return StorageLayout.of(size, stride, dtype, layout)


def _extents_of_dense(size: Ints, stride: Ints, order: Sequence[int]) -> Ints | None:
    """Return the extents in ``order`` if the dims are dense in this order, else None."""
    shape = tuple(size[dim] for dim in order)
    pairs = zip(order, contiguous_strides(shape), strict=True)
    is_dense = all(size[dim] == 1 or stride[dim] == step for dim, step in pairs)
    return shape if is_dense else None
