"""The mathematics of the golden vectors of windows, 8- and 4-bit numbers and 32-bit integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as nn

from tests.hw.golden_formats import Array
from tests.hw.golden_formulas import Formula, Given

Planes = Callable[[Given, torch.Tensor], torch.Tensor]
"""(given, [mb, channels, i, j] with its padding) → [mb, channels', i', j']."""


def _product(given: Given) -> Array:
    """Exact for integers: they are 64 bits wide here."""
    return np.asarray((given.inputs[0] * given.inputs[1]).sum(axis=given.lacking, keepdims=True))


# --- windows ----------------------------------------------------------------------------------


def _windowed(planes: Planes, outside: float = 0.0) -> Formula:
    """The first input [mb, i, j, channels] as torch has it, padded with ``outside``, and back."""

    def formula(given: Given) -> Array:
        axes = given.inputs[0].shape
        held = (*axes[:3], int(np.prod(axes[3:])))
        x = torch.from_numpy(given.inputs[0].reshape(held).astype(np.float64)).permute(0, 3, 1, 2)
        (top, bottom), (left, right) = (slide.pads for slide in given.slides)
        x = nn.pad(x, [left, right, top, bottom], value=outside)
        return np.asarray(planes(given, x).permute(0, 2, 3, 1).numpy())

    return formula


def _convolved(given: Given, x: torch.Tensor, groups: int = 1) -> torch.Tensor:
    """The kernel's axes are those of the operation from the fourth on: out, in, ki, kj."""
    axes = given.inputs[1].shape[3:]
    shape = axes if groups == 1 else (axes[0], 1, *axes[1:])
    w = torch.from_numpy(given.inputs[1].reshape(shape).astype(np.float64))
    strides, dilations = _steps(given)
    return nn.conv2d(x, w, stride=strides, dilation=dilations, groups=groups)


def _steps(given: Given) -> tuple[tuple[int, int], tuple[int, int]]:
    a, b = given.slides
    return (a.stride, b.stride), (a.dilation, b.dilation)


def _sizes(given: Given) -> tuple[int, int]:
    a, b = (slide.places for slide in given.slides)
    return a, b


def _largest(given: Given, x: torch.Tensor) -> torch.Tensor:
    strides, dilations = _steps(given)
    return nn.max_pool2d(x, _sizes(given), strides, dilation=dilations)


def _total(given: Given, x: torch.Tensor) -> torch.Tensor:
    strides, dilations = _steps(given)
    assert dilations == (1, 1)
    return nn.avg_pool2d(x, _sizes(given), strides, divisor_override=1)


def _mapped(given: Given, x: torch.Tensor) -> torch.Tensor:
    """The second input: a factor per output position."""
    places = given.inputs[1].shape[1:3]
    return _total(given, x) * torch.from_numpy(given.inputs[1].reshape(1, 1, *places))


# --- numbers ----------------------------------------------------------------------------------


def _quantized(bits: int) -> Formula:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def formula(given: Given) -> Array:
        scale, shift = given.constants["scaleact"], given.constants["shiftact"]
        return np.asarray(np.clip(np.rint(given.inputs[0] * scale + shift), low, high))

    return formula


def _truncated(given: Given) -> Array:
    whole = np.trunc(np.nan_to_num(given.inputs[0], nan=0.0, posinf=np.inf, neginf=-np.inf))
    return np.asarray(np.clip(whole, -(2.0**31), 2.0**31 - 1))


_convolution = _windowed(_convolved)

FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("batchmatmulfp8", "batchmatmulint8", "batchmatmulint4"), _product),
    **dict.fromkeys(("conv2d", "conv2dfp8", "conv2dint8", "conv2dint4"), _convolution),
    "depthwiseconv2dnative": _windowed(lambda given, x: _convolved(given, x, x.shape[1])),
    "maxpoolfwd": _windowed(_largest, -np.inf),
    "avgpoolfwd": _windowed(lambda given, x: _total(given, x) * given.constants["nmap"]),
    "avgpoolnmapfwd": _windowed(_mapped),
    **dict.fromkeys(("csqint8ch", "csqint8mb", "csqint8wt"), _quantized(8)),
    **dict.fromkeys(("csqint4", "csqint4wt"), _quantized(4)),
    **dict.fromkeys(
        ("qfp8ch", "qfp8mb", "qfp8wt"), lambda given: np.clip(given.inputs[0], -448, 448)
    ),
    "fp8todl16": lambda given: given.inputs[0],
    "shuffle": lambda given: given.inputs[0],
    "addi32toi32": lambda given: given.inputs[0] + given.inputs[1],
    "muli32toi32": lambda given: given.inputs[0] * given.inputs[1],
    "fp32toint32": _truncated,
    "int32tofp32": lambda given: given.inputs[0],
}
"""Formulas by operation."""
