"""The aten operations every device has to have: new tensors, copies, item, resize, set.

Registered under PrivateUse1 by :mod:`.registration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spyre.layout import contiguous_strides
from spyre.torch_backend.allocation import allocate
from spyre.torch_backend.card_copies import upload
from spyre.torch_backend.eager.copies import copy_on_card
from spyre.torch_backend.host_copies import download, to_host
from spyre.torch_backend.resizing import is_spyre


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
        download(source, target)
    elif is_spyre(source):
        copy_on_card(target, source)
    else:
        upload(target, source, non_blocking)
    return target


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """aten::_copy_from_and_resize."""
    target.resize_(source.size())
    copy_from(source, target)
    return target


def local_scalar_dense(tensor: torch.Tensor) -> Any:
    """aten::_local_scalar_dense: the one element, as a Python number."""
    return to_host(tensor).item()


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """aten::record_stream: nothing to do.

    Whatever is submitted to a stream keeps the memory it uses until it has run.
    """
