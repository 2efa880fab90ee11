"""Reductions over any dims: sums, means, extremes, products, variances, norms, truth; and
cumsum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from spyre.torch_backend.device.dtypes import name_of
from spyre.torch_backend.eager.dispatch import (
    CONVERTED,
    FLOATS,
    Kernel,
    falling_back,
    fill,
    is_computed,
)
from spyre.torch_backend.eager.special import extreme, logarithm
from spyre.torch_backend.program.indexing import other_lane, running_sum, stored_elements
from spyre.torch_backend.program.op_spec import Ints, Value
from spyre.torch_backend.program.operations import Lowering

Lower = Callable[..., Value]


def dims_of(tensor: torch.Tensor, dim: Any) -> Ints:
    """Dims as torch names them: None or none given means all, negative ones count from the end."""
    rank = tensor.dim()
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    given = [dim] if isinstance(dim, int) else dim
    return tuple(sorted(d % rank for d in given)) if rank else ()


def kept_sizes(sizes: Sequence[int], dims: Sequence[int], keepdim: bool) -> Ints:
    """Sizes after a reduction."""
    if keepdim:
        return tuple(1 if k in dims else n for k, n in enumerate(sizes))
    return tuple(n for k, n in enumerate(sizes) if k not in dims)


# --- lowerings: (low, x, dims, keepdim, dtype, …) -------------------------------------------------


def _plain(name: str) -> Lower:
    def lower(low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str) -> Value:
        found = low.reduce(name, low.convert(x, dtype), dims)
        return found.reshaped(kept_sizes(x.sizes, dims, keepdim))

    return lower


def _extreme(name: str) -> Lower:
    def lower(low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str) -> Value:
        found = extreme(low, name, low.convert(x, dtype), dims)
        return found.reshaped(kept_sizes(x.sizes, dims, keepdim))

    return lower


def _mean(low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str) -> Value:
    found = low.mean(low.convert(x, dtype), dims)
    return found.reshaped(kept_sizes(x.sizes, dims, keepdim))


def _variance(
    low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str, correction: float, root: bool
) -> Value:
    x = low.convert(x, dtype)
    centred = low.pointwise("sub", x, low.mean(x, dims))
    squares = low.reduce("sum", low.pointwise("mul", centred, centred), dims)
    count = max(prod(x.sizes[k] for k in dims) - correction, 0)
    found = low.pointwise("realdiv", squares, low.constant(count, dtype))
    if root:
        found = low.pointwise("sqrt", found)
    return found.reshaped(kept_sizes(x.sizes, dims, keepdim))


def _norm(low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str, order: float) -> Value:
    magnitude = low.pointwise("abs", low.convert(x, dtype))
    return _norm_of(low, magnitude, dims, order, dtype).reshaped(kept_sizes(x.sizes, dims, keepdim))


def _norm_of(low: Lowering, magnitude: Value, dims: Ints, order: float, dtype: str) -> Value:
    if order == float("inf"):
        return extreme(low, "max", magnitude, dims)
    if order == float("-inf"):
        return extreme(low, "min", magnitude, dims)
    if order == 0:
        zero = low.constant(0, dtype)
        return low.reduce("sum", low.pointwise("notequal", magnitude, zero), dims)
    if order == 1:
        return low.reduce("sum", magnitude, dims)
    if order == 2:
        total = low.reduce("sum", low.pointwise("mul", magnitude, magnitude), dims)
        return low.pointwise("sqrt", total)
    exponent, inverse = low.constant(order, dtype), low.constant(1 / order, dtype)
    powers = low.pointwise("exp", low.pointwise("mul", logarithm(low, magnitude, dtype), exponent))
    total = logarithm(low, low.reduce("sum", powers, dims), dtype)
    return low.pointwise("exp", low.pointwise("mul", total, inverse))


def _truth(name: str) -> Lower:
    """any and all: the largest and the smallest of the truth values."""

    def lower(low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str) -> Value:
        found = low.reduce(name, low.nonzero(x) if x.dtype != "bool" else x, dims)
        return low.truth(found.reshaped(kept_sizes(x.sizes, dims, keepdim)))

    return lower


# --- kernels -------------------------------------------------------------------------------------


def _takes(x: torch.Tensor, *_: Any, out: torch.Tensor, **__: Any) -> bool:
    return is_computed(x) and out.dtype in FLOATS and x.numel() > 0


def _over_dims(name: str, label: str, lower: Lower) -> Kernel:
    """(x, dim, keepdim, *, dtype, out)."""

    def kernel(
        x: torch.Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        out: torch.Tensor,
    ) -> torch.Tensor:
        dims = dims_of(x, dim)
        sizes = kept_sizes(x.shape, dims, keepdim)
        return fill(label, lower, [x], (dims, keepdim, _name(out.dtype)), out, sizes)

    return falling_back(name, kernel, _takes)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _variance_kernel(name: str, root: bool) -> Kernel:
    def kernel(
        x: torch.Tensor,
        dim: Any = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> torch.Tensor:
        dims = dims_of(x, dim)
        found = torch.empty(kept_sizes(x.shape, dims, keepdim), dtype=x.dtype, device=x.device)
        given = 1.0 if correction is None else float(correction)
        parameters = (dims, keepdim, _name(x.dtype), given, root)
        return fill("variance", _variance, [x], parameters, found)

    def takes(x: torch.Tensor, *_: Any, **__: Any) -> bool:
        return x.dtype in FLOATS and x.numel() > 0

    return falling_back(name, kernel, takes)


def _vector_norm(
    x: torch.Tensor,
    order: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    dims = dims_of(x, dim)
    parameters = (dims, keepdim, _name(out.dtype), float(order))
    sizes = kept_sizes(x.shape, dims, keepdim)
    return fill("vector_norm", _norm, [x], parameters, out, sizes)


def _whole(name: str, label: str, lower: Lower) -> Kernel:
    """Over all dims, into a new tensor of rank 0 (max and min without dim)."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        found = torch.empty((), dtype=x.dtype, device=x.device)
        return fill(label, lower, [x], (dims_of(x, None), False, _name(x.dtype)), found)

    def takes(x: torch.Tensor) -> bool:
        return is_computed(x) and x.numel() > 0

    return falling_back(name, kernel, takes)


def _truth_kernel(name: str, label: str, lower: Lower) -> Kernel:
    def kernel(
        x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, out: torch.Tensor
    ) -> torch.Tensor:
        dims = dims_of(x, dim)
        sizes = kept_sizes(x.shape, dims, keepdim)
        return fill(label, lower, [x], (dims, keepdim, "bool"), out, sizes)

    def takes(x: torch.Tensor, *_: Any, out: torch.Tensor, **__: Any) -> bool:
        return is_computed(x) and out.dtype is torch.bool and x.numel() > 0

    return falling_back(name, kernel, takes)


def reduction_kernels() -> dict[str, Kernel]:
    """By aten name."""
    total, most, least = _plain("sum"), _extreme("max"), _extreme("min")
    found = {
        "sum.IntList_out": _over_dims("sum.IntList_out", "sum", total),
        "mean.out": _over_dims("mean.out", "mean", _mean),
        "amax.out": _over_dims("amax.out", "amax", most),
        "amin.out": _over_dims("amin.out", "amin", least),
        "prod.int_out": _over_dims("prod.int_out", "prod", _plain("prod")),
        "max": _whole("max", "amax", most),
        "min": _whole("min", "amin", least),
        "var.correction": _variance_kernel("var.correction", False),
        "std.correction": _variance_kernel("std.correction", True),
        "linalg_vector_norm.out": falling_back("linalg_vector_norm.out", _vector_norm, _takes),
    }
    for name, op in (("any", "max"), ("all", "min")):
        for kind in ("out", "dims_out", "all_out"):
            full = f"{name}.{kind}"
            found[full] = _truth_kernel(full, name, _truth(op))
    return found


MAX_CUMULATIVE_ELEMENTS = 1 << 24
INTEGERS = (torch.int32, torch.int64)


def cumulated(low: Lowering, x: Value, dim: int, dtype: str) -> Value:
    """Sums in float32, or in integers, rounded to ``dtype`` at the end."""
    inner = dtype if dtype in ("int32", "int64") else "float32"
    return low.convert(running_sum(low, low.convert(x, inner), dim), dtype)


def cumsum(
    x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None, out: torch.Tensor
) -> torch.Tensor:
    """aten::cumsum.out."""
    if x.dim() == 0:
        return out.copy_(x)
    return fill("cumsum", cumulated, [x], (dim % x.dim(), name_of(out.dtype)), out, x.shape)


def _takes_cumsum(
    x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None, out: torch.Tensor
) -> bool:
    if x.dtype not in CONVERTED or out.dtype not in (*FLOATS, *INTEGERS):
        return False
    if x.dim() == 0:
        return True
    lane: Any = other_lane(x.shape, dim % x.dim())
    return stored_elements(x.shape, lane) <= MAX_CUMULATIVE_ELEMENTS


def cumulative_kernels() -> dict[str, Kernel]:
    """By aten name."""
    return {"cumsum.out": falling_back("cumsum.out", cumsum, _takes_cumsum)}
