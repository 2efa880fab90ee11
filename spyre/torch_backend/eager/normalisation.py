"""Softmax, layer norm, batch norm and their backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import nan, prod
from typing import Any

import torch

from spyre.torch_backend.compat import COMPOSITE_KEYS, operator
from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import (
    FLOATS,
    Arguments,
    Conditions,
    EagerKernel,
    NewResult,
    fill,
)
from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.eager.special import logarithm
from spyre.torch_backend.program import Lowering, LoweringFunction, Value

_AFFINE = {"weight": 1.0, "bias": 0.0}
"""What the normalised values are multiplied by and what is added, and the numbers for neither."""


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


def layer_norm(low: Lowering, x: Value, *args: Any) -> tuple[Value, Value, Value]:
    """Normalised x, its mean and 1/√(var + eps) over the last ``count`` dims, all in float32 until
    they are rounded once: where elements differ little, the rounding of a 16-bit mean does not.

    ``kinds``: which of weight and bias the values behind x are.
    """
    *weights, kinds, count, eps, dtype = args
    rank = len(x.sizes)
    x = low.convert(x, "float32")
    mean, variance = _statistics(low, x, tuple(range(rank - count, rank)))
    factors = {kind: low.convert(w, "float32") for kind, w in zip(kinds, weights, strict=True)}
    result, scale = _normalised(low, x, mean, variance, factors, eps)
    result, mean, scale = (low.convert(value, dtype) for value in (result, mean, scale))
    return result, mean, scale


def group_norm(low: Lowering, x: Value, *args: Any) -> tuple[Value, ...]:
    """As `layer_norm`, over groups of channels [rows, groups, channels of one, positions]; all in
    float32, as in `batch_norm`.
    """
    *weights, kinds, shape, eps, dtype = args
    rows, groups, width, _ = shape
    sizes, x = x.sizes, low.convert(x, "float32").reshaped(shape)
    mean, variance = _statistics(low, x, (2, 3))
    factors = {
        kind: low.convert(w, "float32").reshaped((1, groups, width, 1))
        for kind, w in zip(kinds, weights, strict=True)
    }
    result, scale = _normalised(low, x, mean, variance, factors, eps)
    per_group = (v.reshaped((rows, groups)) for v in (mean, scale))
    return tuple(low.convert(v, dtype) for v in (result.reshaped(sizes), *per_group))


def _statistics(low: Lowering, x: Value, dims: Sequence[int]) -> tuple[Value, Value]:
    """Mean and variance of x, which is float32: squares of 16-bit floats would leave their range.
    The variance is that of x - mean, not E[x²] - E[x]², which cancels.
    """
    mean = low.mean(x, dims)
    centred = low.pointwise("sub", x, mean)
    return mean, low.mean(low.pointwise("mul", centred, centred), dims)


def _normalised(
    low: Lowering,
    x: Value,
    mean: Value,
    variance: Value,
    given: dict[str, Value],
    eps: float,
) -> tuple[Value, Value]:
    """(x - mean) · scale · weight + bias, and the scale, 1/√(variance + eps); all of float32."""
    scale = low.pointwise("rsqrt", low.pointwise("add", variance, low.constant(eps, "float32")))
    affine = [given.get(kind) or low.constant(none, "float32") for kind, none in _AFFINE.items()]
    return low.pointwise("layernormnorm", x, mean, scale, *affine), scale


def layer_norm_backward(
    low: Lowering, grad: Value, x: Value, mean: Value, scale: Value, *args: Any
) -> tuple[Value, ...]:
    """Gradients of x, and with a weight those of weight and bias, in float32.

    ``count``: how many of the last dims are normalised.
    """
    *weight, count, dtype = args
    rank = len(x.sizes)
    outer, inner = tuple(range(rank - count)), tuple(range(rank - count, rank))
    grad, x = low.convert(grad, "float32"), low.convert(x, "float32")
    mean, scale = low.convert(mean, "float32"), low.convert(scale, "float32")
    normal = low.pointwise("mul", low.pointwise("sub", x, mean), scale)
    sums = (
        low.reduce("sum", low.pointwise("mul", grad, normal), outer),
        low.reduce("sum", grad, outer),
    )
    for factor in weight:
        grad = low.pointwise("mul", grad, low.convert(factor, "float32"))
    tilt = low.pointwise("mul", normal, low.mean(low.pointwise("mul", grad, normal), inner))
    centred = low.pointwise("sub", grad, low.mean(grad, inner))
    grad_x = low.pointwise("mul", low.pointwise("sub", centred, tilt), scale)
    sizes = x.sizes[rank - count :]
    return low.convert(grad_x, dtype), *(low.convert(v.reshaped(sizes), dtype) for v in sums)


def batch_norm(low: Lowering, x: Value, *args: Any) -> tuple[Value, ...]:
    """Normalised x by the statistics given, or by its own, with those: mean, 1/√(var + eps), var.

    ``kinds``: what the values behind x are, each with an element per channel. Its own statistics
    are those of `layer_norm`, over all dims but that of channels; all in float32, since channels
    may lie far from zero.
    """
    *values, kinds, eps, dtype = args
    rank = len(x.sizes)
    dims = (0, *range(2, rank))
    x = low.convert(x, "float32")
    given = {
        kind: _per_channel(low.convert(v, "float32"), rank)
        for kind, v in zip(kinds, values, strict=True)
    }
    own = "mean" not in given
    mean, variance = _statistics(low, x, dims) if own else (given["mean"], given["variance"])
    result, scale = _normalised(low, x, mean, variance, given, eps)
    result = low.convert(result, dtype)
    if not own:
        return (result,)
    rows = (v.reshaped((x.sizes[1],)) for v in (mean, scale, variance))
    return result, *(low.convert(row, dtype) for row in rows)


def _per_channel(row: Value, rank: int) -> Value:
    row = row.unsqueezed(0)
    for k in range(2, rank):
        row = row.unsqueezed(k)
    return row


def batch_norm_backward(
    low: Lowering,
    grad: Value,
    x: Value,
    mean: Value,
    scale: Value,
    weight: Value,
    own: bool,
    dtype: str,
) -> tuple[Value, ...]:
    """Gradients of x, weight and bias, in float32; ``own``: statistics were those of x."""
    rank = len(x.sizes)
    dims = (0, *range(2, rank))
    grad, x = low.convert(grad, "float32"), low.convert(x, "float32")
    mean, scale, weight = (
        _per_channel(low.convert(v, "float32"), rank) for v in (mean, scale, weight)
    )
    normal = low.pointwise("mul", low.pointwise("sub", x, mean), scale)
    grad_bias = low.reduce("sum", grad, dims)
    grad_weight = low.reduce("sum", low.pointwise("mul", grad, normal), dims)
    if own:
        share = low.constant(1.0 / (grad.numel // grad.sizes[1]), "float32")
        grad = low.pointwise("sub", grad, low.pointwise("mul", grad_bias, share))
        tilt = low.pointwise("mul", normal, low.pointwise("mul", grad_weight, share))
        grad = low.pointwise("sub", grad, tilt)
    grad = low.pointwise("mul", grad, low.pointwise("mul", scale, weight))
    sums = (v.reshaped((x.sizes[1],)) for v in (grad_weight, grad_bias))
    return low.convert(grad, dtype), *(low.convert(v, dtype) for v in sums)


# --- kernels: (label of the programs, lowering, *aten's arguments) -------------------------------


def _softmax(
    label: str,
    lowering: LoweringFunction,
    x: torch.Tensor,
    dim: int,
    half_to_float: bool,
    *,
    out: torch.Tensor | NewResult,
) -> torch.Tensor:
    if x.dim() == 0:
        if isinstance(out, NewResult):
            out = torch.empty_like(x, dtype=out.dtype)
        return out.resize_(()).fill_(0.0 if label == "log_softmax" else 1.0)
    return fill(label, lowering, [x], (dim % x.dim(), name_of(out.dtype)), out, x.shape)


def _backward(
    label: str,
    lowering: LoweringFunction,
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
    parameters = (dim % y.dim(), name_of(target.dtype))
    return fill(label, lowering, [grad, y], parameters, target, y.shape)


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
    parameters = (kinds, len(normalized), float(eps), name_of(x.dtype))
    return run("layer_norm", layer_norm, [x, *(w for _, w in pairs)], parameters)


def native_layer_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized: Sequence[int],
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """aten::native_layer_norm_backward."""
    operands = [grad, x, mean, scale, *([] if weight is None else [weight])]
    parameters = (len(normalized), name_of(x.dtype))
    grads = run("layer_norm_backward", layer_norm_backward, operands, parameters)
    return tuple(g if wanted else None for g, wanted in zip(grads, output_mask, strict=True))


def _layer_norm_of_nothing(
    x: torch.Tensor, normalized: Sequence[int], *_: Any
) -> tuple[torch.Tensor, ...]:
    outer = x.dim() - len(normalized)
    sizes = (*x.shape[:outer], *[1] * len(normalized))
    statistics = [torch.full(sizes, value, dtype=x.dtype, device=x.device) for value in (0, nan)]
    return torch.empty_like(x), *statistics


def native_group_norm(x: torch.Tensor, *args: Any) -> Any:
    """aten::native_group_norm: views of the groups want contiguous memory, but results have the
    memory format of x.
    """
    results = _group_norm(x.contiguous(), *args)
    for memory_format in (torch.channels_last, torch.channels_last_3d):
        rank = 4 if memory_format is torch.channels_last else 5
        if (
            x.dim() == rank
            and not x.is_contiguous()
            and x.is_contiguous(memory_format=memory_format)
        ):
            return results[0].contiguous(memory_format=memory_format), *results[1:]
    return results


def _group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    rows: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> Any:
    """Of contiguous memory; what has no elements is what torch makes of it."""
    pairs = [(k, w) for k, w in zip(_AFFINE, (weight, bias), strict=True) if w is not None]
    operands = [x, *(w for _, w in pairs)]
    if not x.numel() or any(t.dtype not in FLOATS or t.device != x.device for t in operands):
        composite = operator("native_group_norm")
        return composite.redispatch(
            COMPOSITE_KEYS, x, weight, bias, rows, channels, positions, groups, eps
        )
    shape = (rows, groups, channels // groups, positions)
    parameters = (tuple(k for k, _ in pairs), shape, float(eps), name_of(x.dtype))
    return run("group_norm", group_norm, operands, parameters)


def native_batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """aten::native_batch_norm: the result, mean and reciprocal deviation where they are x's own.

    Running statistics that are given move towards those.
    """
    named = {"weight": weight, "bias": bias}
    if not training:
        named |= {"mean": running_mean, "variance": running_var}
    kinds = tuple(kind for kind, t in named.items() if t is not None)
    operands = [x, *(t for t in named.values() if t is not None)]
    result, *own = run("batch_norm", batch_norm, operands, (kinds, float(eps), name_of(x.dtype)))
    if not training:
        return result, x.new_empty(0), x.new_empty(0)
    mean, scale, variance = own
    count = x.numel() // x.shape[1]
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance.to(running_var.dtype) * (count / max(count - 1, 1))
        running_var.lerp_(unbiased, momentum)
    return result, mean, scale


def native_batch_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    save_mean: torch.Tensor | None,
    save_invstd: torch.Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """aten::native_batch_norm_backward."""
    mean, scale = save_mean, save_invstd
    if not train:
        assert running_var is not None
        mean, scale = running_mean, torch.rsqrt(running_var.float() + eps)
    assert mean is not None
    assert scale is not None
    factor = weight if weight is not None else torch.ones_like(mean)
    operands = [grad, x, mean, scale, factor]
    grads = run("batch_norm_backward", batch_norm_backward, operands, (train, name_of(x.dtype)))
    return tuple(g if wanted else None for g, wanted in zip(grads, output_mask, strict=True))


def _has_statistics(call: Arguments) -> bool:
    """Statistics of the input, in training, or those that are given."""
    is_own = call.training if hasattr(call, "training") else call.train
    return is_own or None not in (call.running_mean, call.running_var)


def _has_dim(call: Arguments) -> bool:
    return bool(-call.self.dim() <= call.dim < call.self.dim())


PLAIN_SOFTMAX = Conditions(values={"half_to_float": (False,)}, check=_has_dim)
"""Arguments of the functional variants that need no rules of ATen's."""

_SOFTMAX = Conditions(dtypes={"self": FLOATS, "out": FLOATS})
_SOFTMAX_BACKWARD = Conditions(dtypes={"grad_output": FLOATS, "output": FLOATS})

KERNELS = (
    EagerKernel("_softmax.out", partial(_softmax, "softmax", softmax), _SOFTMAX),
    EagerKernel("_log_softmax.out", partial(_softmax, "log_softmax", log_softmax), _SOFTMAX),
    EagerKernel(
        "_softmax_backward_data.out",
        partial(_backward, "softmax_backward", softmax_backward),
        _SOFTMAX_BACKWARD,
    ),
    EagerKernel(
        "_log_softmax_backward_data.out",
        partial(_backward, "log_softmax_backward", log_softmax_backward),
        _SOFTMAX_BACKWARD,
    ),
    EagerKernel(
        "native_batch_norm",
        native_batch_norm,
        Conditions(
            dtypes={"inputs": FLOATS},
            same_device=("inputs",),
            nonempty=("input",),
            check=lambda call: call.input.dim() > 1 and _has_statistics(call),
        ),
    ),
    EagerKernel(
        "native_batch_norm_backward",
        native_batch_norm_backward,
        Conditions(dtypes={"inputs": FLOATS}, nonempty=("grad_out",), check=_has_statistics),
    ),
    EagerKernel("native_group_norm", native_group_norm),
    EagerKernel(
        "native_layer_norm_backward",
        native_layer_norm_backward,
        Conditions(dtypes={"inputs": FLOATS}, nonempty=("input",)),
    ),
    EagerKernel(
        "native_layer_norm",
        _layer_norm_of_nothing,
        Conditions(dtypes={"input": FLOATS}, empty=("input",)),
    ),
    EagerKernel(
        "native_layer_norm",
        native_layer_norm,
        Conditions(
            dtypes={"input": FLOATS},
            nonempty=("input",),
            check=lambda call: prod(call.normalized_shape) > 0,
        ),
    ),
)
