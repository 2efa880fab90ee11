"""New tensors on the card: plain torch tensors created from DLPack capsules.

ATen maps device type kDLExtDev to PrivateUse1 and creates an ordinary tensor, whose storage owns no
memory. The structs are never freed and have no deleter: ATen would call it while an exception may
be pending, when no Python code can run. Instead, the storage object keeps the owner of the memory
alive (:mod:`.buffer`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.torch_backend.compat import from_dlpack
from spyre.torch_backend.device import DTYPES, card_at, name_of, warn_of_downcast
from spyre.torch_backend.tensors.buffer import DeviceBuffer, StorageLayout, attach

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice

EXTENSION_DEVICE = 12
"""kDLExtDev."""
MAX_RANK = 64
MAX_EXTENTS = 4096
MAX_STRUCTS = 4096
Ints = tuple[int, ...]

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_lock = threading.Lock()


_INTEGER, _UNSIGNED, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_FLOAT8_E4M3FN, _FLOAT8_E5M2FNUZ = 10, 13
TYPE_CODES = {
    torch.float16: _FLOAT,
    torch.bfloat16: _BFLOAT,
    torch.float32: _FLOAT,
    torch.bool: _BOOL,
    torch.int8: _INTEGER,
    torch.int16: _INTEGER,
    torch.int32: _INTEGER,
    torch.int64: _INTEGER,
    torch.uint8: _UNSIGNED,
    torch.float8_e4m3fn: _FLOAT8_E4M3FN,
    torch.float8_e5m2fnuz: _FLOAT8_E5M2FNUZ,
}
"""DLPack's type codes."""

Struct = ctypes.Array[ctypes.c_uint64]
"""A DLManagedTensor as eight words: data_ptr, device (type, index), rank with dtype (code, bits,
lanes), addresses of sizes and strides, offset, context, deleter; behind them sizes and strides.
"""
_structs: dict[tuple[Ints, Ints, torch.dtype, int], Struct] = {}
"""The first MAX_STRUCTS; never removed, since ATen reads the deleter when a tensor is freed."""
_other_struct: Struct = (ctypes.c_uint64 * (8 + 2 * MAX_RANK))()


def _struct_of(size: Ints, stride: Ints, dtype: torch.dtype, device_index: int) -> Struct:
    """Return the struct of such tensors, whatever their data_ptr; the caller holds the lock."""
    key = (size, stride, dtype, device_index)
    struct = _structs.get(key)
    if struct is not None:
        return struct
    rank = len(size)
    if rank > MAX_RANK:
        raise RuntimeError(f"spyre tensors have at most {MAX_RANK} dims, not {rank}")
    device = EXTENSION_DEVICE | device_index << 32
    rank_and_dtype = rank | TYPE_CODES[dtype] << 32 | 8 * dtype.itemsize << 40 | 1 << 48
    struct = _other_struct
    if len(_structs) < MAX_STRUCTS:
        struct = _structs[key] = (ctypes.c_uint64 * (8 + 2 * rank))()
    sizes = ctypes.addressof(struct) + 8 * 8
    words = (0, device, rank_and_dtype, sizes, sizes + 8 * rank, 0, 0, 0, *size, *stride)
    struct[: len(words)] = words
    return struct


def tensor_at(
    pointer: int, size: Ints, stride: Ints, dtype: torch.dtype, device_index: int
) -> torch.Tensor:
    """Return a tensor on ``spyre:device_index`` with a new storage whose data_ptr is ``pointer``.

    ``size`` and ``stride`` are in elements; the storage has the bytes they span. Thread-safe.
    """
    with _lock:  # all threads share a struct; from_dlpack copies its content
        struct = _struct_of(size, stride, dtype, device_index)
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
    return _tensor_over(buffer, size, stride, dtype)


@lru_cache(MAX_EXTENTS)
def _storage_of(
    size: Ints, stride: Ints, dtype: torch.dtype, layout: SpyreTensorLayout | None
) -> tuple[int, StorageLayout | None]:
    """Return the host bytes of a new tensor's storage and its base, None without elements."""
    name, elements = name_of(dtype), storage_elements(size, stride)
    if not elements:
        return 0, None
    if layout is not None:
        return elements * dtype.itemsize, StorageLayout.of(size, stride, name, layout)
    return elements * dtype.itemsize, default_base(size, stride, name)


def allocate_based(card: FlexDevice, base: StorageLayout) -> tuple[torch.Tensor, DeviceBuffer]:
    """Return a new tensor with the sizes, strides, dtype and layout of ``base``, and its buffer."""
    dtype = DTYPES[base.dtype]
    buffer = DeviceBuffer(card, prod(base.shape) * dtype.itemsize)
    buffer.allocate(base)
    return _tensor_over(buffer, base.shape, base.strides, dtype), buffer


def _tensor_over(
    buffer: DeviceBuffer, size: Ints, stride: Ints, dtype: torch.dtype
) -> torch.Tensor:
    if dtype is torch.int64:
        warn_of_downcast()
    tensor = tensor_at(buffer.pointer, size, stride, dtype, buffer.card.index)
    attach(tensor.untyped_storage(), buffer)
    return tensor


def allocate_raw(content: npt.NDArray[np.uint8], device_index: int = -1) -> torch.Tensor:
    """Return a byte tensor whose storage has ``content`` and gets its layout at the first read."""
    card = card_at(device_index)
    buffer = DeviceBuffer(card, content.size)
    if content.size:
        buffer.set_raw(content)
    return _tensor_over(buffer, (content.size,), (1,), torch.uint8)


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
