"""Softmax, layer norm, batch norm and their backward passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import nan
from typing import Any

import torch
from torch._decomp import decompositions

from spyre.torch_backend.compat import COMPOSITE_KEYS, composed, is_traced, operator
from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import FLOATS, Arguments, Conditions, NewResult, fill, row
from spyre.torch_backend.eager.launch import in_format_of, run, run_like
from spyre.torch_backend.eager.special import Term, along, logarithm, terms_of
from spyre.torch_backend.program import Lowering, LoweringFunction, Value

_F32 = "float32"
_AFFINE = {"weight": 1.0, "bias": 0.0}
"""Factor and summand of the normalised values, with their neutral numbers."""


def softmax(builder: Lowering, x: Value, dim: int, dtype: str) -> Value:
    """e^(x - max) / Σ e^(x - max)."""
    (term,) = terms_of(builder, dtype, x)
    powers = (term - term.reduce("max", (dim,))).exp()
    return (powers / powers.reduce("sum", (dim,))).value


def log_softmax(builder: Lowering, x: Value, dim: int, dtype: str) -> Value:
    """x - max - ln Σ e^(x - max)."""
    (term,) = terms_of(builder, dtype, x)
    shifted = term - term.reduce("max", (dim,))
    total = shifted.exp().reduce("sum", (dim,)).value
    return (shifted - Term(builder, logarithm(builder, total, dtype))).value


def softmax_backward(builder: Lowering, grad: Value, y: Value, dim: int, dtype: str) -> Value:
    """y · (grad - Σ grad · y)."""
    gradient, result = terms_of(builder, dtype, grad, y)
    return (result * (gradient - (gradient * result).reduce("sum", (dim,)))).value


def log_softmax_backward(builder: Lowering, grad: Value, y: Value, dim: int, dtype: str) -> Value:
    """grad - e^y · Σ grad."""
    gradient, result = terms_of(builder, dtype, grad, y)
    total = gradient.reduce("sum", (dim,))
    return (gradient - result.exp() * total).value


def layer_norm(builder: Lowering, x: Value, *args: Any) -> tuple[Value, ...]:
    """Normalised x, its mean and 1/√(var + eps) over the last ``count`` dims, all in float32 until
    they are rounded once: where elements differ little, the rounding of a 16-bit mean does not.

    ``kinds``: which of weight and bias the values behind x are.
    """
    *weights, kinds, count, eps, dtype, statistics = args
    rank = len(x.sizes)
    (term,) = terms_of(builder, _F32, x)
    mean, centred, variance = _statistics(term, tuple(range(rank - count, rank)))
    factors = dict(zip(kinds, terms_of(builder, _F32, *weights), strict=True))
    result, scale = _normalised(*centred, variance, factors, eps)
    return _rounded(dtype, statistics, result, mean, scale)


def _rounded(dtype: str, others_dtype: str, result: Term, *others: Term) -> tuple[Value, ...]:
    return result.convert(dtype).value, *(term.convert(others_dtype).value for term in others)


def _statistics(x: Term, dims: Sequence[int]) -> tuple[Term, tuple[Term, Term], Term]:
    """Mean, x - mean with its own mean, and variance of x, which is float32: squares of 16-bit
    floats would leave their range. The variance is that of x - mean, not E[x²] - E[x]², which
    cancels. Where all elements are equal, 1/√eps would magnify the rounding of the mean, which is
    the mean of x - mean.
    """
    mean = x.mean(dims)
    centred = x - mean
    rest = centred.mean(dims)
    variance = (centred * centred).mean(dims) - rest * rest
    return mean + rest, (centred, rest), variance


def _normalised(
    x: Term, mean: Term, variance: Term, given: dict[str, Term], eps: float
) -> tuple[Term, Term]:
    """(x - mean) · scale · weight + bias, and the scale, 1/√(variance + eps); all of float32."""
    scale = (variance + eps).rsqrt()
    affine = [given.get(kind, none) for kind, none in _AFFINE.items()]
    return x.apply("layernormnorm", mean, scale, *affine), scale


def layer_norm_backward(
    builder: Lowering, grad: Value, x: Value, mean: Value, scale: Value, *args: Any
) -> tuple[Value, ...]:
    """Gradients of x, and with a weight those of weight and bias, computed in float32.

    ``count``: how many of the last dims are normalised.
    """
    *weight, count, dtype, parameters = args
    rank = len(x.sizes)
    outer, inner = tuple(range(rank - count)), tuple(range(rank - count, rank))
    gradient, term, average, factor = terms_of(builder, _F32, grad, x, mean, scale)
    normal = (term - average) * factor
    sums = (gradient * normal).reduce("sum", outer), gradient.reduce("sum", outer)
    for given in terms_of(builder, _F32, *weight):
        gradient = gradient * given
    tilt = normal * (gradient * normal).mean(inner)
    grad_x = (gradient - gradient.mean(inner) - tilt) * factor
    sums_of_x = (total.reshaped(x.sizes[rank - count :]) for total in sums)
    return _rounded(dtype, parameters, grad_x, *sums_of_x)


def batch_norm(builder: Lowering, x: Value, *args: Any) -> tuple[Value, ...]:
    """x normalised by given statistics, or by those of the batch, which are results too: mean,
    1/√(var + eps), var.

    ``kinds``: names of the values behind x, each with an element per channel. Batch statistics are
    over all dims but the channels, in float32, since the mean may be large.
    """
    *values, kinds, eps, dtype, statistics = args
    (term,) = terms_of(builder, _F32, x)
    given = dict(zip(kinds, _per_channel(builder, len(x.sizes), *values), strict=True))
    if "mean" in given:
        result, _ = _normalised(term, given["mean"], given["variance"], given, eps)
        return _rounded(dtype, statistics, result)
    mean, centred, variance = _statistics(term, (0, *range(2, len(x.sizes))))
    result, scale = _normalised(*centred, variance, given, eps)
    rows = (row.reshaped((x.sizes[1],)) for row in (mean, scale, variance))
    return _rounded(dtype, statistics, result, *rows)


def _per_channel(builder: Lowering, rank: int, *values: Value) -> list[Term]:
    """Values with an element per channel, along dim 1 of ``rank`` dims."""
    return [Term(builder, along(builder.convert(value, _F32), 1, rank)) for value in values]


def batch_norm_backward(
    builder: Lowering,
    grad: Value,
    x: Value,
    mean: Value,
    scale: Value,
    weight: Value,
    own: bool,
    dtype: str,
    parameters: str,
) -> tuple[Value, ...]:
    """Gradients of x, weight and bias, computed in float32; ``own``: statistics were those of x."""
    dims = (0, *range(2, len(x.sizes)))
    gradient, term = terms_of(builder, _F32, grad, x)
    average, factor, own_weight = _per_channel(builder, len(x.sizes), mean, scale, weight)
    normal = (term - average) * factor
    grad_bias = gradient.reduce("sum", dims)
    grad_weight = (gradient * normal).reduce("sum", dims)
    if own:
        share = 1.0 / (grad.numel // grad.sizes[1])
        gradient = gradient - grad_bias * share
        gradient = gradient - normal * (grad_weight * share)
    grad_x = gradient * (factor * own_weight)
    sums = (total.reshaped((x.sizes[1],)) for total in (grad_weight, grad_bias))
    return _rounded(dtype, parameters, grad_x, *sums)


# --- kernels -------------------------------------------------------------------------------------


def _softmax(lowering: LoweringFunction, args: Arguments) -> torch.Tensor:
    x, out, label = args.self, args.out, lowering.__name__
    if x.dim() == 0:
        if isinstance(out, NewResult):
            out = torch.empty_like(x, dtype=out.dtype)
        return out.resize_(()).fill_(0.0 if label == "log_softmax" else 1.0)
    x.size(args.dim)  # IndexError if out of range: torch's meta function of compiled mode has none
    return fill(label, lowering, [x], (args.dim % x.dim(), name_of(out.dtype)), out, x.shape)


def _backward(lowering: LoweringFunction, args: Arguments) -> torch.Tensor:
    y, (target,) = args.output, args.results
    if y.dim() == 0:
        return target.resize_(()).zero_()
    parameters = (args.dim % y.dim(), name_of(target.dtype))
    return fill(lowering.__name__, lowering, args.inputs, parameters, target, y.shape)


def _affine(args: Arguments) -> dict[str, torch.Tensor]:
    """Return weight and bias, without those that are None."""
    pairs = {"weight": args.weight, "bias": args.bias}
    return {kind: tensor for kind, tensor in pairs.items() if tensor is not None}


def native_layer_norm(args: Arguments) -> tuple[torch.Tensor, ...]:
    """The result, mean and reciprocal deviation."""
    x, affine, count = args.input, _affine(args), len(args.normalized_shape)
    if not x.numel():
        sizes = (*x.shape[: x.dim() - count], *[1] * count)
        statistics = (torch.full(sizes, n, dtype=x.dtype, device=x.device) for n in (0, nan))
        return torch.empty_like(x), *statistics
    formats = name_of(x.dtype), name_of(_dtype_of(affine.values(), x))
    parameters = (tuple(affine), count, float(args.eps), *formats)
    return run("layer_norm", layer_norm, [x, *affine.values()], parameters)


def native_layer_norm_backward(args: Arguments) -> tuple[torch.Tensor | None, ...]:
    weight = [] if args.weight is None else [args.weight]
    operands = [args.grad_out, args.input, args.mean, args.rstd, *weight]
    formats = name_of(args.input.dtype), name_of(_dtype_of(weight, args.input))
    parameters = (len(args.normalized_shape), *formats)
    grads = run("layer_norm_backward", layer_norm_backward, operands, parameters)
    return _wanted(grads, args)


def _wanted(grads: Sequence[torch.Tensor], args: Arguments) -> tuple[torch.Tensor | None, ...]:
    pairs = zip(grads, args.output_mask, strict=True)
    return tuple(grad if is_wanted else None for grad, is_wanted in pairs)


def native_group_norm(args: Arguments) -> Any:
    """The result, in the memory format of the input, mean and reciprocal deviation.

    It is the layer norm of [rows, groups, channels of one, positions …] over all dims but two, a
    view of contiguous memory. ATen's composition computes results without elements.
    """
    given, affine = args.input, _affine(args)
    x = given.contiguous()
    operands = [x, *affine.values()]
    if not x.numel() or any(t.dtype not in FLOATS or t.device != x.device for t in operands):
        composite, sizes = operator("native_group_norm"), (args.N, args.C, args.HxW, args.group)
        results = composite.redispatch(COMPOSITE_KEYS, x, args.weight, args.bias, *sizes, args.eps)
    else:
        rows, groups, width = args.N, args.group, args.C // args.group
        positions = x.shape[2:] if x.shape[:2] == (rows, args.C) else (args.HxW,)
        operands = [x.view(rows, groups, width, *positions)]
        operands += [w.view(1, groups, width, *[1] * len(positions)) for w in affine.values()]
        formats = name_of(x.dtype), name_of(_dtype_of(affine.values(), x))
        parameters = (tuple(affine), 1 + len(positions), float(args.eps), *formats)
        result, *statistics = run("group_norm", layer_norm, operands, parameters)
        results = result.view(x.shape), *(s.view(rows, groups) for s in statistics)
    return in_format_of(given, results[0]), *results[1:]


def native_group_norm_backward(args: Arguments) -> tuple[torch.Tensor | None, ...]:
    """Gradients by torch's formula, in float32 until they are rounded once."""
    operands = [args.grad_out, args.input, args.mean, args.rstd, args.weight]
    wide = (None if t is None else t.float() for t in operands)
    sizes = (args.N, args.C, args.HxW, args.group)
    grads = decompositions.native_group_norm_backward(*wide, *sizes, args.output_mask)
    kept = args.input if args.weight is None else args.weight
    dtypes = (args.input.dtype, kept.dtype, kept.dtype)
    return tuple(None if g is None else g.to(d) for g, d in zip(grads, dtypes, strict=True))


def native_batch_norm(args: Arguments) -> tuple[torch.Tensor, ...]:
    """The result, and in training mean and reciprocal deviation of the input, towards which the
    running statistics move.
    """
    x, named = args.input, _affine(args)
    given = (args.weight, args.bias, args.running_mean, args.running_var)
    _check_dtypes(x, *given)
    kept = _dtype_of(given, x)
    for running in (args.running_mean, args.running_var):
        if running is not None and running.dim() != 1:
            raise RuntimeError(f"TensorAccessor expected 1 dims but tensor has {running.dim()}")
        if running is not None and len(running) != x.shape[1]:  # the CPU reads beyond its end
            sizes = f"tensor a ({len(running)}) must match the size of tensor b ({x.shape[1]})"
            raise RuntimeError(f"The size of {sizes} at non-singleton dimension 0")
    if not args.training:
        named |= {"mean": args.running_mean, "variance": args.running_var}
    parameters = (tuple(named), float(args.eps), name_of(x.dtype), name_of(kept))
    operands = [x, *named.values()]
    result, *own = run_like([x], "batch_norm", batch_norm, operands, parameters)
    if not args.training:
        return result, x.new_empty(0, dtype=kept), x.new_empty(0, dtype=kept)
    mean, scale, variance = own
    count = x.numel() // x.shape[1]
    if args.running_mean is not None:
        args.running_mean.lerp_(mean.to(args.running_mean.dtype), args.momentum)
    if args.running_var is not None:
        unbiased = variance.to(args.running_var.dtype) * (count / max(count - 1, 1))
        args.running_var.lerp_(unbiased, args.momentum)
    return result, mean, scale


def _check_dtypes(x: torch.Tensor, *parameters: torch.Tensor | None) -> None:
    """Check the dtypes of parameters and statistics as ATen's kernel of the CPU does: all have that
    of x, or all are float32. RuntimeError in its words.
    """
    given = [t.dtype for t in parameters if t is not None]
    if not given or {*given} in ({x.dtype}, {torch.float32}):
        return
    if given[0] != x.dtype:
        raise RuntimeError("mixed dtype (CPU): expect parameter to have scalar type of Float")
    for dtype in reversed(given):
        _check_scalar_type(x.dtype, dtype)


def _check_scalar_type(expected: torch.dtype, found: torch.dtype) -> None:
    """RuntimeError in ATen's words unless both are equal."""
    if expected != found:
        names = (torch.empty(0, dtype=dtype).type()[6:-6] for dtype in (expected, found))
        raise RuntimeError(
            "expected scalar type {} but found {}".format(*names)
        )  # torch.HalfTensor


def _dtype_of(parameters: Iterable[torch.Tensor | None], x: torch.Tensor) -> torch.dtype:
    """Return the dtype of parameters, or of x where none are given; results with an element per row
    or channel have it.
    """
    return next((t.dtype for t in parameters if t is not None), x.dtype)


def _batch_norm(x: torch.Tensor, *args: Any) -> Any:
    """aten::_batch_norm_impl_index; of empty batches ATen's would make statistics in float64."""
    if is_traced() or x.numel():
        return composed("_batch_norm_impl_index", x, *args)
    weight, bias, *_ = args
    result = x.clone()
    # elements of empty results keep the gradients of weight and bias
    result = result if weight is None else result * weight[0]
    result = result if bias is None else result + bias[0]
    mean, scale = (x.new_empty(x.shape[1:2], dtype=torch.float32) for _ in range(2))
    return result, mean, scale, x.new_empty(0, dtype=torch.uint8), 0


COMPOSITES = {"_batch_norm_impl_index": _batch_norm}
"""Functions called before torch's compositions of these operations, by aten name."""


def weight_norm(args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::_weight_norm_interface: g · v / ‖v‖ with the norms over all dims but one,
    and these, in float32."""
    v, g = args.v.float(), args.g
    others = [k for k in range(v.dim()) if k != args.dim % v.dim()]
    norm = torch.linalg.vector_norm(v, 2, others, keepdim=True)
    return (v * (g.float() / norm)).to(args.v.dtype), norm


def native_batch_norm_backward(args: Arguments) -> tuple[torch.Tensor | None, ...]:
    x, mean, scale = args.input, args.save_mean, args.save_invstd
    given = (args.weight, args.running_mean, args.running_var, mean, scale)
    _check_dtypes(x, *given)
    _check_scalar_type(x.dtype, args.grad_out.dtype)
    if not args.train:
        mean, scale = args.running_mean, torch.rsqrt(args.running_var.float() + args.eps)
    factor = torch.ones_like(mean) if args.weight is None else args.weight
    formats = name_of(x.dtype), name_of(_dtype_of(given, x))
    operands, parameters = [args.grad_out, x, mean, scale, factor], (args.train, *formats)
    grads = run_like([x], "batch_norm_backward", batch_norm_backward, operands, parameters)
    return _wanted(grads, args)


def _has_statistics(args: Arguments) -> bool:
    """Return True if statistics are given or, in training, computed from the input."""
    is_own = args.training if hasattr(args, "training") else args.train
    return is_own or None not in (args.running_mean, args.running_var)


_SOFTMAX = Conditions(dtypes={"self": FLOATS, "out": FLOATS})
_SOFTMAX_BACKWARD = Conditions(dtypes={"grad_output": FLOATS, "output": FLOATS})

KERNELS = (
    ("_softmax.out", partial(_softmax, softmax), _SOFTMAX),
    ("_log_softmax.out", partial(_softmax, log_softmax), _SOFTMAX),
    ("_softmax_backward_data.out", partial(_backward, softmax_backward), _SOFTMAX_BACKWARD),
    ("_log_softmax_backward_data.out", partial(_backward, log_softmax_backward), _SOFTMAX_BACKWARD),
    row(
        native_batch_norm,
        dtypes={"inputs": FLOATS},
        same_device=("inputs",),
        nonempty=("inputs",),
        check=lambda args: args.input.dim() > 1 and _has_statistics(args),
    ),
    row(
        native_batch_norm_backward,
        dtypes={"inputs": FLOATS},
        nonempty=("grad_out",),
        check=_has_statistics,
    ),
    row(native_group_norm),
    row(
        native_group_norm_backward,
        dtypes={"inputs": FLOATS},
        same_device=("inputs",),
        nonempty=("inputs",),
    ),
    row(
        weight_norm,
        "_weight_norm_interface",
        dtypes={"inputs": FLOATS},
        same_device=("inputs",),
        nonempty=("inputs",),
    ),
    row(native_layer_norm_backward, dtypes={"inputs": FLOATS}, nonempty=("input",)),
    row(native_layer_norm, dtypes={"input": FLOATS}),
)
