"""Operations that run on the CPU under another name than the one torch asks a device for.

Convolutions have names of their own for devices such as this. Two losses warn of resizing when they
are computed into a given tensor, as the fallback would have it, but not when they make their own.
They are counted under the names users know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten


def _on_cpu(op: Any, *args: Any) -> Any:
    """The fallback, loaded when an operation needs it."""
    from spyre.torch_backend.fallback import cpu_fallback

    return cpu_fallback(op, *args)


def convolution(*args: Any) -> Any:
    """aten::convolution_overrideable, by aten::convolution."""
    return _on_cpu(aten.convolution.default, *args)


def convolution_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """aten::convolution_backward_overrideable, by aten::convolution_backward."""
    bias_sizes = [grad_output.size(1)] if output_mask[2] else None
    tensors = (grad_output, input, weight, bias_sizes)
    sizes = (stride, padding, dilation, transposed, output_padding, groups, output_mask)
    return _on_cpu(aten.convolution_backward.default, *tensors, *sizes)


def mse_loss(*args: Any) -> Any:
    """aten::mse_loss."""
    return _on_cpu(aten.mse_loss.default, *args)


def smooth_l1_loss(*args: Any) -> Any:
    """aten::smooth_l1_loss."""
    return _on_cpu(aten.smooth_l1_loss.default, *args)
