"""Matrix products: DL16 on the matrix units, float32 on the vector unit.

The matrix units have no float32. There a product is a sum of products of columns with rows, whose
terms all stand in memory; where they would take too much of it, the CPU computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import (
    FLOATS,
    Arguments,
    Conditions,
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


def _inner(low: Lowering, left: Value, right: Value, dtype: str) -> Value:
    products = low.pointwise("mul", low.convert(left, dtype), low.convert(right, dtype))
    return low.reduce("sum", products, (0,)).reshaped(())


def dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    out = torch.empty((), dtype=left.dtype, device=left.device)
    return fill("dot", _inner, [left, right], (name_of(out.dtype),), out)


# --- the table -----------------------------------------------------------------------------------


def _is_small(left: str, right: str, call: Arguments) -> bool:
    """A result of 16-bit floats, or a float32 product whose terms have room."""
    if call.out.dtype is not torch.float32:
        return True
    factor, columns = getattr(call, left), getattr(call, right)
    return is_small_product(factor.shape, 1 if columns.dim() == 1 else columns.shape[-1])


def _product_conditions(left: str, right: str) -> Conditions:
    return Conditions(
        dtypes={"inputs": FLOATS, "out": FLOATS},
        nonempty=("inputs",),
        check=partial(_is_small, left, right),
    )


def _has_empty_factor(left: str, right: str, call: Arguments) -> bool:
    return not (getattr(call, left).numel() and getattr(call, right).numel())


def _factors_agree(left: str, right: str, call: Arguments) -> bool:
    a, b = getattr(call, left), getattr(call, right)
    return bool(a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2])


def _addends_agree(call: Arguments) -> bool:
    """The bias is broadcast along rows, or not at all."""
    sizes = (call.mat1.shape[0], call.mat2.shape[1])
    return _factors_agree("mat1", "mat2", call) and call.self.shape in (sizes[1:], sizes)


PLAIN = {
    "mm": Conditions(
        ranks={"self": (2,), "mat2": (2,)}, check=partial(_factors_agree, "self", "mat2")
    ),
    "bmm": Conditions(
        ranks={"self": (3,), "mat2": (3,)}, check=partial(_factors_agree, "self", "mat2")
    ),
    "addmm": Conditions(ranks={"mat1": (2,), "mat2": (2,)}, check=_addends_agree),
}
"""Shapes of functional variants that need no rules of ATen's."""

_PRODUCTS = (
    ("mm.out", "self", "mat2", _matmul, _empty_product),
    ("bmm.out", "self", "mat2", _matmul, _empty_product),
    ("addmm.out", "mat1", "mat2", _addmm, _empty_addmm),
    ("baddbmm.out", "batch1", "batch2", _addmm, _empty_addmm),
)
_ADDMV = replace(
    _product_conditions("mat", "vec"),
    dtypes={"mat": FLOATS, "vec": FLOATS, "out": FLOATS},
    nonempty=("mat", "vec"),
)
_DOT = Conditions(dtypes={"self": FLOATS}, same_dtype=("inputs",), nonempty=("self",))

KERNELS = (
    *(
        EagerKernel(
            name,
            empty,
            Conditions(
                dtypes={left: FLOATS, right: FLOATS, "out": FLOATS},
                check=partial(_has_empty_factor, left, right),
            ),
        )
        for name, left, right, _, empty in _PRODUCTS
    ),
    *(
        EagerKernel(name, function, _product_conditions(left, right))
        for name, left, right, function, _ in _PRODUCTS
    ),
    EagerKernel("addmv.out", _addmv, _ADDMV),
    EagerKernel("dot", dot, _DOT),
    EagerKernel("vdot", dot, _DOT),
)
