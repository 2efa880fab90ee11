"""Matrix products: DL16 on the matrix units, float32 on the vector unit.

The matrix units have no float32. There a product is a sum of products of columns with rows, whose
terms all stand in memory; where they would take too much of it, the CPU computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import (
    FLOAT,
    FLOATS,
    ZERO_SIZE,
    ArgumentClass,
    EagerKernel,
    fill,
    fill_number,
)
from spyre.torch_backend.program import Lowering, Value

TERMS_BYTES = 1 << 28
"""Most memory for the terms of a float32 product."""


def is_small_product(left_shape: Sequence[int], columns: int) -> bool:
    """True if a float32 product of ``left_shape`` with ``columns`` columns can run on the card."""
    return prod(left_shape) * -(-columns // 32) * 128 <= TERMS_BYTES


def product(low: Lowering, left: Value, right: Value, dtype: str) -> Value:
    """left · right; in float32 as sums of products of columns with rows."""
    left, right = low.convert(left, dtype), low.convert(right, dtype)
    if dtype != "float32":
        return low.matmul(left, right)
    rank = len(left.sizes)
    a, b = left.unsqueezed(rank), right.unsqueezed(rank - 2)
    products = low.pointwise("mul", a, b)
    total = low.reduce("sum", products, (rank - 1,))
    return total.reshaped((*total.sizes[: rank - 1], total.sizes[-1]))


def added(
    low: Lowering,
    bias: Value,
    left: Value,
    right: Value,
    dtype: str,
    beta: float,
    alpha: float,
) -> Value:
    """beta · bias + alpha · left · right."""
    result = product(low, left, right, dtype)
    if alpha != 1:
        result = low.pointwise("mul", result, low.constant(alpha, dtype))
    if beta == 0:
        return result
    bias = low.convert(bias, dtype)
    if beta != 1:
        bias = low.pointwise("mul", bias, low.constant(beta, dtype))
    return low.pointwise("add", result, bias)


# --- kernels -------------------------------------------------------------------------------------


def _matmul(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    sizes = (*left.shape[:-1], right.shape[-1])
    return fill("matmul", product, [left, right], (name_of(out.dtype),), out, sizes)


def _takes(*tensors: torch.Tensor, out: torch.Tensor, **_: Any) -> bool:
    floats = all(t.dtype in FLOATS for t in (*tensors, out))
    left, right = tensors[-2:]
    small = out.dtype is not torch.float32 or is_small_product(left.shape, right.shape[-1])
    return floats and small and all(t.numel() for t in tensors)


def _addmm(
    bias: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor,
) -> torch.Tensor:
    parameters = (name_of(out.dtype), float(beta), float(alpha))
    sizes = (*left.shape[:-1], right.shape[-1])
    return fill("addmm", added, [bias, left, right], parameters, out, sizes)


def _empty_product(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return fill_number(out, (*left.shape[:-1], right.shape[-1]), 0.0)


def _empty_addmm(
    bias: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: float = 1,
    out: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    scaled = bias * beta if beta else None  # in place, out is the bias
    _empty_product(left, right, out=out)
    return out if scaled is None else out.copy_(scaled)


def _takes_empty(*tensors: torch.Tensor, out: torch.Tensor, **_: Any) -> bool:
    left, right = tensors[-2:]
    floats = all(t.dtype in FLOATS for t in (left, right, out))
    return floats and not (left.numel() and right.numel())


def _added_vector(
    low: Lowering, bias: Value, left: Value, right: Value, dtype: str, beta: float, alpha: float
) -> Value:
    """beta · bias + alpha · left · right of a matrix and a vector."""
    column = right.unsqueezed(1)
    bias = bias.unsqueezed(len(bias.sizes))  # a number may be the bias of all rows
    result = added(low, bias, left, column, dtype, beta, alpha)
    return result.reshaped(result.sizes[:1])


def _addmv(
    bias: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor,
) -> torch.Tensor:
    """aten::addmv.out; a bias that counts for nothing may have no memory."""
    bias = left[:, 0] if beta == 0 else bias
    parameters = (name_of(out.dtype), float(beta), float(alpha))
    return fill("addmv", _added_vector, [bias, left, right], parameters, out, left.shape[:1])


def _takes_vector(bias: torch.Tensor, *tensors: torch.Tensor, **named: Any) -> bool:
    return _takes(tensors[0], tensors[1].unsqueeze(1), out=named["out"])


def _inner(low: Lowering, left: Value, right: Value, dtype: str) -> Value:
    products = low.pointwise("mul", low.convert(left, dtype), low.convert(right, dtype))
    return low.reduce("sum", products, (0,)).reshaped(())


def dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    out = torch.empty((), dtype=left.dtype, device=left.device)
    return fill("dot", _inner, [left, right], (name_of(out.dtype),), out)


def _takes_dot(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype in FLOATS and left.dtype == right.dtype and left.numel() > 0


# --- what ATen checks of the functional variants -----------------------------------------------


def _is_product(left: torch.Tensor, right: torch.Tensor) -> bool:
    agree = left.dim() == right.dim() and left.shape[:-2] == right.shape[:-2]
    return bool(agree and left.shape[-1] == right.shape[-2])


def is_mm(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Two matrices that go together."""
    return left.dim() == 2 and _is_product(left, right)


def is_bmm(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Two batches of matrices that go together."""
    return left.dim() == 3 and _is_product(left, right)


def is_addmm(bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, **_: Any) -> bool:
    """Two matrices and a bias that is broadcast along rows, or not at all."""
    return is_mm(left, right) and bias.shape in (right.shape[1:], (left.shape[0], right.shape[1]))


_PRODUCT = {
    ZERO_SIZE: EagerKernel(_empty_product, _takes_empty),
    FLOAT: EagerKernel(_matmul, _takes),
}
_SUMMED = {ZERO_SIZE: EagerKernel(_empty_addmm, _takes_empty), FLOAT: EagerKernel(_addmm, _takes)}

KERNELS: dict[str, dict[ArgumentClass, EagerKernel]] = {
    "mm.out": _PRODUCT,
    "bmm.out": _PRODUCT,
    "addmm.out": _SUMMED,
    "baddbmm.out": _SUMMED,
    "addmv.out": {FLOAT: EagerKernel(_addmv, _takes_vector)},
    "dot": {FLOAT: EagerKernel(dot, _takes_dot)},
    "vdot": {FLOAT: EagerKernel(dot, _takes_dot)},
}
