"""Device layouts as torch users see and choose them.

Every tensor on a card has the `SpyreTensorLayout` its storage was laid out in; views have that of
their base. ``device_layout=`` of ``Tensor.to`` and ``torch.empty`` chooses another than the
default one (runtime reference §1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from spyre.errors import LaunchError
from spyre.hw.memory import DeviceTensor
from spyre.layout import SpyreTensorLayout, contiguous_strides, exact_geometry
from spyre.runtime.dma import DmaDirection
from spyre.torch_backend.compat import parse_to
from spyre.torch_backend.device import card_at, name_of
from spyre.torch_backend.tensors.allocation import allocate_on, default_base
from spyre.torch_backend.tensors.buffer import Ints, buffer_of

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice

__all__ = ["SpyreTensorLayout", "device_tensor_layout", "empty_in_layout", "to_layout"]

HALVES = (torch.float16, torch.bfloat16)


def device_tensor_layout(tensor: torch.Tensor) -> SpyreTensorLayout:
    """The layout of the storage behind a spyre tensor.

    A storage that was loaded as bytes gets its layout from this tensor. LaunchError SPY903 for a
    tensor on another device. For a tensor without elements: the layout it would have.
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
    """``tensor.to(…, device_layout=layout)``: a differentiable copy on the card in that layout.

    ``tensor`` itself if it has device, dtype and layout already and ``copy`` is not set.
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


def as_factor(weight: torch.Tensor) -> torch.Tensor:
    """A weight on a card in `factor_layout`, or as it is where it has none."""
    layout = factor_layout(tuple(weight.shape), tuple(weight.stride()), weight.dtype)
    return weight if layout is None else to_layout(weight, device_layout=layout)


def is_factor(weight: torch.Tensor) -> bool:
    """Whether a tensor on a card is the whole of what `as_factor` laid out."""
    if weight.dtype not in HALVES or weight.dim() < 2 or weight.storage_offset():
        return False
    size, base = tuple(weight.shape), buffer_of(weight).base
    layout = factor_layout(size, tuple(weight.stride()), weight.dtype)
    if base is None or layout is None:
        return False
    return (base.shape, base.layout) == (size, layout)


def factor_layout(size: Ints, stride: Ints, dtype: torch.dtype) -> SpyreTensorLayout | None:
    """How the matrix units read the weight [outputs, channels, *places] of a convolution, or the
    [outputs, channels] of a linear map: sticks along the outputs, places and channels one behind
    the other as rows. None for others than contiguous halves, and for matrices with fewer outputs
    than a stick has lanes.

    In the default layout sticks lie along the channels, and every product turns them first; those
    of a convolution hold a row of a window, so nearly all of their lanes are empty.
    """
    if dtype not in HALVES or 0 in size or stride != contiguous_strides(size):
        return None
    default = SpyreTensorLayout.from_host(size, name_of(dtype))
    lanes = default.elements_per_stick
    if len(size) == 2 and size[0] < lanes:
        return None
    (outputs, channels, *places), (first, second, *others) = size, stride
    device_size = (-(-outputs // lanes), *places, channels, lanes)
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
    """Errors as of `DmaEngine.describe` for layouts that do not go with the sizes.

    Layouts that fold host dims are refused as well: views could not tell the dims apart.
    """
    if not isinstance(layout, SpyreTensorLayout):
        raise TypeError(f"device_layout is a SpyreTensorLayout, not {type(layout).__name__}")
    name = name_of(dtype)
    tensor = DeviceTensor("tensor", 0, layout, name, tuple(size), tuple(stride))
    card.dma.describe(DmaDirection.TO_DEVICE, tensor)
    if 0 not in tensor.sizes:
        exact_geometry(layout, tensor.sizes, tensor.strides)
    return allocate_on(card, tuple(size), tuple(stride), dtype, layout)
