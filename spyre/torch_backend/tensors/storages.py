"""Methods of ``torch.UntypedStorage`` for storages on a card, and changing a tensor's storage.

To torch a storage is a row of host bytes; on the card it consists of sticks. Its C++ methods, which
read through data_ptr, would see the sticks; the functions here replace them. Like tensors, a
storage must not be used by two threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from spyre.layout import contiguous_strides
from spyre.runtime.flex import device_copy_plan
from spyre.torch_backend.compat import CPU_KEYS, ON_CARD, profiled
from spyre.torch_backend.tensors.allocation import (
    DeviceBuffer,
    allocate_on,
    allocate_raw,
    buffer_of,
    buffer_of_storage,
    detach,
    freed_buffer,
    storage_elements,
    tensor_over,
)
from spyre.torch_backend.tensors.copies import bytes_storage, host_storage, write_storage


def new_storage(size_bytes: int, device: torch.device) -> torch.UntypedStorage:
    """``torch.UntypedStorage(size_bytes, device="spyre")``: return raw zeros."""
    index = -1 if device.index is None else device.index
    return allocate_raw(np.zeros(size_bytes, np.uint8), index).untyped_storage()


def clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy on the same card, in the same layout."""
    source = buffer_of_storage(storage)
    copy = DeviceBuffer(source.card, source.host_bytes)
    if source.base is not None:
        copy.allocate(source.base)
        plan = device_copy_plan(source.tensor, copy.tensor)
        with profiled(ON_CARD):
            source.card.streams.current.copy(plan, [source.memory, copy.memory])
        copy.zero_padded = source.zero_padded
    elif source.raw is not None:
        copy.set_raw(source.raw.copy())
    return tensor_over(copy, (copy.host_bytes,), (1,), torch.uint8).untyped_storage()


def resize_storage(storage: torch.UntypedStorage, size_bytes: int) -> torch.UntypedStorage:
    """Resize to 0, which frees the memory, or from 0 to the original size.

    The content is then undefined, the layout unchanged. Other sizes are refused, because Python
    cannot change a storage's size in torch 2.13.
    """
    freed = freed_buffer(storage)
    whole_bytes = (buffer_of_storage(storage) if freed is None else freed).host_bytes
    if size_bytes not in (0, whole_bytes):
        raise NotImplementedError(
            f"a spyre storage cannot be resized (from {whole_bytes} to {size_bytes} bytes); "
            "tensor.resize_() works: it gives the tensor a new storage"
        )
    if freed is None and size_bytes == 0 and whole_bytes:
        detach(storage)
    elif freed is not None and size_bytes:
        if freed.base is None:
            freed.set_raw(np.zeros(whole_bytes, np.uint8))
        else:
            freed.allocate(freed.base)
        storage._spyre_buffer = freed
        del storage._spyre_freed
    return storage


def storage_bytes(storage: torch.UntypedStorage) -> int:
    """Return the bytes of a storage; 0 while its memory is freed."""
    return 0 if freed_buffer(storage) is not None else len(storage)


def set_item(storage: torch.UntypedStorage, index: Any, value: Any) -> torch.UntypedStorage:
    """Overwrite one byte or a slice."""
    buffer = buffer_of_storage(storage)
    content = host_storage(buffer)
    content[index] = value
    write_storage(buffer, content)
    return storage


def to_list(storage: torch.UntypedStorage) -> list[int]:
    values: list[int] = host_storage(buffer_of_storage(storage)).tolist()
    return values


def text(storage: torch.UntypedStorage) -> str:
    """Return the text that torch prints for a storage."""
    values = "\n ".join(map(str, to_list(storage)))
    kind = f"{torch.typename(storage)}(device={storage.device})"
    return f" {values}\n[{kind} of size {storage.nbytes()}]"


def cannot_share(storage: torch.UntypedStorage, *_: Any, **__: Any) -> NoReturn:
    """Raise RuntimeError: a storage on a card cannot be shared between processes."""
    raise RuntimeError(
        "spyre tensors cannot be shared between processes: the simulated card lives in this one. "
        "Send tensor.cpu() instead"
    )


METHODS: dict[str, Callable[..., Any]] = {
    "clone": clone,
    "resize_": resize_storage,
    "nbytes": storage_bytes,
    "__getitem__": lambda storage, index: host_storage(buffer_of_storage(storage))[index],
    "__setitem__": set_item,
    "fill_": lambda storage, value: set_item(storage, slice(None), value),
    "tolist": to_list,
    "__iter__": lambda storage: iter(to_list(storage)),
    "__repr__": text,
    "is_shared": lambda _: False,  # memory of a simulated card belongs to one process
    "share_memory_": cannot_share,
    "_share_fd_cpu_": cannot_share,
    "_share_filename_cpu_": cannot_share,
}
"""Replacements by the name of the method of ``torch.UntypedStorage``."""

aten = torch.ops.aten


def resize_tensor(
    tensor: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """aten::resize_: a tensor that needs more elements than its storage has gets a new storage.

    A tensor that has these sizes already keeps its strides, unless a memory format is given.
    """
    if memory_format is None and tensor.shape == tuple(size):
        return tensor
    stride = _strides(size, memory_format)
    offset = tensor.storage_offset()
    needed = (storage_elements(size, stride) + offset) * tensor.dtype.itemsize
    storage = tensor.untyped_storage()
    if 0 not in size and needed > storage.nbytes():
        buffer = buffer_of(tensor)
        elements = needed // tensor.dtype.itemsize
        shape = tuple(size) if offset == 0 else (elements,)
        new = allocate_on(buffer.card, shape, contiguous_strides(shape), tensor.dtype)
        if storage.nbytes():
            whole = buffer_of(new)
            held = torch.empty(0, dtype=torch.uint8, device="cpu").set_(host_storage(buffer))
            write_storage(whole, bytes_storage(held.numpy(), whole.host_bytes))
        storage = new.untyped_storage()
    return set_storage(tensor, storage, offset, size, stride)


def _strides(size: Sequence[int], memory_format: torch.memory_format | None) -> Sequence[int]:
    if memory_format in (None, torch.contiguous_format):
        return contiguous_strides(size)
    like = torch.empty(size, device="meta", memory_format=memory_format)
    strides: tuple[int, ...] = like.stride()
    return strides


def set_storage(
    tensor: torch.Tensor,
    storage: torch.UntypedStorage,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    """Make ``tensor`` a view of ``storage``; offset, sizes and strides in elements."""
    aten.set_.source_Storage_storage_offset.redispatch(
        CPU_KEYS, tensor, storage, offset, list(size), list(stride)
    )
    return tensor
