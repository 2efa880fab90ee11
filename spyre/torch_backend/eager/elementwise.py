"""Elementwise operations: arithmetic, comparisons, functions, clamps, conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spyre.torch_backend.eager.dispatch import (
    COMPUTED,
    FLOATS,
    Kernel,
    broadcast_shape,
    falling_back,
    fill,
    is_computed,
    operand,
)
from spyre.torch_backend.eager.special import (
    erf_gelu,
    logarithm,
    mish,
    softplus,
    tangent,
    tanh_gelu,
    with_nan,
)
from spyre.torch_backend.program.op_spec import Value
from spyre.torch_backend.program.operations import Lowering

Lower = Callable[..., Value]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _floats(low: Lowering, dtype: str, *values: Value) -> list[Value]:
    return [low.convert(v, dtype) for v in values]


# --- lowerings: (low, *values, result dtype, …) ---------------------------------------------------


def _apply(name: str) -> Lower:
    """One operation of the card in the result's dtype."""

    def lower(low: Lowering, *rest: Any) -> Value:
        *values, dtype = rest
        return low.pointwise(name, *_floats(low, dtype, *values), dtype=dtype)

    return lower


def _ceiling(low: Lowering, x: Value, dtype: str) -> Value:
    """-⌊-x⌋."""
    down = low.pointwise("floor", low.pointwise("neg", low.convert(x, dtype)))
    return low.pointwise("neg", down, dtype=dtype)


def _extreme(name: str) -> Lower:
    """maximum or minimum."""

    def lower(low: Lowering, a: Value, b: Value, dtype: str) -> Value:
        a, b = _floats(low, dtype, a, b)
        return with_nan(low, low.pointwise(name, a, b, dtype=dtype), a, b)

    return lower


def _rectified(low: Lowering, x: Value, dtype: str) -> Value:
    return with_nan(low, low.pointwise("relufwd", x, dtype=dtype), x)


def _compare(name: str) -> Lower:
    """A comparison in ``dtype``, whose result is a bool."""

    def lower(low: Lowering, a: Value, b: Value, dtype: str) -> Value:
        return low.truth(low.pointwise(name, *_floats(low, dtype, a, b)))

    return lower


def _scaled(name: str) -> Lower:
    """a ± b, or a ± alpha · b with a third value."""

    def lower(low: Lowering, *rest: Any) -> Value:
        *values, dtype = rest
        a, b, *alpha = _floats(low, dtype, *values)
        if alpha:
            b = low.pointwise("mul", b, alpha[0])
        return low.pointwise(name, a, b)

    return lower


def _clamped(low: Lowering, x: Value, *rest: Any) -> Value:
    *bounds, kinds, dtype = rest
    x, *bounds = _floats(low, dtype, x, *bounds)
    found = x
    for kind, bound in zip(kinds, bounds, strict=True):
        found = low.pointwise("maximum" if kind == "min" else "minimum", found, bound)
    return with_nan(low, found, x, *bounds)


def _power(low: Lowering, x: Value, dtype: str, exponent: float) -> Value:
    (x,) = _floats(low, dtype, x)
    whole = abs(int(exponent)) if exponent == int(exponent) else 0
    if exponent == 0.5:
        return low.pointwise("sqrt", x)
    if exponent == -0.5:
        return low.pointwise("rsqrt", x)
    found = _whole_power(low, x, whole)
    return found if exponent > 0 else low.pointwise("reciprocal", found)


def _whole_power(low: Lowering, x: Value, exponent: int) -> Value:
    """x to a positive whole power, by squaring."""
    found: Value | None = None
    while exponent:
        if exponent & 1:
            found = x if found is None else low.pointwise("mul", found, x)
        exponent >>= 1
        if exponent:
            x = low.pointwise("mul", x, x)
    assert found is not None
    return found


def takes_power(x: torch.Tensor, exponent: Any, **_: Any) -> bool:
    """Whole exponents up to 16, and ± 1/2."""
    if isinstance(exponent, torch.Tensor) or not is_computed(x):
        return False
    number = float(exponent)
    whole = number == int(number) and 1 <= abs(number) <= 16
    return x.dtype in FLOATS and (whole or abs(number) == 0.5)


# --- kernels -------------------------------------------------------------------------------------


def _unary(name: str, lower: Lower) -> Kernel:
    def kernel(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        return fill(name, lower, [x], (_name(out.dtype),), out, x.shape)

    def takes(x: torch.Tensor, *, out: torch.Tensor) -> bool:
        return is_computed(x) and out.dtype in FLOATS

    return falling_back(f"{name}.out", kernel, takes)


def _binary(name: str, lower: Lower) -> Kernel:
    def kernel(a: Any, b: Any, *, out: torch.Tensor) -> torch.Tensor:
        operands = [operand(a, out.dtype), operand(b, out.dtype)]
        return fill(name, lower, operands, (_name(out.dtype),), out, broadcast_shape(*operands))

    def takes(a: Any, b: Any, *, out: torch.Tensor) -> bool:
        return is_computed(a, b) and out.dtype in FLOATS

    return falling_back(f"{name}.out", kernel, takes)


def _scaled_binary(name: str, lower: Lower) -> Kernel:
    def kernel(a: Any, b: Any, *, alpha: float = 1, out: torch.Tensor) -> torch.Tensor:
        operands = [operand(a, out.dtype), operand(b, out.dtype)]
        if alpha != 1:
            operands.append(operand(alpha, out.dtype))
        return fill(name, lower, operands, (_name(out.dtype),), out, broadcast_shape(*operands))

    def takes(a: Any, b: Any, *, alpha: float = 1, out: torch.Tensor) -> bool:
        return is_computed(a, b) and out.dtype in FLOATS

    return falling_back(f"{name}.out", kernel, takes)


def _comparison(name: str, lower: Lower) -> Kernel:
    def kernel(a: Any, b: Any, *, out: torch.Tensor) -> torch.Tensor:
        dtype = _common(a, b)
        operands = [operand(a, dtype), operand(b, dtype)]
        return fill(name, lower, operands, (_name(dtype),), out, broadcast_shape(*operands))

    def takes(a: Any, b: Any, *, out: torch.Tensor) -> bool:
        return is_computed(a, b) and out.dtype is torch.bool and is_card_float(_common(a, b))

    return falling_back(name, kernel, takes)


def is_card_float(dtype: torch.dtype) -> bool:
    """True for dtypes comparisons run in; of two bools they run in DL16 too."""
    return dtype in (*FLOATS, torch.bool)


def _common(*values: Any) -> torch.dtype:
    return torch.result_type(*values)


def _clamp(name: str) -> Kernel:
    def kernel(x: torch.Tensor, *rest: Any, out: torch.Tensor, **named: Any) -> torch.Tensor:
        low, high = _bounds(name, rest, named)
        pairs = [(k, b) for k, b in (("min", low), ("max", high)) if b is not None]
        operands = [x, *(operand(b, out.dtype) for _, b in pairs)]
        kinds, sizes = tuple(k for k, _ in pairs), broadcast_shape(*operands)
        return fill("clamp", _clamped, operands, (kinds, _name(out.dtype)), out, sizes)

    def takes(x: torch.Tensor, *rest: Any, out: torch.Tensor, **named: Any) -> bool:
        bounds = [b for b in (*rest, *named.values()) if isinstance(b, torch.Tensor)]
        converted = all(b.dtype in (*COMPUTED, torch.int32, torch.int64) for b in bounds)
        return is_computed(x) and converted and out.dtype in FLOATS

    return falling_back(name, kernel, takes)


def _bounds(name: str, rest: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """Lower and upper bound, None where there is none."""
    names: tuple[str, ...] = ("min", "max")
    if name.startswith("clamp_"):
        names = (name[len("clamp_") : len("clamp_") + 3],)
    found = dict(zip(names, rest, strict=False)) | named
    return found.get("min"), found.get("max")


def _pow(x: torch.Tensor, exponent: Any, *, out: torch.Tensor) -> torch.Tensor:
    return fill("pow", _power, [x], (_name(out.dtype), float(exponent)), out, x.shape)


def _gelu(x: torch.Tensor, *, approximate: str = "none", out: torch.Tensor) -> torch.Tensor:
    lower = tanh_gelu if approximate == "tanh" else erf_gelu
    return fill(f"gelu_{approximate}", lower, [x], (_name(out.dtype),), out, x.shape)


def _softplus(
    x: torch.Tensor, beta: float = 1, threshold: float = 20, *, out: torch.Tensor
) -> torch.Tensor:
    parameters = (_name(out.dtype), float(beta), float(threshold))
    return fill("softplus", softplus, [x], parameters, out, x.shape)


def _takes_float(x: torch.Tensor, *_: Any, out: torch.Tensor, **__: Any) -> bool:
    return is_computed(x) and out.dtype in FLOATS


def _takes_gelu(x: torch.Tensor, *, approximate: str = "none", out: torch.Tensor) -> bool:
    return approximate in ("none", "tanh") and _takes_float(x, out=out)


def _leaky(low: Lowering, x: Value, dtype: str, slope: float) -> Value:
    zero = low.constant(0, dtype)
    negative = low.pointwise("mul", low.pointwise("minimum", x, zero), low.constant(slope, dtype))
    return with_nan(low, low.pointwise("add", low.pointwise("maximum", x, zero), negative), x)


def _leaky_relu(x: torch.Tensor, slope: float = 0.01, *, out: torch.Tensor) -> torch.Tensor:
    return fill("leaky_relu", _leaky, [x], (_name(out.dtype), float(slope)), out, x.shape)


def relu(x: torch.Tensor) -> torch.Tensor:
    """aten::relu."""
    return fill("relu", _rectified, [x], (_name(x.dtype),), torch.empty_like(x))


def relu_(x: torch.Tensor) -> torch.Tensor:
    """aten::relu_."""
    return fill("relu", _rectified, [x], (_name(x.dtype),), x)


def reversed_subtraction(a: torch.Tensor, b: Any, alpha: float = 1) -> torch.Tensor:
    """aten::rsub: b - alpha · a."""
    if isinstance(b, torch.Tensor):
        return torch.sub(b, a, alpha=alpha)
    return torch.add(torch.mul(a, -alpha), b)


_UNARY = {
    "abs": _apply("abs"),
    "neg": _apply("neg"),
    "exp": _apply("exp"),
    "sqrt": _apply("sqrt"),
    "rsqrt": _apply("rsqrt"),
    "reciprocal": _apply("reciprocal"),
    "sigmoid": _apply("sigmoid"),
    "floor": _apply("floor"),
    "ceil": _ceiling,
    "silu": _apply("silu"),
    "log": logarithm,
    "tanh": tangent,
    "mish": mish,
}
_BINARY = {
    "mul": _apply("mul"),
    "div": _apply("realdiv"),
    "maximum": _extreme("maximum"),
    "minimum": _extreme("minimum"),
}
_SCALED = {"add": _scaled("add"), "sub": _scaled("sub")}
_COMPARISONS = {
    "eq": "equal",
    "ne": "notequal",
    "ge": "greaterequal",
    "le": "lesserequal",
    "gt": "greaterthan",
    "lt": "lesserthan",
}


def elementwise_kernels() -> dict[str, Kernel]:
    """By aten name."""
    found: dict[str, Kernel] = {f"{n}.out": _unary(n, lower) for n, lower in _UNARY.items()}
    found |= {f"{n}.out": _binary(n, lower) for n, lower in _BINARY.items()}
    found |= {f"{n}.out": _scaled_binary(n, lower) for n, lower in _SCALED.items()}
    for name, op in _COMPARISONS.items():
        for kind in ("Tensor_out", "Scalar_out"):
            found[f"{name}.{kind}"] = _comparison(f"{name}.{kind}", _compare(op))
    for name in ("clamp.out", "clamp.Tensor_out", "clamp_min.out", "clamp_min.Tensor_out"):
        found[name] = _clamp(name)
    for name in ("clamp_max.out", "clamp_max.Tensor_out"):
        found[name] = _clamp(name)
    found["pow.Tensor_Scalar_out"] = falling_back("pow.Tensor_Scalar_out", _pow, takes_power)
    found["gelu.out"] = falling_back("gelu.out", _gelu, _takes_gelu)
    found["softplus.out"] = falling_back("softplus.out", _softplus, _takes_float)
    found["leaky_relu.out"] = falling_back("leaky_relu.out", _leaky_relu, _takes_float)
    found["rsub.Tensor"] = found["rsub.Scalar"] = reversed_subtraction
    found["relu"] = falling_back("relu", relu, is_computed)
    found["relu_"] = falling_back("relu_", relu_, is_computed)
    return found
