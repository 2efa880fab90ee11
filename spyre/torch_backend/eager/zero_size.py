"""Operations over tensors without elements, or without dims: little to compute, sizes to get right.

There is no program for them: what they give is filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spyre.torch_backend.eager.dispatch import COMPUTED, FLOATS, Kernel
from spyre.torch_backend.eager.reductions import dims_of, kept_sizes

NAN = float("nan")
SUMS = {"sum.IntList_out": 0.0, "mean.out": NAN, "prod.int_out": 1.0}
"""What a reduction of nothing gives."""
VARIANCES = ("var.correction", "std.correction")
PRODUCTS = ("mm.out", "bmm.out")
SUMMED_PRODUCTS = ("addmm.out", "baddbmm.out")


def zero_size_kernels(before: dict[str, Kernel]) -> dict[str, Kernel]:
    """The kernels of `before` that also take empty tensors, by aten name."""
    found = {name: _sum(before[name], value) for name, value in SUMS.items()}
    found |= {name: _variance(before[name]) for name in VARIANCES}
    found |= {name: _product(before[name]) for name in PRODUCTS}
    found |= {name: _summed_product(before[name]) for name in SUMMED_PRODUCTS}
    found["prod"] = _product_of_all
    found["linalg_vector_norm.out"] = _norm(before["linalg_vector_norm.out"])
    found["native_layer_norm"] = _layer_norm(before["native_layer_norm"])
    found["gather.out"] = _gather(before["gather.out"])
    found["index_select"] = _index_select(before["index_select"])
    return found


def _sum(kernel: Kernel, value: float) -> Kernel:
    def call(
        x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, out: torch.Tensor, **named: Any
    ) -> Any:
        if x.numel() or x.dtype not in COMPUTED or out.dtype not in FLOATS:
            return kernel(x, dim, keepdim, out=out, **named)
        return _filled(out, kept_sizes(x.shape, dims_of(x, dim), keepdim), value)

    return call


def _filled(out: torch.Tensor, sizes: Sequence[int], value: float) -> torch.Tensor:
    if out.shape != tuple(sizes):
        out.resize_(sizes)
    return out.fill_(value)


def _variance(kernel: Kernel) -> Kernel:
    def call(x: torch.Tensor, dim: Any = None, *, keepdim: bool = False, **named: Any) -> Any:
        if x.numel() or x.dtype not in FLOATS:
            return kernel(x, dim, keepdim=keepdim, **named)
        sizes = kept_sizes(x.shape, dims_of(x, dim), keepdim)
        return torch.full(sizes, NAN, dtype=x.dtype, device=x.device)

    return call


def _norm(kernel: Kernel) -> Kernel:
    def call(
        x: torch.Tensor,
        order: float = 2,
        dim: Any = None,
        keepdim: bool = False,
        *,
        out: torch.Tensor,
        **named: Any,
    ) -> Any:
        sizes = kept_sizes(x.shape, dims_of(x, dim), keepdim)
        finite = 0 <= order < float("inf") or 0 in sizes
        if x.numel() or not finite or out.dtype not in FLOATS:
            return kernel(x, order, dim, keepdim, out=out, **named)
        return _filled(out, sizes, 0.0)

    return call


def _product_of_all(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """aten::prod: a product over one dim."""
    return torch.prod(x.reshape(-1), 0, dtype=dtype)


def _is_empty_product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> bool:
    floats = all(t.dtype in FLOATS for t in (left, right, out))
    return floats and not (left.numel() and right.numel())


def _product(kernel: Kernel) -> Kernel:
    def call(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> Any:
        if not _is_empty_product(left, right, out):
            return kernel(left, right, out=out)
        return _filled(out, (*left.shape[:-1], right.shape[-1]), 0.0)

    return call


def _summed_product(kernel: Kernel) -> Kernel:
    def call(
        bias: torch.Tensor,
        left: torch.Tensor,
        right: torch.Tensor,
        *,
        beta: float = 1,
        out: torch.Tensor,
        **named: Any,
    ) -> Any:
        if not _is_empty_product(left, right, out):
            return kernel(bias, left, right, beta=beta, out=out, **named)
        _filled(out, (*left.shape[:-1], right.shape[-1]), 0.0)
        return out.copy_(bias * beta) if beta else out

    return call


def _layer_norm(kernel: Kernel) -> Kernel:
    def call(x: torch.Tensor, normalized: Sequence[int], *rest: Any) -> Any:
        if x.numel() or x.dtype not in FLOATS:
            return kernel(x, normalized, *rest)
        outer = x.dim() - len(normalized)
        sizes = (*x.shape[:outer], *[1] * len(normalized))
        statistics = [
            torch.full(sizes, value, dtype=x.dtype, device=x.device) for value in (0, NAN)
        ]
        return torch.empty_like(x), *statistics

    return call


def _gather(kernel: Kernel) -> Kernel:
    def call(
        x: torch.Tensor,
        dim: int,
        index: torch.Tensor,
        *,
        sparse_grad: bool = False,
        out: torch.Tensor,
    ) -> Any:
        if index.numel() == 0:
            return out.resize_(index.shape) if out.shape != index.shape else out
        if x.dim():
            return kernel(x, dim, index, sparse_grad=sparse_grad, out=out)
        found = torch.gather(x.reshape(1), 0, index.reshape(-1)).reshape(index.shape)
        return out.resize_(index.shape).copy_(found)

    return call


def _index_select(kernel: Kernel) -> Kernel:
    def call(x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
        if x.dim():
            return kernel(x, dim, index)
        return kernel(x.reshape(1), 0, index.reshape(-1)).reshape(())

    return call
