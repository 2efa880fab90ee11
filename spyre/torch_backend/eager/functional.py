"""Functional variants of everyday operations that make their result themselves.

For a functional variant ATen runs the operation's shape rules on meta tensors, makes the result by
way of the dispatcher and calls the ``out`` variant: as much work as the launch. Over plain operands
the result is the one the program would make anyway, and its dtype is theirs; everything else goes
ATen's way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spyre.torch_backend.compat import COMPOSITE_KEYS, operator, schema_of
from spyre.torch_backend.eager.dispatch import FLOATS, Kernel, NewResult
from spyre.torch_backend.program.op_spec import LoweringError

VARIANTS = {
    "add.Tensor": "add.out",
    "sub.Tensor": "sub.out",
    "mul.Tensor": "mul.out",
    "div.Tensor": "div.out",
    "maximum": "maximum.out",
    "minimum": "minimum.out",
    "exp": "exp.out",
    "sqrt": "sqrt.out",
    "rsqrt": "rsqrt.out",
    "reciprocal": "reciprocal.out",
    "sigmoid": "sigmoid.out",
    "tanh": "tanh.out",
    "silu": "silu.out",
    "gelu": "gelu.out",
    "neg": "neg.out",
    "abs": "abs.out",
    "pow.Tensor_Scalar": "pow.Tensor_Scalar_out",
    "_softmax": "_softmax.out",
    "_log_softmax": "_log_softmax.out",
    "mm": "mm.out",
    "bmm": "bmm.out",
    "addmm": "addmm.out",
}
"""Functional variants and the ``out`` variants whose kernels they share: operations whose result
has the dtype of floating operands, and is contiguous if they are.
"""


def _is_product(left: torch.Tensor, right: torch.Tensor) -> bool:
    agree = left.dim() == right.dim() and left.shape[:-2] == right.shape[:-2]
    return bool(agree and left.shape[-1] == right.shape[-2])


def _is_mm(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dim() == 2 and _is_product(left, right)


def _is_bmm(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dim() == 3 and _is_product(left, right)


def _is_addmm(bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, **_: Any) -> bool:
    return _is_mm(left, right) and bias.shape in (right.shape[1:], (left.shape[0], right.shape[1]))


def _is_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> bool:
    return not half_to_float and -x.dim() <= dim < x.dim()


CHECKS: dict[str, Callable[..., bool]] = {
    "mm": _is_mm,
    "bmm": _is_bmm,
    "addmm": _is_addmm,
    "_softmax": _is_softmax,
    "_log_softmax": _is_softmax,
}
"""Whether arguments are plain as well: what ATen checks before it calls the ``out`` variants."""


def _always(*_: Any, **__: Any) -> bool:
    return True


def functional_kernels(before: dict[str, Kernel]) -> dict[str, Kernel]:
    """Kernels of `VARIANTS`, by aten name, made of those in ``before``."""
    return {name: _making(name, before[out]) for name, out in VARIANTS.items()}


def _making(name: str, kernel: Kernel) -> Kernel:
    op, fits = operator(name), CHECKS.get(name, _always)
    tensors = sum(str(argument.type) == "Tensor" for argument in schema_of(op).arguments)

    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = plain_dtype(args)
        if dtype is not None and fits(*args, **kwargs):
            try:
                return kernel(*args, **kwargs, out=NewResult(dtype))
            except LoweringError:
                pass  # perhaps with another layout of the result
        if any(isinstance(value, (int, float, complex)) for value in args[:tensors]):
            return _with_number(op, args, kwargs)
        return op.redispatch(COMPOSITE_KEYS, *args, **kwargs)

    return call


def _with_number(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation of a tensor with a number, which only the dispatcher can take for a tensor: what
    ATen does for it, by way of the ``out`` variant.
    """
    tensor = next(value for value in args if isinstance(value, torch.Tensor))
    dtype = torch.result_type(args[0], args[1])
    if op is operator("div.Tensor") and not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    return op.overloadpacket.out(*args, out=torch.empty_like(tensor, dtype=dtype), **kwargs)


def plain_dtype(args: tuple[Any, ...]) -> torch.dtype | None:
    """The dtype of all tensors in ``args``, if they are plain: floating, contiguous, not empty, on
    the card. Real numbers beside them, also as CPU tensors of rank 0, do not matter to it.
    """
    dtype: torch.dtype | None = None
    has_number, has_rank_0 = False, False
    for value in args:
        if not isinstance(value, torch.Tensor):
            if isinstance(value, complex):
                return None
            continue
        if value.is_cpu:
            if value.dim() or value.dtype.is_complex:
                return None
            has_number = True
            continue
        if dtype is None:
            dtype = value.dtype
        if value.dtype is not dtype or not value.is_contiguous() or not value.numel():
            return None
        has_rank_0 = has_rank_0 or value.dim() == 0
    if dtype not in FLOATS or (has_number and has_rank_0):
        return None
    return dtype
