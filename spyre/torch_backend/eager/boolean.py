"""Boolean logic and predicates: logical_*, bitwise_* of bools, isnan, sign."""

from __future__ import annotations

from functools import partial

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


def _of_truths(name: str, builder: Lowering, a: Value, b: Value) -> Value:
    """An operation on 1.0 and 0.0."""
    return builder.truth(
        builder.pointwise(name, builder.convert(a, "bool"), builder.convert(b, "bool"))
    )


def negated(builder: Lowering, x: Value) -> Value:
    """Whether elements are zero."""
    x = builder.convert(x, "float32") if x.dtype in ("int32", "int64") else x
    return builder.truth(builder.pointwise("equal", x, builder.constant(0.0, x.dtype)))


def _unequal_to_itself(builder: Lowering, x: Value) -> Value:
    return builder.truth(builder.pointwise("notequal", x, x))


def _equal_to(number: float, builder: Lowering, x: Value) -> Value:
    return builder.truth(builder.pointwise("equal", x, builder.constant(number, x.dtype)))


def _sign(builder: Lowering, x: Value) -> Value:
    zero = builder.constant(0.0, x.dtype)
    above, below = (
        builder.pointwise("greaterthan", x, zero),
        builder.pointwise("lesserthan", x, zero),
    )
    return builder.pointwise("sub", above, below)


# --- kernels -------------------------------------------------------------------------------------


def _binary(label: str, lowering: LoweringFunction, args: Arguments) -> torch.Tensor:
    operands = [operand(args.self, torch.bool), operand(args.other, torch.bool)]
    return fill_elementwise(label, lowering, operands, (), args.out)


def _unary(label: str, lowering: LoweringFunction, args: Arguments) -> torch.Tensor:
    return fill_elementwise(label, lowering, [args.self], (), args.out)


def isnan(args: Arguments) -> torch.Tensor:
    """aten::isnan. The card's 16-bit format has no NaN and stores it as an infinity."""
    out = torch.empty_like(args.self, dtype=torch.bool)
    return fill("isnan", _unequal_to_itself, [args.self], (), out)


_AND = partial(_of_truths, "minimum")
_OPERATIONS: dict[str, LoweringFunction] = {
    "and": _AND,
    "or": partial(_of_truths, "maximum"),
    "xor": partial(_of_truths, "notequal"),
}


def _has_no_numbers(args: Arguments) -> bool:
    """Python's numbers among the operands are bools."""
    return all(isinstance(v, (bool, torch.Tensor)) for v in (args.self, args.other))


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
