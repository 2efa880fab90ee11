"""Plain torch tensors over memory of the card, made from DLPack capsules.

ATen takes device type kDLExtDev for PrivateUse1 and makes an ordinary tensor with a storage of its
own that owns nothing. The one managed-tensor struct is immortal and has no deleter: ATen would
call it while an exception may be pending, where no Python code can run. Whoever owns the memory
is kept alive by the storage object instead (:mod:`.device_buffer`).
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache, lru_cache

import torch

from spyre.torch_backend.compat import from_dlpack

EXTENSION_DEVICE = 12
"""kDLExtDev."""
MAX_RANK = 64
KEPT_EXTENTS = 4096
Ints = tuple[int, ...]


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_managed = _ManagedTensor()
_tensor = _managed.tensor
_address = ctypes.addressof(_managed)
_lock = threading.Lock()


@cache
def _device(index: int) -> _Device:
    return _Device(EXTENSION_DEVICE, index)


_INTEGER, _UNSIGNED, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_FLOAT8_E4M3FN, _FLOAT8_E5M2FNUZ = 10, 13
_DATA_TYPES = {
    torch.float16: _DataType(_FLOAT, 16, 1),
    torch.bfloat16: _DataType(_BFLOAT, 16, 1),
    torch.float32: _DataType(_FLOAT, 32, 1),
    torch.bool: _DataType(_BOOL, 8, 1),
    torch.int8: _DataType(_INTEGER, 8, 1),
    torch.int16: _DataType(_INTEGER, 16, 1),
    torch.int32: _DataType(_INTEGER, 32, 1),
    torch.int64: _DataType(_INTEGER, 64, 1),
    torch.uint8: _DataType(_UNSIGNED, 8, 1),
    torch.float8_e4m3fn: _DataType(_FLOAT8_E4M3FN, 8, 1),
    torch.float8_e5m2fnuz: _DataType(_FLOAT8_E5M2FNUZ, 8, 1),
}


@lru_cache(KEPT_EXTENTS)
def _extents(size: Ints) -> ctypes.Array[ctypes.c_int64]:
    """An array for ``size``; whoever makes a tensor of it copies it."""
    rank = len(size)
    if rank > MAX_RANK:
        raise RuntimeError(f"spyre tensors have at most {MAX_RANK} dims, not {rank}")
    return (ctypes.c_int64 * rank)(*size)


def tensor_at(
    pointer: int, size: Ints, stride: Ints, dtype: torch.dtype, device_index: int
) -> torch.Tensor:
    """A tensor on ``spyre:device_index`` with a new storage whose data_ptr is ``pointer``.

    ``size`` and ``stride`` in elements; the storage has the bytes they span. Any thread.
    """
    shape, strides = _extents(size), _extents(stride)
    with _lock:
        _tensor.shape = shape
        _tensor.strides = strides
        _tensor.ndim = len(size)
        _tensor.data = pointer
        _tensor.dtype = _DATA_TYPES[dtype]
        _tensor.device = _device(device_index)
        found: torch.Tensor = from_dlpack(_new_capsule(_address, b"dltensor", None))
    return found
