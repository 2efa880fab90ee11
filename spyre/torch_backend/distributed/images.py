"""The bytes that collectives send of a tensor: its sticks in device order, or its codes in C order.

Values are never converted, because the card's floats have more range than the host's. Sticks are
those of a contiguous tensor in default layout, into which other tensors are copied first; so the
form depends only on the operation, dtype and sizes, which all ranks know. Arrays of bytes are
[rows, columns].
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import torch

from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.runtime.arguments import HostTensor
from spyre.runtime.dma import host_like
from spyre.runtime.flex import to_device_plan, to_host_plan
from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.factories import copy_from
from spyre.torch_backend.tensors import (
    DeviceBuffer,
    buffer_of,
    default_base,
    is_whole,
    lay_out_for,
    raw_tensor,
    relayout,
)

Bytes = npt.NDArray[np.uint8]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` if it is contiguous and a whole storage in default layout, else a copy that
    is; waits.
    """
    buffer = buffer_of(tensor)
    if buffer.base is None and tensor.numel():
        lay_out_for(buffer, tensor)
    if tensor.numel() == 0 or _is_plain(tensor, buffer):
        return tensor
    copy = relayout(tensor)
    buffer.card.streams.current.synchronize()
    return copy


def _is_plain(tensor: torch.Tensor, buffer: DeviceBuffer) -> bool:
    if not is_whole(tensor) or buffer.base is None:
        return False
    return buffer.base.layout == plain_layout(tuple(tensor.size()), tensor.dtype)


def plain_layout(size: tuple[int, ...], dtype: torch.dtype) -> SpyreTensorLayout:
    """Return the layout whose sticks are sent."""
    return default_base(size, contiguous_strides(size), name_of(dtype)).layout


def sticks(tensor: torch.Tensor) -> Bytes:
    """Return the device bytes of a plain tensor, one writable row that keeps the memory alive."""
    buffer = buffer_of(tensor)
    if buffer.base is None or tensor.numel() == 0:
        return np.empty((1, 0), np.uint8)
    size_bytes = buffer.base.layout.device_bytes
    content = buffer.card.device.memory.view(buffer.address_bytes, size_bytes)
    # The base of an array over this object is the object, which keeps the memory.
    interface = content.__array_interface__
    owner = SimpleNamespace(__array_interface__=interface, memory=buffer.memory)
    return np.asarray(owner).reshape(1, -1)


def without_padding(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor if the padding of its sticks is zero, else a copy with such padding."""
    if buffer_of(tensor).zero_padded or tensor.numel() == 0:
        return tensor
    copy = torch.empty_like(tensor)
    put_codes(copy, codes(tensor))
    return copy


def note_written(tensor: torch.Tensor) -> None:
    """Mark the sticks of a plain tensor as written; its padding may no longer be zero."""
    buffer = buffer_of(tensor)
    buffer.zero_padded = False
    memory = buffer.card.device.memory
    if buffer.base is not None and memory.observer is not None:
        memory.observer.written(buffer.address_bytes, buffer.base.layout.device_bytes)


def slices(whole: torch.Tensor, part_size: tuple[int, ...], count: int) -> list[Bytes] | None:
    """Return the sticks of ``count`` equal parts of a plain tensor along its first dim.

    None if a separate tensor of ``part_size`` would not have the same sticks in the same order; the
    parts are then sent as codes.
    """
    size = tuple(whole.size())
    if len(size) != len(part_size) or size != (count * part_size[0], *part_size[1:]):
        return None
    layout = plain_layout(size, whole.dtype)
    part_layout = plain_layout(part_size, whole.dtype)
    if len(size) == 1 and part_size[0] % part_layout.device_size[-1]:
        return None  # a part would begin inside of a stick
    axis = _axis_of_first_dim(layout, part_layout, count)
    if axis is None:
        return None
    rows = prod(layout.device_size[:axis])
    image = sticks(whole).reshape(rows, -1)
    columns = image.shape[1] // count
    return [image[:, k * columns : (k + 1) * columns] for k in range(count)]


def _axis_of_first_dim(whole: SpyreTensorLayout, part: SpyreTensorLayout, count: int) -> int | None:
    """Return the device axis along which ``count`` parts form the whole; None if others differ."""
    pairs = list(zip(whole.device_size, part.device_size, strict=True))
    differing = [axis for axis, (large, small) in enumerate(pairs) if large != small]
    if len(differing) != 1 or pairs[differing[0]][0] != count * pairs[differing[0]][1]:
        return None
    return differing[0]


def codes(tensor: torch.Tensor) -> Bytes:
    """Return a copy of a tensor's codes in C order, one row; waits for the current stream."""
    if tensor.numel() == 0:
        return np.empty((1, 0), np.uint8)
    buffer = buffer_of(plain(tensor))
    raw = raw_tensor(buffer)
    host = host_like(raw)
    stream = buffer.card.streams.current
    stream.copy(to_host_plan(raw, host), [buffer.memory])
    stream.synchronize()
    return host.storage.view(np.uint8).reshape(1, -1)


def code_bytes(tensor: torch.Tensor) -> int:
    """Return the size of a tensor's codes in bytes."""
    size = tuple(tensor.size())
    if tensor.numel() == 0:
        return 0
    elements: int = tensor.numel()
    return elements * (plain_layout(size, tensor.dtype).data_format.bits // 8)


def put_codes(tensor: torch.Tensor, content: Bytes) -> None:
    """Overwrite a tensor with codes in C order; waits."""
    if tensor.numel() == 0:
        return
    buffer = buffer_of(tensor)
    if buffer.base is None:
        lay_out_for(buffer, tensor)
    target = tensor
    if not _is_plain(tensor, buffer):
        target = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    target_buffer = buffer_of(target)
    raw = raw_tensor(target_buffer)
    like = host_like(raw)
    storage = np.ascontiguousarray(content).reshape(-1).view(like.storage.dtype)
    host = HostTensor(like.name, like.dtype_name, like.shape, like.strides, 0, storage)
    stream = target_buffer.card.streams.current
    stream.copy(to_device_plan(host, raw), [target_buffer.memory])
    target_buffer.zero_padded = True
    if target is not tensor:
        copy_from(target, tensor)
    stream.synchronize()
