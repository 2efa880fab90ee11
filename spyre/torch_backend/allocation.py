"""New tensors on the card."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.torch_backend.capsule import tensor_at
from spyre.torch_backend.cards import card_at
from spyre.torch_backend.device_buffer import Base, DeviceBuffer, attach
from spyre.torch_backend.downcast import warn_of_downcast
from spyre.torch_backend.dtypes import DTYPES, name_of

if TYPE_CHECKING:
    from spyre.runtime.flex.flex_device import FlexDevice

Ints = tuple[int, ...]


def allocate(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device_index: int = -1,
    layout: SpyreTensorLayout | None = None,
) -> torch.Tensor:
    """A tensor of anything; ``device_index`` -1: the current card.

    ``layout``: default that of `default_base`. UnsupportedError SPY311 for the dtype,
    DeviceOutOfMemory when there is no room.
    """
    card = card_at(device_index)
    return allocate_on(card, tuple(size), tuple(stride), dtype, layout)


def allocate_on(
    card: FlexDevice,
    size: Ints,
    stride: Ints,
    dtype: torch.dtype,
    layout: SpyreTensorLayout | None = None,
) -> torch.Tensor:
    """As `allocate`, on ``card``."""
    name = name_of(dtype)
    elements = storage_elements(size, stride)
    buffer = DeviceBuffer(card, elements * dtype.itemsize)
    if elements:
        base = (
            default_base(size, stride, name)
            if layout is None
            else Base.of(size, stride, name, layout)
        )
        buffer.place(base)
    return _tensor_over(buffer, size, stride, dtype)


def allocate_based(card: FlexDevice, base: Base) -> tuple[torch.Tensor, DeviceBuffer]:
    """A new tensor of exactly what ``base`` is laid out for, and its buffer."""
    dtype = DTYPES[base.dtype]
    buffer = DeviceBuffer(card, prod(base.shape) * dtype.itemsize)
    buffer.place(base)
    return _tensor_over(buffer, base.shape, base.strides, dtype), buffer


def _tensor_over(
    buffer: DeviceBuffer, size: Ints, stride: Ints, dtype: torch.dtype
) -> torch.Tensor:
    if dtype is torch.int64:
        warn_of_downcast()
    found = tensor_at(buffer.pointer, size, stride, dtype, buffer.card.index)
    attach(found.untyped_storage(), buffer)
    return found


def allocate_raw(content: npt.NDArray[np.uint8], device_index: int = -1) -> torch.Tensor:
    """A byte tensor whose storage holds ``content``, to be laid out by whoever reads it first."""
    card = card_at(device_index)
    buffer = DeviceBuffer(card, content.size)
    if content.size:
        buffer.hold(content)
    return _tensor_over(buffer, (content.size,), (1,), torch.uint8)


def storage_elements(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of the smallest storage that holds a tensor of these extents from its first on."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


@lru_cache(4096)
def default_base(size: Ints, stride: Ints, dtype: str) -> Base:
    """The base of a new tensor's storage.

    For dense tensors the dims by falling stride, in the default layout of runtime reference §1.1;
    so a transposed tensor is laid out as the contiguous one it is a view of. Storages of tensors
    with gaps or overlapping elements are laid out as a row.
    """
    order = sorted(range(len(size)), key=lambda dim: -stride[dim])
    shape = tuple(size[dim] for dim in order)
    if stride == contiguous_strides(size):
        shape = size
    elif contiguous_strides(shape) != tuple(stride[dim] for dim in order):
        shape = (storage_elements(size, stride),)
    layout = SpyreTensorLayout.from_host(shape, dtype)
    return Base.of(shape, contiguous_strides(shape), dtype, layout)
