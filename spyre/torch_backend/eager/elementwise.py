"""Elementwise operations on floats: arithmetic, comparisons, functions, clamps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from spyre.torch_backend.device import NAMES, name_of
from spyre.torch_backend.eager.dispatch import (
    ARITHMETIC,
    BOOL,
    COMPUTED,
    CONVERTED,
    FLOATS,
    OPERANDS,
    Arguments,
    Conditions,
    EagerKernel,
    NewResult,
    bind_arguments,
    fill,
    fill_elementwise,
    operand,
    plain_dtype,
)
from spyre.torch_backend.eager.special import (
    erf_gelu,
    error_function,
    logarithm,
    mish,
    silu,
    sine,
    softplus,
    tangent,
    tanh_gelu,
    with_nan,
)
from spyre.torch_backend.program import Lowering, LoweringFunction, Value

# --- lowerings: (low, *values, result dtype, …) ---------------------------------------------------


def convert_all(low: Lowering, dtype: str, *values: Value) -> list[Value]:
    return [low.convert(v, dtype) for v in values]


def apply_op(name: str, low: Lowering, *args: Any) -> Value:
    """One operation of the card in the result's dtype."""
    *values, dtype = args
    return low.pointwise(name, *convert_all(low, dtype, *values), dtype=dtype)


def _ceiling(low: Lowering, x: Value, dtype: str) -> Value:
    """-⌊-x⌋: the card rounds down only."""
    down = low.pointwise("floor", low.pointwise("neg", low.convert(x, dtype)))
    return low.pointwise("neg", down, dtype=dtype)


_INTEGERS_BEGIN = 2.0**23
"""From here on float32 holds integers only."""


def _signed_like(low: Lowering, x: Value, magnitude: Value) -> Value:
    """``magnitude`` with the sign of x; x where it is as large, since zeros have signs too."""
    negative = low.pointwise("lesserthan", x, low.constant(0.0, x.dtype))
    result = low.pointwise("where3", negative, low.pointwise("neg", magnitude), magnitude)
    return low.pointwise("where3", low.pointwise("equal", x, result), x, result)


def _truncated(low: Lowering, x: Value, dtype: str) -> Value:
    """x without its fraction."""
    x = low.convert(x, dtype)
    return _signed_like(low, x, low.pointwise("floor", low.pointwise("abs", x)))


def _rounded(low: Lowering, x: Value, dtype: str) -> Value:
    """The nearest integer, of two the even one, which is what sums beyond 2^23 are rounded to."""
    x = low.convert(x, "float32")
    size, begin = low.pointwise("abs", x), low.constant(_INTEGERS_BEGIN, "float32")
    nearest = low.pointwise("sub", low.pointwise("add", size, begin), begin)
    has_fraction = low.pointwise("lesserthan", size, begin)
    nearest = low.pointwise("where3", has_fraction, nearest, size)
    return low.convert(_signed_like(low, x, nearest), dtype)


def _truncated_quotient(low: Lowering, a: Value, b: Value, dtype: str) -> Value:
    """a / b of float32 without its fraction, rounded to ``dtype`` after that."""
    quotient = low.pointwise("realdiv", *convert_all(low, "float32", a, b))
    return low.convert(_truncated(low, quotient, "float32"), dtype)


def _finite(low: Lowering, x: Value, dtype: str, *instead: float) -> Value:
    """x with these numbers where it is NaN, inf and -inf."""
    x = low.convert(x, dtype)
    nan, top, bottom = (low.constant(number, dtype) for number in instead)
    result = x
    for edge, number in ((float("inf"), top), (float("-inf"), bottom)):
        there = low.pointwise("equal", x, low.constant(edge, dtype))
        result = low.pointwise("where3", there, number, result)
    return low.pointwise("where3", low.pointwise("equal", x, x), result, nan)


def _extreme(name: str, low: Lowering, a: Value, b: Value, dtype: str) -> Value:
    a, b = convert_all(low, dtype, a, b)
    return with_nan(low, low.pointwise(name, a, b, dtype=dtype), a, b)


def rectified(low: Lowering, x: Value, dtype: str) -> Value:
    return with_nan(low, low.pointwise("relufwd", x, dtype=dtype), x)


def _compared(name: str, low: Lowering, a: Value, b: Value, dtype: str) -> Value:
    """A comparison in ``dtype``, whose result is a bool."""
    return low.truth(low.pointwise(name, *convert_all(low, dtype, a, b)))


def _scaled(name: str, low: Lowering, *args: Any) -> Value:
    """a ± b, or a ± alpha · b with a third value."""
    *values, dtype = args
    a, b, *alpha = convert_all(low, dtype, *values)
    if alpha:
        b = low.pointwise("mul", b, alpha[0])
    return low.pointwise(name, a, b)


def _clamped(low: Lowering, x: Value, *args: Any) -> Value:
    *bounds, kinds, dtype = args
    x, *bounds = convert_all(low, dtype, x, *bounds)
    result = x
    for kind, bound in zip(kinds, bounds, strict=True):
        result = low.pointwise("maximum" if kind == "min" else "minimum", result, bound)
    return with_nan(low, result, x, *bounds)


def _power(low: Lowering, x: Value, dtype: str, exponent: float) -> Value:
    x = low.convert(x, dtype)
    if abs(exponent) == 0.5:
        return low.pointwise("sqrt" if exponent > 0 else "rsqrt", x)
    power = _integer_power(low, x, abs(int(exponent)))
    return power if exponent > 0 else low.pointwise("reciprocal", power)


def _cosine(low: Lowering, x: Value, dtype: str) -> Value:
    return sine(low, x, dtype, 1)


def _integer_power(low: Lowering, x: Value, exponent: int) -> Value:
    """x to a positive power, by squaring."""
    power: Value | None = None
    while exponent:
        if exponent & 1:
            power = x if power is None else low.pointwise("mul", power, x)
        exponent >>= 1
        if exponent:
            x = low.pointwise("mul", x, x)
    assert power is not None
    return power


def _leaky(low: Lowering, x: Value, dtype: str, slope: float) -> Value:
    zero = low.constant(0, dtype)
    negative = low.pointwise("mul", low.pointwise("minimum", x, zero), low.constant(slope, dtype))
    return with_nan(low, low.pointwise("add", low.pointwise("maximum", x, zero), negative), x)


# --- kernels: (label of the programs, lowering, *aten's arguments) -------------------------------


def unary(
    label: str, lowering: LoweringFunction, x: torch.Tensor, *numbers: float, out: torch.Tensor
) -> torch.Tensor:
    """A function of one tensor; ``numbers``: parameters of the lowering."""
    parameters = (NAMES[out.dtype], *map(float, numbers))
    return fill_elementwise(label, lowering, [x], parameters, out)


def binary(
    label: str,
    lowering: LoweringFunction,
    a: Any,
    b: Any,
    *,
    alpha: float = 1,
    out: torch.Tensor,
) -> torch.Tensor:
    """A function of two operands; ``alpha`` scales the second one of sums."""
    operands = [operand(a, out.dtype), operand(b, out.dtype)]
    if alpha != 1:
        operands.append(operand(alpha, out.dtype))
    return fill_elementwise(label, lowering, operands, (NAMES[out.dtype],), out)


def comparison(
    label: str, lowering: LoweringFunction, a: Any, b: Any, *, out: torch.Tensor
) -> torch.Tensor:
    """A comparison in the dtype torch promotes the operands to."""
    dtype = torch.result_type(a, b)
    operands = [operand(a, dtype), operand(b, dtype)]
    return fill_elementwise(label, lowering, operands, (NAMES[dtype],), out)


def _quotient(a: Any, b: Any, *, rounding_mode: str | None = None, out: torch.Tensor) -> Any:
    """aten::div.out_mode."""
    if rounding_mode is None:
        return binary("div", _BINARY["div"], a, b, out=out)
    operands = [operand(a, torch.float32), operand(b, torch.float32)]
    return fill_elementwise("div trunc", _truncated_quotient, operands, (NAMES[out.dtype],), out)


def _round_decimals(x: torch.Tensor, *, decimals: int = 0, out: torch.Tensor) -> torch.Tensor:
    return unary("round", _rounded, x, out=out)


def _nan_to_num(
    x: torch.Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """aten::nan_to_num.out."""
    limits = torch.finfo(out.dtype)
    instead = (
        0.0 if nan is None else nan,
        limits.max if posinf is None else posinf,
        limits.min if neginf is None else neginf,
    )
    return unary("nan_to_num", _finite, x, *instead, out=out)


def clamp_bounds(call: Arguments) -> dict[str, Any]:
    """The bounds that a clamp is called with, by "min" and "max"."""
    bounds = {kind: getattr(call, kind, None) for kind in ("min", "max")}
    return {kind: bound for kind, bound in bounds.items() if bound is not None}


def _clamp(name: str, *args: Any, **named: Any) -> torch.Tensor:
    call = bind_arguments(name, args, named)
    bounds, out = clamp_bounds(call), call.out
    operands = [call.self, *(operand(bound, out.dtype) for bound in bounds.values())]
    parameters = (tuple(bounds), name_of(out.dtype))
    return fill_elementwise("clamp", _clamped, operands, parameters, out)


def _has_power(call: Arguments) -> bool:
    """Integer exponents up to 16, and ± 1/2."""
    if isinstance(call.exponent, torch.Tensor):
        return False
    number = float(call.exponent)
    return abs(number) == 0.5 or (number == int(number) and 1 <= abs(number) <= 16)


def _gelu(x: torch.Tensor, *, approximate: str = "none", out: torch.Tensor) -> torch.Tensor:
    lowering = tanh_gelu if approximate == "tanh" else erf_gelu
    return unary(f"gelu_{approximate}", lowering, x, out=out)


def _softplus(
    x: torch.Tensor, beta: float = 1, threshold: float = 20, *, out: torch.Tensor
) -> torch.Tensor:
    return unary("softplus", softplus, x, beta, threshold, out=out)


def _leaky_relu(x: torch.Tensor, slope: float = 0.01, *, out: torch.Tensor) -> torch.Tensor:
    return unary("leaky_relu", _leaky, x, slope, out=out)


def relu(x: torch.Tensor) -> torch.Tensor:
    dtype = plain_dtype((x,))
    target = torch.empty_like(x) if dtype is None else NewResult(dtype)
    return fill("relu", rectified, [x], (name_of(x.dtype),), target)


def relu_(x: torch.Tensor) -> torch.Tensor:
    return fill("relu", rectified, [x], (name_of(x.dtype),), x)


def reversed_subtraction(a: torch.Tensor, b: Any, alpha: float = 1) -> torch.Tensor:
    """aten::rsub: b - alpha · a."""
    if isinstance(b, torch.Tensor):
        return torch.sub(b, a, alpha=alpha)
    return torch.add(torch.mul(a, -alpha), b)


# --- the table -----------------------------------------------------------------------------------

_UNARY: dict[str, LoweringFunction] = {
    **{name: partial(apply_op, name) for name in ("abs", "neg", "exp", "sqrt", "rsqrt")},
    **{name: partial(apply_op, name) for name in ("reciprocal", "sigmoid", "floor")},
    "ceil": _ceiling,
    "trunc": _truncated,
    "round": _rounded,
    "log": logarithm,
    "silu": silu,
    "tanh": tangent,
    "mish": mish,
    "sin": sine,
    "cos": _cosine,
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

_COMPARISON = Conditions(dtypes={"inputs": OPERANDS, "out": BOOL}, promotes_to=COMPUTED)
_CLAMP = Conditions(
    dtypes={"self": OPERANDS, "min": CONVERTED, "max": CONVERTED, "out": FLOATS},
)
# DL16 has one code for NaN and infinities
_NAN_TO_NUM = Conditions(dtypes={"self": (torch.float32,), "out": FLOATS})
_POWER = Conditions(dtypes={"self": FLOATS}, check=_has_power)

KERNELS = (
    *(EagerKernel(f"{n}.out", partial(unary, n, f), ARITHMETIC) for n, f in _UNARY.items()),
    *(EagerKernel(f"{n}.out", partial(binary, n, f), ARITHMETIC) for n, f in _BINARY.items()),
    *(
        EagerKernel(full, partial(comparison, full, partial(_compared, op)), _COMPARISON)
        for name, op in _COMPARISONS.items()
        for full in (f"{name}.Tensor_out", f"{name}.Scalar_out")
    ),
    *(EagerKernel(name, partial(_clamp, name), _CLAMP) for name in CLAMPS),
    EagerKernel(
        "round.decimals_out", _round_decimals, replace(ARITHMETIC, values={"decimals": (0,)})
    ),
    EagerKernel("nan_to_num.out", _nan_to_num, _NAN_TO_NUM),
    # floors need exact remainders
    EagerKernel(
        "div.out_mode", _quotient, replace(ARITHMETIC, values={"rounding_mode": (None, "trunc")})
    ),
    EagerKernel("pow.Tensor_Scalar_out", partial(unary, "pow", _power), _POWER),
    EagerKernel("gelu.out", _gelu, replace(ARITHMETIC, values={"approximate": ("none", "tanh")})),
    EagerKernel("softplus.out", _softplus, ARITHMETIC),
    EagerKernel("leaky_relu.out", _leaky_relu, ARITHMETIC),
    EagerKernel("relu", relu, Conditions(dtypes={"self": OPERANDS})),
    EagerKernel("relu_", relu_, Conditions(dtypes={"self": OPERANDS})),
    EagerKernel("rsub.Tensor", reversed_subtraction),
    EagerKernel("rsub.Scalar", reversed_subtraction),
)
