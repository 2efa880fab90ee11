"""Boolean logic and predicates: logical_*, bitwise_* of bools, isnan, sign."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from spyre.torch_backend.eager.dispatch import (
    ANY,
    BOOL,
    CONVERTED,
    FLOAT,
    FLOATS,
    ArgumentClass,
    EagerKernel,
    fill,
    fill_elementwise,
    operand,
)
from spyre.torch_backend.program import Lowering, LoweringFunction, Value


def _of_truths(name: str, low: Lowering, a: Value, b: Value) -> Value:
    """An operation on 1.0 and 0.0."""
    return low.truth(low.pointwise(name, low.convert(a, "bool"), low.convert(b, "bool")))


def negated(low: Lowering, x: Value) -> Value:
    """Whether elements are zero."""
    x = low.convert(x, "float32") if x.dtype in ("int32", "int64") else x
    return low.truth(low.pointwise("equal", x, low.constant(0.0, x.dtype)))


def _unequal_to_itself(low: Lowering, x: Value) -> Value:
    return low.truth(low.pointwise("notequal", x, x))


def _equal_to(number: float, low: Lowering, x: Value) -> Value:
    return low.truth(low.pointwise("equal", x, low.constant(number, x.dtype)))


def _sign(low: Lowering, x: Value) -> Value:
    zero = low.constant(0.0, x.dtype)
    above, below = low.pointwise("greaterthan", x, zero), low.pointwise("lesserthan", x, zero)
    return low.pointwise("sub", above, below)


# --- kernels: (label of the programs, lowering, *aten's arguments) -------------------------------


def _binary(
    label: str, lowering: LoweringFunction, a: Any, b: Any, *, out: torch.Tensor
) -> torch.Tensor:
    operands = [operand(a, torch.bool), operand(b, torch.bool)]
    return fill_elementwise(label, lowering, operands, (), out)


def _is_truth(value: Any) -> bool:
    """Python's bools and tensors of them."""
    if isinstance(value, torch.Tensor):
        return value.dtype is torch.bool
    return isinstance(value, bool)


def _takes_bools(a: Any, b: Any, *, out: torch.Tensor) -> bool:
    return out.dtype is torch.bool and _is_truth(a) and _is_truth(b)


def _takes_truths(a: Any, b: Any, *, out: torch.Tensor) -> bool:
    """Bools, and tensors whose elements are true where they are not zero."""
    known = all(_is_truth(v) or (torch.is_tensor(v) and v.dtype in CONVERTED) for v in (a, b))
    return known and out.dtype is torch.bool


def _unary(
    label: str, lowering: LoweringFunction, x: torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    return fill_elementwise(label, lowering, [x], (), out)


def _takes_not(x: torch.Tensor, *, out: torch.Tensor) -> bool:
    return x.dtype in CONVERTED and out.dtype is torch.bool


def _takes_bool(x: torch.Tensor, *, out: torch.Tensor) -> bool:
    return x.dtype is torch.bool and out.dtype is torch.bool


def _takes_predicate(x: torch.Tensor, *, out: torch.Tensor) -> bool:
    return x.dtype in FLOATS and out.dtype is torch.bool


def _takes_sign(x: torch.Tensor, *, out: torch.Tensor) -> bool:
    return x.dtype in FLOATS and x.dtype == out.dtype


def isnan(x: torch.Tensor) -> torch.Tensor:
    """aten::isnan. The card's 16-bit format has no NaN: what came as one is an infinity there."""
    return fill("isnan", _unequal_to_itself, [x], (), torch.empty_like(x, dtype=torch.bool))


def _is_float(x: torch.Tensor) -> bool:
    return x.dtype in FLOATS


_AND = partial(_of_truths, "minimum")
_OPERATIONS: dict[str, LoweringFunction] = {
    "and": _AND,
    "or": partial(_of_truths, "maximum"),
    "xor": partial(_of_truths, "notequal"),
}


def _single(
    name: str, lowering: LoweringFunction, takes: Any, kind: ArgumentClass
) -> dict[str, dict[ArgumentClass, EagerKernel]]:
    return {name: {kind: EagerKernel(partial(_unary, name, lowering), takes)}}


KERNELS: dict[str, dict[ArgumentClass, EagerKernel]] = {
    **{
        full: {ANY: EagerKernel(partial(_binary, full, lowering), _takes_truths)}
        for name, lowering in _OPERATIONS.items()
        for full in (f"logical_{name}.out",)
    },
    **{
        full: {BOOL: EagerKernel(partial(_binary, full, lowering), _takes_bools)}
        for name, lowering in _OPERATIONS.items()
        for full in (f"bitwise_{name}.Tensor_out",)
    },
    **_single("logical_not.out", negated, _takes_not, ANY),
    **_single("bitwise_not.out", negated, _takes_bool, BOOL),
    **_single("isposinf.out", partial(_equal_to, float("inf")), _takes_predicate, FLOAT),
    **_single("isneginf.out", partial(_equal_to, float("-inf")), _takes_predicate, FLOAT),
    **_single("sign.out", _sign, _takes_sign, FLOAT),
    **_single("sgn.out", _sign, _takes_sign, FLOAT),
    "isnan": {FLOAT: EagerKernel(isnan, _is_float)},
    # a product of bools is their conjunction
    "mul.out": {BOOL: EagerKernel(partial(_binary, "logical_and.out", _AND), _takes_bools)},
}
