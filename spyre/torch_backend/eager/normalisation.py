"""Softmax, layer norm and their backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from spyre.torch_backend.eager.dispatch import FLOATS, Kernel, falling_back, fill, made
from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.eager.special import logarithm
from spyre.torch_backend.program.op_spec import Value
from spyre.torch_backend.program.operations import Lowering

_AFFINE = {"weight": 1.0, "bias": 0.0}
"""What the normalised values are multiplied by and what is added, and the numbers for neither."""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def softmax(low: Lowering, x: Value, dim: int, dtype: str) -> Value:
    """e^(x - max) / Σ e^(x - max)."""
    x = low.convert(x, dtype)
    terms = low.pointwise("exp", low.pointwise("sub", x, low.reduce("max", x, (dim,))))
    return low.pointwise("realdiv", terms, low.reduce("sum", terms, (dim,)))


def log_softmax(low: Lowering, x: Value, dim: int, dtype: str) -> Value:
    """x - max - ln Σ e^(x - max)."""
    x = low.convert(x, dtype)
    shifted = low.pointwise("sub", x, low.reduce("max", x, (dim,)))
    total = low.reduce("sum", low.pointwise("exp", shifted), (dim,))
    return low.pointwise("sub", shifted, logarithm(low, total, dtype))


def softmax_backward(low: Lowering, grad: Value, y: Value, dim: int, dtype: str) -> Value:
    """y · (grad - Σ grad · y)."""
    grad, y = low.convert(grad, dtype), low.convert(y, dtype)
    total = low.reduce("sum", low.pointwise("mul", grad, y), (dim,))
    return low.pointwise("mul", y, low.pointwise("sub", grad, total))


def log_softmax_backward(low: Lowering, grad: Value, y: Value, dim: int, dtype: str) -> Value:
    """grad - e^y · Σ grad."""
    grad, y = low.convert(grad, dtype), low.convert(y, dtype)
    total = low.reduce("sum", grad, (dim,))
    return low.pointwise("sub", grad, low.pointwise("mul", low.pointwise("exp", y), total))


def layer_norm(low: Lowering, x: Value, *rest: Any) -> tuple[Value, Value, Value]:
    """Normalised x, its mean and 1/√(var + eps) over the last ``count`` dims.

    ``kinds``: which of weight and bias the values behind x are. The result is rounded once, by the
    card's own operation. The variance is that of x - mean, not E[x²] - E[x]², which cancels.
    """
    *weights, kinds, count, eps, dtype = rest
    rank = len(x.sizes)
    dims = tuple(range(rank - count, rank))
    x = low.convert(x, dtype)
    mean = low.mean(x, dims)
    centred = low.pointwise("sub", x, mean)
    variance = low.mean(low.pointwise("mul", centred, centred), dims)
    scale = low.pointwise("rsqrt", low.pointwise("add", variance, low.constant(eps, dtype)))
    given = {kind: low.convert(w, dtype) for kind, w in zip(kinds, weights, strict=True)}
    affine = [given.get(kind) or low.constant(none, dtype) for kind, none in _AFFINE.items()]
    return low.pointwise("layernormnorm", x, mean, scale, *affine), mean, scale


def _softmax_kernel(name: str, label: str, lower: Any) -> Kernel:
    def kernel(
        x: torch.Tensor, dim: int, half_to_float: bool, *, out: torch.Tensor
    ) -> torch.Tensor:
        if x.dim() == 0:
            return made(out, x).resize_(()).fill_(0.0 if label == "log_softmax" else 1.0)
        return fill(label, lower, [x], (dim % x.dim(), _name(out.dtype)), out, x.shape)

    def takes(x: torch.Tensor, *_: Any, out: torch.Tensor, **__: Any) -> bool:
        return x.dtype in FLOATS and out.dtype in FLOATS

    return falling_back(name, kernel, takes)


def _backward_kernel(name: str, label: str, lower: Any) -> Kernel:
    def kernel(
        grad: torch.Tensor,
        y: torch.Tensor,
        dim: int,
        input_dtype: torch.dtype,
        *,
        out: torch.Tensor | None = None,
        grad_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        target = out if out is not None else grad_input
        assert target is not None
        if y.dim() == 0:
            return target.resize_(()).zero_()
        return fill(label, lower, [grad, y], (dim % y.dim(), _name(target.dtype)), target, y.shape)

    def takes(grad: torch.Tensor, y: torch.Tensor, *_: Any, **__: Any) -> bool:
        return grad.dtype in FLOATS and y.dtype in FLOATS

    return falling_back(name, kernel, takes)


def native_layer_norm(
    x: torch.Tensor,
    normalized: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """aten::native_layer_norm: the result, mean and reciprocal deviation."""
    pairs = [(k, w) for k, w in zip(_AFFINE, (weight, bias), strict=True) if w is not None]
    kinds = tuple(k for k, _ in pairs)
    parameters = (kinds, len(normalized), float(eps), _name(x.dtype))
    return run("layer_norm", layer_norm, [x, *(w for _, w in pairs)], parameters)


def _takes_layer_norm(x: torch.Tensor, normalized: Sequence[int], *_: Any, **__: Any) -> bool:
    return x.dtype in FLOATS and x.numel() > 0 and prod(normalized) > 0


def normalisation_kernels() -> dict[str, Kernel]:
    """By aten name."""
    return {
        "_softmax.out": _softmax_kernel("_softmax.out", "softmax", softmax),
        "_log_softmax.out": _softmax_kernel("_log_softmax.out", "log_softmax", log_softmax),
        "_softmax_backward_data.out": _backward_kernel(
            "_softmax_backward_data.out", "softmax_backward", softmax_backward
        ),
        "_log_softmax_backward_data.out": _backward_kernel(
            "_log_softmax_backward_data.out", "log_softmax_backward", log_softmax_backward
        ),
        "native_layer_norm": falling_back(
            "native_layer_norm", native_layer_norm, _takes_layer_norm
        ),
    }
