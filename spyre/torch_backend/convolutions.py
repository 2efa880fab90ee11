"""Convolutions: torch has a pair of operators for devices that bring their own.

They run on the CPU, as the operators they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spyre.torch_backend.compat import operator
from spyre.torch_backend.fallback import cpu_fallback

Ints = Sequence[int]


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Any:
    """aten::convolution_overrideable."""
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    return cpu_fallback(operator("convolution"), x, weight, bias, *geometry)


def convolution_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """aten::convolution_backward_overrideable: of input, weight and bias, None for unmasked."""
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    bias_sizes = [channels] if output_mask[2] else None
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    op = operator("convolution_backward")
    return cpu_fallback(op, gradient, x, weight, bias_sizes, *geometry, output_mask)
