"""Operands of eager operations as the card sees them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spyre.layout.device_view import DeviceView, device_view
from spyre.torch_backend.device.dtypes import DTYPES
from spyre.torch_backend.tensors.buffer import DeviceBuffer, buffer_of
from spyre.torch_backend.tensors.copies import lay_out_for

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ScalarOperand:
    """A Python number of an operation, as a tensor of rank 0 in ``dtype``."""

    value: float
    dtype: str


Operand = torch.Tensor | ScalarOperand


def ready_buffer(tensor: torch.Tensor) -> DeviceBuffer:
    """The buffer of a tensor that is about to be used on the card: it has a base."""
    buffer = buffer_of(tensor)
    if buffer.base is None and buffer.host_bytes:
        lay_out_for(buffer, tensor)
    return buffer


def key_of(tensor: torch.Tensor, buffer: DeviceBuffer) -> Key:
    """What the kernel for this tensor depends on, its address apart."""
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        buffer.layout_id,
        buffer.zero_padded,
    )


def view_on_card(tensor: torch.Tensor, buffer: DeviceBuffer) -> DeviceView | None:
    """Where its elements lie; None if pitches cannot say, or another dtype is seen in its bits."""
    base = buffer.base
    if base is None or DTYPES[base.dtype] != tensor.dtype:
        return None
    return device_view(
        base.layout,
        base.shape,
        base.strides,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
    )
