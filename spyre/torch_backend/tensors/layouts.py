"""Device layouts in the torch interface.

Every tensor on a card has the `SpyreTensorLayout` of its storage; views have that of their base.
``device_layout=`` of ``Tensor.to`` and ``torch.empty`` selects another layout than the default
(runtime reference §1).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from spyre.errors import LaunchError
from spyre.hw.memory import DeviceTensor
from spyre.layout import SpyreTensorLayout, contiguous_strides, exact_geometry
from spyre.torch_backend.compat import parse_to
from spyre.torch_backend.device import card_at, name_of
from spyre.torch_backend.tensors.allocation import Ints, allocate_on, buffer_of, default_base

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice

__all__ = ["SpyreTensorLayout", "device_tensor_layout", "empty_in_layout", "to_layout"]

HALVES = (torch.float16, torch.bfloat16)


def device_tensor_layout(tensor: torch.Tensor) -> SpyreTensorLayout:
    """Return the layout of the storage behind a spyre tensor.

    A storage of raw bytes gets its layout from this tensor. For a tensor without elements it is the
    default layout. LaunchError SPY903 for a tensor on another device.
    """
    if tensor.device.type != "spyre":
        raise LaunchError(
            "SPY903",
            "only tensors on a spyre device have a device layout",
            found=f"a tensor on {tensor.device}",
            hint="x.to('spyre').device_tensor_layout()",
        )
    buffer = buffer_of(tensor)
    if buffer.base is None and tensor.numel():
        from spyre.torch_backend.tensors.copies import lay_out_for

        lay_out_for(buffer, tensor)
    if buffer.base is not None:
        return buffer.base.layout
    return default_base(tuple(tensor.size()), tuple(tensor.stride()), name_of(tensor.dtype)).layout


def to_layout(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``tensor.to(…, device_layout=layout)``: return a differentiable copy in that layout, or
    ``tensor`` itself if device, dtype and layout are equal and ``copy`` is not set.
    """
    layout = kwargs.pop("device_layout")
    copy = kwargs.pop("copy", False)
    device, dtype, non_blocking, _ = parse_to(*args, **kwargs)
    card = _card_for(tensor.device if device is None else device)
    dtype = dtype or tensor.dtype
    same = tensor.device == torch.device("spyre", card.index) and tensor.dtype == dtype
    if same and not copy and device_tensor_layout(tensor) == layout:
        return tensor
    like = torch.empty_like(tensor, device="meta")
    result = _new(card, tuple(like.size()), tuple(like.stride()), dtype, layout)
    return result.copy_(tensor, non_blocking)


def empty_in_layout(original: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``torch.empty(…, device="spyre", device_layout=layout)``."""
    layout = kwargs.pop("device_layout")
    card = _card_for(kwargs.pop("device", None) or torch.get_default_device())
    like = original(*args, **kwargs, device="meta")
    result = _new(card, tuple(like.size()), tuple(like.stride()), like.dtype, layout)
    return result.requires_grad_(like.requires_grad)


class _NewFactors(threading.local):
    """``depth``: the number of `new_factors` blocks that the thread is in."""

    depth = 0


_new_factors = _NewFactors()


@contextmanager
def new_factors() -> Iterator[None]:
    """Give tensors that torch allocates in the block `factor_layout`, where there is one."""
    _new_factors.depth += 1
    try:
        yield
    finally:
        _new_factors.depth -= 1


def new_layout(size: Ints, stride: Ints, dtype: torch.dtype) -> SpyreTensorLayout | None:
    """Return the layout of a tensor that torch allocates; None for the default one."""
    return factor_layout(size, stride, dtype) if _new_factors.depth else None


def as_factor(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight converted to `factor_layout`, or unchanged if that is None."""
    layout = factor_layout(tuple(weight.shape), tuple(weight.stride()), weight.dtype)
    return weight if layout is None else to_layout(weight, device_layout=layout)


def is_factor(weight: torch.Tensor) -> bool:
    """Return True if a tensor on a card is a whole storage in `factor_layout`."""
    if weight.dtype not in HALVES or weight.dim() < 2 or weight.storage_offset():
        return False
    size, base = tuple(weight.shape), buffer_of(weight).base
    layout = factor_layout(size, tuple(weight.stride()), weight.dtype)
    if base is None or layout is None:
        return False
    return (base.shape, base.layout) == (size, layout)


def factor_layout(size: Ints, stride: Ints, dtype: torch.dtype) -> SpyreTensorLayout | None:
    """Return the layout in which the matrix units read a weight, of a convolution [outputs,
    channels, *window] or of a linear map [outputs, channels]: sticks along the outputs, rows of
    window and channels. None unless the weight is a contiguous 16-bit float of several elements,
    and for matrices with fewer outputs than a stick has lanes.

    In the default layout sticks run along the channels, or along a row of the window, which leaves
    most lanes empty, and every product has to transpose them first.
    """
    if dtype not in HALVES or prod(size) < 2 or stride != contiguous_strides(size):
        return None
    default = SpyreTensorLayout.from_host(size, name_of(dtype))
    lanes = default.elements_per_stick
    if len(size) == 2 and size[0] < lanes:
        return None
    (outputs, channels, *window), (first, second, *others) = size, stride
    device_size = (-(-outputs // lanes), *window, channels, lanes)
    stride_map = (first * lanes, *others, second, first)
    return SpyreTensorLayout(device_size, stride_map, default.device_dtype)


def _card_for(device: Any) -> FlexDevice:
    chosen = torch.device(device)
    if chosen.type != "spyre":
        raise LaunchError(
            "SPY903", "only tensors on a spyre device have a device layout", found=str(chosen)
        )
    return card_at(-1 if chosen.index is None else chosen.index)


def _new(
    card: FlexDevice,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    layout: SpyreTensorLayout,
) -> torch.Tensor:
    """Allocate a tensor in ``layout``. Raises the errors of `DmaEngine.check` for layouts that
    do not fit the sizes; refuses layouts that fold host dims, since views need separate dims.
    """
    if not isinstance(layout, SpyreTensorLayout):
        raise TypeError(f"device_layout is a SpyreTensorLayout, not {type(layout).__name__}")
    name = name_of(dtype)
    tensor = DeviceTensor("tensor", 0, layout, name, tuple(size), tuple(stride))
    card.dma.check(tensor)
    if 0 not in tensor.sizes:
        exact_geometry(layout, tensor.sizes, tensor.strides)
    return allocate_on(card, tuple(size), tuple(stride), dtype, layout)
