"""Matrix products: DL16 on the matrix units, float32 on the vector unit.

The matrix units have no float32. Such a product is a sum of products of columns with rows, with all
terms in memory; the CPU computes products whose terms would need too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

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


def product(builder: Lowering, left: Value, right: Value, dtype: str) -> Value:
    """left · right; in float32 as sums of products of columns with rows."""
    left, right = builder.convert(left, dtype), builder.convert(right, dtype)
    if dtype != "float32":
        return builder.matmul(left, right)
    rank = len(left.sizes)
    a, b = left.unsqueezed(rank), right.unsqueezed(rank - 2)
    products = builder.pointwise("mul", a, b)
    total = builder.reduce("sum", products, (rank - 1,))
    return total.reshaped((*total.sizes[: rank - 1], total.sizes[-1]))


def added(
    builder: Lowering,
    bias: Value,
    left: Value,
    right: Value,
    dtype: str,
    beta: float,
    alpha: float,
) -> Value:
    """beta · bias + alpha · left · right."""
    result = product(builder, left, right, dtype)
    if alpha != 1:
        result = builder.pointwise("mul", result, alpha)
    if beta == 0:
        return result
    bias = builder.convert(bias, dtype)
    if beta != 1:
        bias = builder.pointwise("mul", bias, beta)
    return builder.pointwise("add", result, bias)


# --- kernels -------------------------------------------------------------------------------------


def _product_sizes(left: torch.Tensor, right: torch.Tensor) -> tuple[int, ...]:
    return (*left.shape[:-1], right.shape[-1])


def _matmul(args: Arguments) -> torch.Tensor:
    operands, sizes = args.inputs, _product_sizes(*args.inputs)
    return fill("matmul", product, operands, (name_of(args.out.dtype),), args.out, sizes)


def _addmm(args: Arguments) -> torch.Tensor:
    sizes = _product_sizes(*args.inputs[1:])
    return fill("addmm", added, args.inputs, _factors(args), args.out, sizes)


def _factors(args: Arguments) -> tuple[str, float, float]:
    return name_of(args.out.dtype), float(args.beta), float(args.alpha)


def _empty_product(args: Arguments) -> torch.Tensor:
    return fill_number(args.out, _product_sizes(*args.inputs), 0.0)


def _empty_addmm(args: Arguments) -> torch.Tensor:
    bias, left, right = args.inputs
    scaled = bias * args.beta if args.beta else None  # in place, out is the bias
    out = fill_number(args.out, _product_sizes(left, right), 0.0)
    return out if scaled is None else out.copy_(scaled)


def _added_vector(
    builder: Lowering, bias: Value, left: Value, right: Value, dtype: str, beta: float, alpha: float
) -> Value:
    """beta · bias + alpha · left · right of a matrix and a vector."""
    column = right.unsqueezed(1)
    bias = bias.unsqueezed(len(bias.sizes))  # a number may be the bias of all rows
    result = added(builder, bias, left, column, dtype, beta, alpha)
    return result.reshaped(result.sizes[:1])


def _addmv(args: Arguments) -> torch.Tensor:
    """aten::addmv.out; with ``beta`` 0 the bias may have no memory."""
    bias = args.mat[:, 0] if args.beta == 0 else args.self
    operands, sizes = [bias, args.mat, args.vec], args.mat.shape[:1]
    return fill("addmv", _added_vector, operands, _factors(args), args.out, sizes)


def _inner(builder: Lowering, left: Value, right: Value, dtype: str) -> Value:
    products = builder.pointwise("mul", builder.convert(left, dtype), builder.convert(right, dtype))
    return builder.reduce("sum", products, (0,)).reshaped(())


def dot(args: Arguments) -> torch.Tensor:
    out = torch.empty((), dtype=args.self.dtype, device=args.self.device)
    return fill("dot", _inner, args.inputs, (name_of(out.dtype),), out)


# --- the table -----------------------------------------------------------------------------------


def _is_small(left: str, right: str, args: Arguments) -> bool:
    """A result of 16-bit floats, or a float32 product whose terms have room."""
    if args.out.dtype is not torch.float32:
        return True
    factor, columns = getattr(args, left), getattr(args, right)
    return is_small_product(factor.shape, 1 if columns.dim() == 1 else columns.shape[-1])


def _product_conditions(left: str, right: str) -> Conditions:
    return Conditions(
        dtypes={"inputs": FLOATS, "out": FLOATS},
        nonempty=("inputs",),
        check=partial(_is_small, left, right),
    )


def _has_empty_factor(left: str, right: str, args: Arguments) -> bool:
    return not (getattr(args, left).numel() and getattr(args, right).numel())


def _factors_agree(left: str, right: str, args: Arguments) -> bool:
    a, b = getattr(args, left), getattr(args, right)
    return bool(a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2])


def _addends_agree(args: Arguments) -> bool:
    """The bias is broadcast along rows, or not at all."""
    sizes = (args.mat1.shape[0], args.mat2.shape[1])
    return _factors_agree("mat1", "mat2", args) and args.self.shape in (sizes[1:], sizes)


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
