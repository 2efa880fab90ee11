"""Convolutions: torch asks a device for them under names of their own.

They run on the CPU, counted under the names users know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spyre.torch_backend.fallback import cpu_fallback

aten = torch.ops.aten


def convolution(*args: Any) -> Any:
    """aten::convolution_overrideable, by aten::convolution."""
    return cpu_fallback(aten.convolution.default, *args)


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
    return cpu_fallback(aten.convolution_backward.default, *tensors, *sizes)
