"""Elementwise operations on floats: arithmetic, comparisons, functions, clamps."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from spyre.torch_backend.device import NAMES, name_of
from spyre.torch_backend.eager.dispatch import (
    ANY,
    CONVERTED,
    FLOAT,
    FLOATS,
    ArgumentClass,
    EagerKernel,
    NewResult,
    fill,
    fill_elementwise,
    is_computed,
    operand,
    plain_dtype,
    takes_floats,
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


def _takes_quotient(a: Any, b: Any, *, rounding_mode: str | None, out: torch.Tensor) -> bool:
    """Where nothing rounds, as ``div.out``, or towards zero; floors need exact remainders."""
    return rounding_mode in (None, "trunc") and takes_floats(a, b, out=out)


def _round_decimals(x: torch.Tensor, *, decimals: int = 0, out: torch.Tensor) -> torch.Tensor:
    return unary("round", _rounded, x, out=out)


def _takes_decimals(x: torch.Tensor, *, decimals: int = 0, out: torch.Tensor) -> bool:
    """Integers; what is rounded behind the point is the CPU's."""
    return decimals == 0 and takes_floats(x, out=out)


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


def _takes_nan_to_num(x: torch.Tensor, *_: Any, out: torch.Tensor, **__: Any) -> bool:
    """float32, since DL16 has one code for NaN and infinities."""
    return x.dtype is torch.float32 and takes_floats(x, out=out)


def _takes_comparison(a: Any, b: Any, *, out: torch.Tensor) -> bool:
    """Floats; two bools are compared in DL16 too."""
    return is_computed(a, b) and out.dtype is torch.bool and torch.result_type(a, b) in COMPARED


COMPARED = (*FLOATS, torch.bool)


def clamp_bounds(
    names: tuple[str, ...], args: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """The bounds that were given by name; ``names``: of positional ones ("min", "max")."""
    bounds = dict(zip(names, args, strict=False)) | named
    return {kind: bounds[kind] for kind in ("min", "max") if bounds.get(kind) is not None}


def _clamp(
    names: tuple[str, ...], x: torch.Tensor, *args: Any, out: torch.Tensor, **named: Any
) -> torch.Tensor:
    bounds = clamp_bounds(names, args, named)
    operands = [x, *(operand(bound, out.dtype) for bound in bounds.values())]
    parameters = (tuple(bounds), name_of(out.dtype))
    return fill_elementwise("clamp", _clamped, operands, parameters, out)


def _takes_clamp(x: torch.Tensor, *args: Any, out: torch.Tensor, **named: Any) -> bool:
    bounds = [b for b in (*args, *named.values()) if isinstance(b, torch.Tensor)]
    return takes_floats(x, out=out) and all(b.dtype in CONVERTED for b in bounds)


def takes_power(x: torch.Tensor, exponent: Any, **_: Any) -> bool:
    """Integer exponents up to 16, and ± 1/2."""
    if isinstance(exponent, torch.Tensor) or x.dtype not in FLOATS:
        return False
    number = float(exponent)
    return abs(number) == 0.5 or (number == int(number) and 1 <= abs(number) <= 16)


def _gelu(x: torch.Tensor, *, approximate: str = "none", out: torch.Tensor) -> torch.Tensor:
    lowering = tanh_gelu if approximate == "tanh" else erf_gelu
    return unary(f"gelu_{approximate}", lowering, x, out=out)


def _takes_gelu(x: torch.Tensor, *, approximate: str = "none", out: torch.Tensor) -> bool:
    return approximate in ("none", "tanh") and takes_floats(x, out=out)


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
COMPARISON_OVERLOADS = ("Tensor_out", "Scalar_out")
CLAMPS = {
    "clamp.out": ("min", "max"),
    "clamp.Tensor_out": ("min", "max"),
    "clamp_min.out": ("min",),
    "clamp_min.Tensor_out": ("min",),
    "clamp_max.out": ("max",),
    "clamp_max.Tensor_out": ("max",),
}
"""What the positional bounds of clamps are."""

KERNELS: dict[str, dict[ArgumentClass, EagerKernel]] = {
    **{
        f"{name}.out": {FLOAT: EagerKernel(partial(unary, name, lowering), takes_floats)}
        for name, lowering in _UNARY.items()
    },
    **{
        f"{name}.out": {FLOAT: EagerKernel(partial(binary, name, lowering), takes_floats)}
        for name, lowering in _BINARY.items()
    },
    **{
        f"{name}.{kind}": {
            FLOAT: EagerKernel(
                partial(comparison, f"{name}.{kind}", partial(_compared, op)), _takes_comparison
            )
        }
        for name, op in _COMPARISONS.items()
        for kind in COMPARISON_OVERLOADS
    },
    **{
        name: {FLOAT: EagerKernel(partial(_clamp, bounds), _takes_clamp)}
        for name, bounds in CLAMPS.items()
    },
    "round.decimals_out": {FLOAT: EagerKernel(_round_decimals, _takes_decimals)},
    "nan_to_num.out": {FLOAT: EagerKernel(_nan_to_num, _takes_nan_to_num)},
    "div.out_mode": {FLOAT: EagerKernel(_quotient, _takes_quotient)},
    "pow.Tensor_Scalar_out": {FLOAT: EagerKernel(partial(unary, "pow", _power), takes_power)},
    "gelu.out": {FLOAT: EagerKernel(_gelu, _takes_gelu)},
    "softplus.out": {FLOAT: EagerKernel(_softplus, takes_floats)},
    "leaky_relu.out": {FLOAT: EagerKernel(_leaky_relu, takes_floats)},
    "relu": {FLOAT: EagerKernel(relu, is_computed)},
    "relu_": {FLOAT: EagerKernel(relu_, is_computed)},
    "rsub.Tensor": {ANY: EagerKernel(reversed_subtraction)},
    "rsub.Scalar": {ANY: EagerKernel(reversed_subtraction)},
}
