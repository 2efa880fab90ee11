"""Boolean logic and predicates: logical_*, bitwise_* of bools, isnan, sign."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from spyre.torch_backend.eager.dispatch import (
    BOOL,
    CONVERTED,
    FLOATS,
    Arguments,
    Conditions,
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


def _unary(
    label: str, lowering: LoweringFunction, x: torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    return fill_elementwise(label, lowering, [x], (), out)


def isnan(x: torch.Tensor) -> torch.Tensor:
    """aten::isnan. The card's 16-bit format has no NaN: what came as one is an infinity there."""
    return fill("isnan", _unequal_to_itself, [x], (), torch.empty_like(x, dtype=torch.bool))


_AND = partial(_of_truths, "minimum")
_OPERATIONS: dict[str, LoweringFunction] = {
    "and": _AND,
    "or": partial(_of_truths, "maximum"),
    "xor": partial(_of_truths, "notequal"),
}


def _has_no_numbers(call: Arguments) -> bool:
    """Python's numbers among the operands are bools."""
    return all(isinstance(v, (bool, torch.Tensor)) for v in (call.self, call.other))


_BOOLS = Conditions(dtypes={"inputs": BOOL, "out": BOOL}, check=_has_no_numbers)
_TRUTHS = Conditions(dtypes={"inputs": CONVERTED, "out": BOOL}, check=_has_no_numbers)
_PREDICATE = Conditions(dtypes={"self": FLOATS, "out": BOOL})
_SIGN = Conditions(dtypes={"self": FLOATS}, same_dtype=("self", "out"))
_UNARY: tuple[tuple[str, LoweringFunction, Conditions], ...] = (
    ("logical_not.out", negated, Conditions(dtypes={"self": CONVERTED, "out": BOOL})),
    ("bitwise_not.out", negated, Conditions(dtypes={"self": BOOL, "out": BOOL})),
    ("isposinf.out", partial(_equal_to, float("inf")), _PREDICATE),
    ("isneginf.out", partial(_equal_to, float("-inf")), _PREDICATE),
    ("sign.out", _sign, _SIGN),
    ("sgn.out", _sign, _SIGN),
)

KERNELS = (
    *(
        EagerKernel(name, partial(_binary, name, lowering), conditions)
        for kind, lowering in _OPERATIONS.items()
        for name, conditions in (
            (f"logical_{kind}.out", _TRUTHS),
            (f"bitwise_{kind}.Tensor_out", _BOOLS),
        )
    ),
    *(EagerKernel(name, partial(_unary, name, f), conditions) for name, f, conditions in _UNARY),
    EagerKernel("isnan", isnan, Conditions(dtypes={"self": FLOATS})),
    # a product of bools is their conjunction
    EagerKernel("mul.out", partial(_binary, "logical_and.out", _AND), _BOOLS),
)
