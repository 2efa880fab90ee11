"""The aten operations every device has to have: new tensors, copies, item, resize, set.

Registered under PrivateUse1 by :mod:`.registration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from spyre.layout import contiguous_strides
from spyre.torch_backend.allocation import allocate, allocate_on, storage_elements
from spyre.torch_backend.compat import CPU_KEYS
from spyre.torch_backend.device_buffer import buffer_of
from spyre.torch_backend.host_copies import from_host, host_storage, to_host, write_storage

aten = torch.ops.aten


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """aten::empty.memory_format."""
    _check_options(layout, pin_memory)
    dtype = dtype or torch.get_default_dtype()
    stride = contiguous_strides(size)
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        like = torch.empty(size, device="meta", memory_format=memory_format)
        stride = like.stride()
    return allocate(size, stride, dtype, _index_of(device))


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """aten::empty_strided."""
    _check_options(layout, pin_memory)
    return allocate(size, stride, dtype or torch.get_default_dtype(), _index_of(device))


def _index_of(device: torch.device | None) -> int:
    return -1 if device is None or device.index is None else device.index


def _check_options(layout: torch.layout | None, pin_memory: bool | None) -> None:
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"spyre tensors are strided, not {layout}")
    if pin_memory:
        raise RuntimeError("only dense CPU tensors can be pinned, not spyre tensors")


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
    """aten::_copy_from: onto the card, from it, or within it."""
    if not is_spyre(target):
        target.copy_(to_host(source))
    elif is_spyre(source):
        from_host(target, to_host(source))
    else:
        from_host(target, source, non_blocking)
    return target


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """aten::_copy_from_and_resize."""
    target.resize_(source.size())
    copy_from(source, target)
    return target


def local_scalar_dense(tensor: torch.Tensor) -> Any:
    """aten::_local_scalar_dense: the one element, as a Python number."""
    return to_host(tensor).item()


def resize(
    tensor: torch.Tensor,
    size: Sequence[int],
    *,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """aten::resize_: more elements than the storage has give the tensor a new storage."""
    stride = contiguous_strides(size)
    offset = tensor.storage_offset()
    needed = (storage_elements(size, stride) + offset) * tensor.dtype.itemsize
    storage = tensor.untyped_storage()
    if 0 not in size and needed > storage.nbytes():
        buffer = buffer_of(tensor)
        elements = needed // tensor.dtype.itemsize
        shape = tuple(size) if offset == 0 else (elements,)
        new = allocate_on(buffer.card, shape, contiguous_strides(shape), tensor.dtype)
        if storage.nbytes():
            _copy_bytes(host_storage(buffer), new)
        storage = new.untyped_storage()
    return set_storage(tensor, storage, offset, size, stride)


def set_storage(
    tensor: torch.Tensor,
    storage: torch.UntypedStorage,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    """``tensor`` becomes a view of ``storage``; offset, sizes and strides in elements."""
    aten.set_.source_Storage_storage_offset.redispatch(
        CPU_KEYS, tensor, storage, offset, list(size), list(stride)
    )
    return tensor


def _copy_bytes(source: torch.UntypedStorage, target: torch.Tensor) -> None:
    """The first bytes of ``target``'s storage become those of ``source``."""
    buffer = buffer_of(target)
    content = torch.empty(0, dtype=torch.uint8).set_(source).numpy()
    whole = np.zeros(buffer.host_bytes, np.uint8)
    count = min(content.size, whole.size)
    whole[:count] = content[:count]
    write_storage(buffer, torch.from_numpy(whole).untyped_storage())


def is_spyre(value: object) -> bool:
    """True for a tensor on the card."""
    return isinstance(value, torch.Tensor) and value.device.type == "spyre"
