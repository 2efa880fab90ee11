"""The mathematics of the golden vectors: double precision numpy and torch.

Independent of `spyre`: nothing here uses its codecs or its kernels. A formula gets the
inputs as float64 arrays with one axis per dim of the operation (length 1 where the operand lacks
it; a further axis for several lanes), the constants, and the axes the output lacks. Those of
windows and packed formats are in `golden_packed_formulas.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as nn

Array = npt.NDArray[Any]


class Slide(msgspec.Struct, frozen=True):
    """Movement of a window of ``places`` elements along a spatial axis.

    ``pads``: (front, back), elements that the input does not hold.
    """

    places: int
    stride: int
    dilation: int
    pads: tuple[int, int]


# --- operations -------------------------------------------------------------------------------


class Given(msgspec.Struct, frozen=True):
    """Arguments of a formula; ``lacking``: axes that the output does not have."""

    inputs: Sequence[Array]
    constants: Mapping[str, float]
    lacking: tuple[int, ...]
    output_shape: tuple[int, ...]
    slides: Sequence[Slide] = ()


Formula = Callable[[Given], Array]


def _pointwise(function: Callable[..., Array]) -> Formula:
    return lambda given: function(*given.inputs)


def _torch(function: Callable[..., torch.Tensor]) -> Formula:
    """A float64 torch function of the one input."""
    return lambda given: function(torch.from_numpy(given.inputs[0])).numpy()


def _reduce(function: Callable[..., Array]) -> Formula:
    return lambda given: function(given.inputs[0], axis=given.lacking, keepdims=True)


def _mean(given: Given) -> Array:
    total = given.inputs[0].sum(axis=given.lacking, keepdims=True)
    return np.asarray(total * given.constants["scaling_factor"])


def _moments(zero_mean: bool) -> Formula:
    def formula(given: Given) -> Array:
        x, scale = given.inputs[0], given.constants["exx2scale"]
        first = 0.0 if zero_mean or given.constants.get("useZeroMean") else scale
        sums = (x.sum(axis=given.lacking), (x * x).sum(axis=given.lacking))
        return np.stack([sums[0] * first, sums[1] * scale], axis=-1)

    return formula


def _largest_of(given: Given) -> Array:
    return np.abs(given.inputs[0]).max(axis=given.lacking, keepdims=True)


def _token_scale_fp8(given: Given) -> Array:
    constants = given.constants
    scale = _largest_of(given) * constants["mulConst"]
    return np.clip(scale, constants["clipMin"], constants["clipMax"])


def _layer_norm(given: Given) -> Array:
    x, mean, scale, weight, bias = given.inputs
    return np.asarray((x - mean) * scale * weight + bias)


def _layer_norm_scale(given: Given) -> Array:
    pair = given.inputs[0]
    variance = pair[..., 1] - pair[..., 0] ** 2
    return np.asarray(1 / np.sqrt(variance + given.constants["eps"]))


def _softplus(given: Given) -> Array:
    beta, threshold = given.constants["softplusBeta"], given.constants["softplusThresh"]
    return nn.softplus(torch.from_numpy(given.inputs[0]), beta, threshold).numpy()


def _sorted_positions(given: Given) -> Array:
    """Positions along the first dim, largest value first, equal ones in order."""
    x = given.inputs[0]
    keys = list(zip(*np.broadcast_arrays(-x, np.arange(x.shape[0])[:, None, None]), strict=True))
    order = np.empty(x.shape, np.int64)
    for column in np.ndindex(*x.shape[1:]):
        pairs = sorted((key[0][column], int(key[1][column])) for key in keys)
        order[(slice(None), *column)] = [position for _, position in pairs]
    return order


def _topk(values: bool) -> Formula:
    def formula(given: Given) -> Array:
        order = _sorted_positions(given)
        found = np.take_along_axis(given.inputs[0], order, 0) if values else order
        k = given.output_shape[0]
        return np.swapaxes(found[:k], 0, 1)

    return formula


def _product(given: Given) -> Array:
    return (given.inputs[0] * given.inputs[1]).sum(axis=given.lacking, keepdims=True)


def _copy(given: Given) -> Array:
    """The input, or rows of it by the index tensor."""
    if len(given.inputs) == 1:
        return given.inputs[0]
    table, index = given.inputs
    return table[index.reshape(-1).astype(np.int64)]


_exp = _pointwise(np.exp)
_sigmoid = _torch(torch.sigmoid)

FORMULAS: dict[str, Formula] = {
    "add": _pointwise(np.add),
    "sub": _pointwise(np.subtract),
    "revsub": _pointwise(lambda a, b: b - a),
    "mul": _pointwise(np.multiply),
    "realdiv": _pointwise(np.divide),
    "maximum": _pointwise(np.maximum),
    "minimum": _pointwise(np.minimum),
    "biasadd": _pointwise(np.add),
    "equal": _pointwise(np.equal),
    "notequal": _pointwise(np.not_equal),
    "greaterequal": _pointwise(np.greater_equal),
    "lesserequal": _pointwise(np.less_equal),
    "greaterthan": _pointwise(np.greater),
    "lesserthan": _pointwise(np.less),
    "where3": _pointwise(lambda c, a, b: np.where(c != 0, a, b)),
    "fnms": _pointwise(lambda a, b, c: c - a * b),
    "batchnormfwd": _pointwise(lambda x, scale, shift: x * scale + shift),
    "layernormnorm": _layer_norm,
    "layernormscale": _layer_norm_scale,
    "abs": _pointwise(np.abs),
    "neg": _pointwise(np.negative),
    "exp": _exp,
    "fastexp": _exp,
    "log": _pointwise(np.log),
    "sqrt": _pointwise(np.sqrt),
    "rsqrt": _torch(torch.rsqrt),
    "reciprocal": _torch(torch.reciprocal),
    "tanh": _torch(torch.tanh),
    "sigmoid": _sigmoid,
    "fastsigmoid": _sigmoid,
    "floor": _pointwise(np.floor),
    "relufwd": _torch(torch.relu),
    "relu6fwd": _torch(nn.relu6),
    "leakyrelufwd": _torch(lambda x: nn.leaky_relu(x, 0.01)),
    "gelufwd": _torch(nn.gelu),
    "silu": _torch(nn.silu),
    "mish": _torch(nn.mish),
    "clip": lambda given: np.clip(
        given.inputs[0], given.constants["clipMin"], given.constants["clipMax"]
    ),
    "softplus": _softplus,
    "identity": _copy,
    "sum": _reduce(np.sum),
    "max": _reduce(np.max),
    "min": _reduce(np.min),
    "absmax": _largest_of,
    "mean": _mean,
    "prod": _reduce(np.prod),
    "exx2": _moments(False),
    "exx2_zeromean": _moments(True),
    "quantscalepertoken": lambda given: _largest_of(given) / 127,
    "quantscalepertokenfp8": _token_scale_fp8,
    "dl16tofp32": _copy,
    "fp32todl16": _copy,
    "ReStickifyOpHBM": _copy,
    "topkvalue": _topk(True),
    "topkindex": _topk(False),
    "batchmatmul": _product,
}
"""Formulas by operation."""


def permuted(values: Array, arrangement: str) -> Array:
    """Columns (the last axis) in the order they are stored in under an element arrangement.

    DL16_TO_FP32: of 64 columns, groups of four go to two sticks of 32 in turn; FP32_TO_DL16: groups
    of four of the two halves take turns in a stick of 64.
    """
    if arrangement == "STANDARD":
        return values
    place = []
    for column in range(64):
        if arrangement == "DL16_TO_FP32":
            group, half, element = column // 8, column // 4 % 2, column % 4
            place.append(32 * half + 4 * group + element)
        else:
            half, group, element = column // 32, column // 4 % 8, column % 4
            place.append(8 * group + 4 * half + element)
    blocks = values.reshape(*values.shape[:-1], -1, 64)
    stored = np.empty_like(blocks)
    stored[..., place] = blocks
    return stored.reshape(values.shape)
