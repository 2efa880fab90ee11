"""Matrix products: DL16 on the matrix units, float32 on the vector unit.

The matrix units have no float32. There a product is a sum of products of columns with rows, whose
terms all stand in memory; where they would take too much of it, the CPU computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from spyre.torch_backend.eager.dispatch import FLOATS, Kernel, falling_back, fill
from spyre.torch_backend.program.op_spec import Value
from spyre.torch_backend.program.operations import Lowering

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
    found = low.reduce("sum", products, (rank - 1,))
    return found.reshaped((*found.sizes[: rank - 1], found.sizes[-1]))


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
    found = product(low, left, right, dtype)
    if alpha != 1:
        found = low.pointwise("mul", found, low.constant(alpha, dtype))
    if beta == 0:
        return found
    bias = low.convert(bias, dtype)
    if beta != 1:
        bias = low.pointwise("mul", bias, low.constant(beta, dtype))
    return low.pointwise("add", found, bias)


def _takes(*tensors: torch.Tensor, out: torch.Tensor, **_: Any) -> bool:
    floats = all(t.dtype in FLOATS for t in (*tensors, out))
    left, right = tensors[-2:]
    small = out.dtype is not torch.float32 or is_small_product(left.shape, right.shape[-1])
    return floats and small and all(t.numel() for t in tensors)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _product_kernel(name: str) -> Kernel:
    def kernel(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        sizes = (*left.shape[:-1], right.shape[-1])
        return fill("matmul", product, [left, right], (_name(out.dtype),), out, sizes)

    return falling_back(name, kernel, _takes)


def _added_kernel(name: str) -> Kernel:
    def kernel(
        bias: torch.Tensor,
        left: torch.Tensor,
        right: torch.Tensor,
        *,
        beta: float = 1,
        alpha: float = 1,
        out: torch.Tensor,
    ) -> torch.Tensor:
        parameters = (_name(out.dtype), float(beta), float(alpha))
        sizes = (*left.shape[:-1], right.shape[-1])
        return fill("addmm", added, [bias, left, right], parameters, out, sizes)

    return falling_back(name, kernel, _takes)


def _added_vector(
    low: Lowering, bias: Value, left: Value, right: Value, dtype: str, beta: float, alpha: float
) -> Value:
    """beta · bias + alpha · left · right of a matrix and a vector."""
    column = right.unsqueezed(1)
    found = added(low, bias.unsqueezed(1), left, column, dtype, beta, alpha)
    return found.reshaped(found.sizes[:1])


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
    given = left[:, 0] if beta == 0 else bias
    parameters = (_name(out.dtype), float(beta), float(alpha))
    return fill("addmv", _added_vector, [given, left, right], parameters, out, left.shape[:1])


def _takes_vector(bias: torch.Tensor, *tensors: torch.Tensor, **named: Any) -> bool:
    return _takes(tensors[0], tensors[1].unsqueeze(1), out=named["out"])


def _inner(low: Lowering, left: Value, right: Value, dtype: str) -> Value:
    products = low.pointwise("mul", low.convert(left, dtype), low.convert(right, dtype))
    return low.reduce("sum", products, (0,)).reshaped(())


def dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """aten::dot."""
    out = torch.empty((), dtype=left.dtype, device=left.device)
    return fill("dot", _inner, [left, right], (_name(out.dtype),), out)


def _takes_dot(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype in FLOATS and left.dtype == right.dtype and left.numel() > 0


def matmul_kernels() -> dict[str, Kernel]:
    """By aten name."""
    found = {name: _product_kernel(name) for name in ("mm.out", "bmm.out")}
    found |= {name: _added_kernel(name) for name in ("addmm.out", "baddbmm.out")}
    found["addmv.out"] = falling_back("addmv.out", _addmv, _takes_vector)
    return found | {name: falling_back(name, dot, _takes_dot) for name in ("dot", "vdot")}
