"""Elementwise operations on floats: arithmetic, comparisons, functions, clamps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from spyre.torch_backend.device import NAMES, name_of
from spyre.torch_backend.eager.dispatch import (
    ARITHMETIC,
    BOOL,
    COMPUTED,
    CONVERTED,
    FLOATS,
    INTEGERS,
    NUMBER,
    OPERANDS,
    PROMOTION,
    Arguments,
    Conditions,
    NewResult,
    fill,
    fill_elementwise,
    operand,
    plain_dtype,
)
from spyre.torch_backend.eager.special import (
    Term,
    erf_gelu,
    error_function,
    logarithm,
    mish,
    power,
    power_of_floats,
    silu,
    sine,
    softplus,
    tanh,
    tanh_gelu,
    terms_of,
    with_nan,
)
from spyre.torch_backend.program import Lowering, LoweringFunction, Value

# --- lowerings: (builder, *values, result dtype, …) ----------------------------------------------


def convert_all(builder: Lowering, dtype: str, *values: Value) -> list[Value]:
    return [builder.convert(v, dtype) for v in values]


def apply_op(name: str, builder: Lowering, *args: Any) -> Value:
    """One operation of the card in the result's dtype."""
    *values, dtype = args
    return builder.pointwise(name, *convert_all(builder, dtype, *values), dtype=dtype)


def _formula(function: Callable[[Term], Term], builder: Lowering, x: Value, dtype: str) -> Value:
    """A function of terms, in the result's dtype."""
    return function(*terms_of(builder, dtype, x)).value


_INTEGERS_BEGIN = 2.0**23
"""From here on float32 holds integers only."""


def _signed_like(x: Term, magnitude: Term) -> Term:
    """``magnitude`` with the sign of x; x where it is as large, since zeros have signs too."""
    result = (x < 0.0).chosen(-magnitude, magnitude)
    return x.equal(result).chosen(x, result)


def _truncated(x: Term) -> Term:
    """x without its fraction."""
    return _signed_like(x, abs(x).floor())


def _rounded(builder: Lowering, x: Value, dtype: str) -> Value:
    """The nearest integer, ties to even: sums beyond 2^23 are rounded that way."""
    (term,) = terms_of(builder, "float32", x)
    size = abs(term)
    nearest = size + _INTEGERS_BEGIN - _INTEGERS_BEGIN
    nearest = (size < _INTEGERS_BEGIN).chosen(nearest, size)
    return _signed_like(term, nearest).convert(dtype).value


def _truncated_quotient(builder: Lowering, a: Value, b: Value, dtype: str) -> Value:
    """a / b of float32 without its fraction, rounded to ``dtype`` after that."""
    # integers are rounded to the result's dtype before
    a, b = (builder.convert(v, dtype) if v.dtype in ("int32", "int64") else v for v in (a, b))
    dividend, divisor = terms_of(builder, "float32", a, b)
    return _truncated(dividend / divisor).convert(dtype).value


def _finite(builder: Lowering, x: Value, dtype: str, nan: float, top: float, low: float) -> Value:
    """x with these numbers where it is NaN, inf and -inf."""
    term = result = Term(builder, builder.convert(x, dtype))
    for edge, number in ((float("inf"), top), (float("-inf"), low)):
        result = term.equal(edge).chosen(number, result)
    return term.equal(term).chosen(result, nan).value


def _extreme(name: str, builder: Lowering, a: Value, b: Value, dtype: str) -> Value:
    a, b = convert_all(builder, dtype, a, b)
    return with_nan(builder, builder.pointwise(name, a, b, dtype=dtype), a, b)


def rectified(builder: Lowering, x: Value, dtype: str) -> Value:
    return with_nan(builder, builder.pointwise("relufwd", x, dtype=dtype), x)


def compared(name: str, builder: Lowering, a: Value, b: Value, dtype: str) -> Value:
    """A comparison, or another operation with results 1.0 and 0.0, in ``dtype``; a bool."""
    return builder.truth(builder.pointwise(name, *convert_all(builder, dtype, a, b)))


def _scaled(name: str, builder: Lowering, *args: Any) -> Value:
    """a ± b, or a ± alpha · b with a third value."""
    *values, dtype = args
    a, b, *alpha = convert_all(builder, dtype, *values)
    if alpha:
        b = builder.pointwise("mul", b, alpha[0])
    return builder.pointwise(name, a, b)


def _clamped(builder: Lowering, x: Value, *args: Any) -> Value:
    *bounds, kinds, dtype = args
    x, *bounds = convert_all(builder, dtype, x, *bounds)
    result = x
    for kind, bound in zip(kinds, bounds, strict=True):
        result = builder.pointwise("maximum" if kind == "min" else "minimum", result, bound)
    return with_nan(builder, result, x, *bounds)


def _power(builder: Lowering, x: Value, dtype: str, exponent: float) -> Value:
    term = Term(builder, builder.convert(x, dtype))
    if abs(exponent) == 0.5:
        return term.apply("sqrt" if exponent > 0 else "rsqrt").value
    if dtype == "float32" and not -2 < exponent < 5:
        return power(term, int(exponent)).value
    plain: Term = by_squaring(term, abs(int(exponent)), operator.mul)
    return (plain if exponent > 0 else plain.apply("reciprocal")).value


def by_squaring(x: Any, exponent: int, product: Callable[[Any, Any], Any]) -> Any:
    """x to a positive power."""
    power = None
    while exponent:
        if exponent & 1:
            power = x if power is None else product(power, x)
        exponent >>= 1
        if exponent:
            x = product(x, x)
    return power


def _leaky(builder: Lowering, x: Value, dtype: str, slope: float) -> Value:
    term = Term(builder, x)
    negative = term.minimum(0) * slope
    return with_nan(builder, (term.maximum(0) + negative).value, x)


# --- kernels -------------------------------------------------------------------------------------


def unary(
    label: str, lowering: LoweringFunction, names: Sequence[str], args: Arguments
) -> torch.Tensor:
    """A function of one tensor; ``names``: of arguments that are parameters of the lowering."""
    numbers = (float(getattr(args, name)) for name in names)
    parameters = (NAMES[args.out.dtype], *numbers)
    return fill_elementwise(label, lowering, [args.self], parameters, args.out)


def binary(label: str, lowering: LoweringFunction, args: Arguments) -> torch.Tensor:
    """A function of two operands; ``alpha`` scales the second one of sums."""
    dtype, alpha = args.out.dtype, getattr(args, "alpha", 1)
    operands = [operand(args.self, dtype), operand(args.other, dtype)]
    if alpha != 1:
        operands.append(operand(alpha, dtype))
    return fill_elementwise(label, lowering, operands, (NAMES[dtype],), args.out)


def comparison(label: str, lowering: LoweringFunction, args: Arguments) -> torch.Tensor:
    """A comparison in the dtype torch promotes the operands to."""
    dtype = torch.result_type(args.self, args.other)
    operands = [operand(args.self, dtype), operand(args.other, dtype)]
    return fill_elementwise(label, lowering, operands, (NAMES[dtype],), args.out)


def _quotient(args: Arguments) -> torch.Tensor:
    if args.rounding_mode is None:
        return binary("div", _BINARY["div"], args)
    operands = [operand(value, torch.float32) for value in (args.self, args.other)]
    parameters = (NAMES[args.out.dtype],)
    return fill_elementwise("div trunc", _truncated_quotient, operands, parameters, args.out)


def _nan_to_num(args: Arguments) -> torch.Tensor:
    limits = torch.finfo(args.out.dtype)
    instead = (
        0.0 if args.nan is None else args.nan,
        limits.max if args.posinf is None else args.posinf,
        limits.min if args.neginf is None else args.neginf,
    )
    parameters = (NAMES[args.out.dtype], *map(float, instead))
    return fill_elementwise("nan_to_num", _finite, [args.self], parameters, args.out)


def clamp_bounds(args: Arguments) -> dict[str, Any]:
    """The bounds that a clamp is called with, by "min" and "max"."""
    bounds = {kind: getattr(args, kind, None) for kind in ("min", "max")}
    return {kind: bound for kind, bound in bounds.items() if bound is not None}


def _clamp(args: Arguments) -> torch.Tensor:
    bounds, dtype = clamp_bounds(args), args.out.dtype
    operands = [args.self, *(operand(bound, dtype) for bound in bounds.values())]
    return fill_elementwise("clamp", _clamped, operands, (tuple(bounds), NAMES[dtype]), args.out)


def _has_power(args: Arguments) -> bool:
    """Integer exponents up to 16, and ± 1/2."""
    if isinstance(args.exponent, (torch.Tensor, complex)):
        return False
    number = float(args.exponent)
    return abs(number) == 0.5 or (number == int(number) and 1 <= abs(number) <= 16)


def _any_power(args: Arguments) -> torch.Tensor:
    """x ** y of tensors and numbers; numbers keep the precision of float32."""
    operands = [operand(value, torch.float32) for value in (args.self, args.exponent)]
    parameters = (NAMES[args.out.dtype],)
    return fill_elementwise("any pow", power_of_floats, operands, parameters, args.out)


def _gelu(args: Arguments) -> torch.Tensor:
    lowering = tanh_gelu if args.approximate == "tanh" else erf_gelu
    return unary(f"gelu_{args.approximate}", lowering, (), args)


def relu(is_in_place: bool, args: Arguments) -> torch.Tensor:
    x = args.self
    target: torch.Tensor | NewResult = x
    if not is_in_place:
        dtype = plain_dtype((x,))
        target = torch.empty_like(x) if dtype is None else NewResult(dtype)
    return fill("relu", rectified, [x], (name_of(x.dtype),), target)


def reversed_subtraction(args: Arguments) -> torch.Tensor:
    """aten::rsub: other - alpha · self."""
    return torch.sub(args.other, args.self, alpha=args.alpha)


# --- the table -----------------------------------------------------------------------------------

_UNARY: dict[str, LoweringFunction] = {
    **{name: partial(apply_op, name) for name in ("abs", "neg", "exp", "sqrt", "rsqrt")},
    **{name: partial(apply_op, name) for name in ("reciprocal", "sigmoid", "floor")},
    "ceil": partial(_formula, lambda x: -((-x).floor())),  # the card rounds down only
    "trunc": partial(_formula, _truncated),
    "round": _rounded,
    "log": logarithm,
    "silu": silu,
    "tanh": tanh,
    "mish": mish,
    "sin": sine,
    "cos": partial(sine, quarters=1),
    "erf": error_function,
}
_BINARY: dict[str, LoweringFunction] = {
    "add": partial(_scaled, "add"),
    "sub": partial(_scaled, "sub"),
    "mul": partial(apply_op, "mul"),
    "div": partial(apply_op, "realdiv"),
    "maximum": partial(_extreme, "maximum"),
    "minimum": partial(_extreme, "minimum"),
}
_COMPARISONS = {
    "eq": "equal",
    "ne": "notequal",
    "ge": "greaterequal",
    "le": "lesserequal",
    "gt": "greaterthan",
    "lt": "lesserthan",
}
CLAMPS = tuple(
    f"{name}.{kind}"
    for name in ("clamp", "clamp_min", "clamp_max")
    for kind in ("out", "Tensor_out")
)

_COMPARISON = Conditions(
    dtypes={"inputs": (*OPERANDS, *INTEGERS), "out": BOOL}, promotes_to=COMPUTED
)
_PROMOTED = ("exp", "sqrt", "rsqrt", "reciprocal", "sigmoid", "log", "tanh")
_CLAMP = Conditions(dtypes={"self": OPERANDS, "min": CONVERTED, "max": CONVERTED, "out": FLOATS})
# DL16 has one code for NaN and infinities
_NAN_TO_NUM = Conditions(dtypes={"self": (torch.float32,), "out": FLOATS})
_POWER = Conditions(dtypes={"self": FLOATS}, check=_has_power)
_POWERS = ("Tensor_Scalar", "Scalar", "Tensor_Tensor")
_ANY_POWER = Conditions(
    dtypes={"inputs": (*CONVERTED, NUMBER), "out": FLOATS},
    check=lambda args: not any(isinstance(v, complex) for v in (args.self, args.exponent)),
)

KERNELS = (
    *(
        (f"{n}.out", partial(unary, n, f, ()), PROMOTION if n in _PROMOTED else ARITHMETIC)
        for n, f in _UNARY.items()
    ),
    *((f"{n}.out", partial(binary, n, f), PROMOTION) for n, f in _BINARY.items()),
    *(
        (full, partial(comparison, full, partial(compared, op)), _COMPARISON)
        for name, op in _COMPARISONS.items()
        for full in (f"{name}.Tensor_out", f"{name}.Scalar_out")
    ),
    *((name, _clamp, _CLAMP) for name in CLAMPS),
    (
        "round.decimals_out",
        partial(unary, "round", _rounded, ()),
        replace(ARITHMETIC, values={"decimals": (0,)}),
    ),
    ("nan_to_num.out", _nan_to_num, _NAN_TO_NUM),
    # floors need exact remainders
    ("div.out_mode", _quotient, replace(PROMOTION, values={"rounding_mode": (None, "trunc")})),
    ("pow.Tensor_Scalar_out", partial(unary, "pow", _power, ("exponent",)), _POWER),
    *((f"pow.{kind}_out", _any_power, _ANY_POWER) for kind in _POWERS),
    ("gelu.out", _gelu, replace(ARITHMETIC, values={"approximate": ("none", "tanh")})),
    ("softplus.out", partial(unary, "softplus", softplus, ("beta", "threshold")), ARITHMETIC),
    ("leaky_relu.out", partial(unary, "leaky_relu", _leaky, ("negative_slope",)), ARITHMETIC),
    ("relu", partial(relu, False), Conditions(dtypes={"self": OPERANDS})),
    ("relu_", partial(relu, True), Conditions(dtypes={"self": OPERANDS})),
    ("rsub.Tensor", reversed_subtraction, None),
    ("rsub.Scalar", reversed_subtraction, None),
)
