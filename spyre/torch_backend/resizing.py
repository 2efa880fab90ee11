"""Tensors over other storage: views set by hand, and `resize_`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from spyre.layout import contiguous_strides
from spyre.torch_backend.allocation import allocate_on, storage_elements
from spyre.torch_backend.compat import CPU_KEYS
from spyre.torch_backend.device_buffer import buffer_of
from spyre.torch_backend.host_copies import host_storage, write_storage

aten = torch.ops.aten


def resize_tensor(
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
