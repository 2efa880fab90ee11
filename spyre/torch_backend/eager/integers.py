"""Arithmetic of int32 and int64 tensors, whose elements are 32-bit words on the card.

The card adds and multiplies words modulo 2^32; everything else is made of that, exactly: signs and
zeros survive the conversion to float32, so comparisons look at the sign of a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from spyre.torch_backend.dtypes import name_of
from spyre.torch_backend.eager.kernels import (
    FLOATS,
    Kernel,
    broadcast_shape,
    fill,
    operand,
    overload,
)
from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.fallback import cpu_fallback
from spyre.torch_backend.program.value import Value

INTEGERS = (torch.int32, torch.int64)
Lower = Callable[..., Value]


def plus(low: Lowering, a: Value, b: Value) -> Value:
    """a + b."""
    return low.pointwise("addi32toi32", a, b)


def times(low: Lowering, a: Value, b: Value | int) -> Value:
    """a · b."""
    return low.pointwise("muli32toi32", a, low.constant(b, a.dtype) if isinstance(b, int) else b)


def minus(low: Lowering, a: Value, b: Value) -> Value:
    """a - b."""
    return plus(low, a, times(low, b, -1))


def is_negative(low: Lowering, a: Value) -> Value:
    """1.0 where a < 0, as float32."""
    return low.pointwise("lesserthan", low.convert(a, "float32"), low.constant(0.0, "float32"))


def less(low: Lowering, a: Value, b: Value) -> Value:
    """1.0 where a < b, as float32: of different signs the negative one, else by the difference."""
    left, right = is_negative(low, a), is_negative(low, b)
    difference = is_negative(low, minus(low, a, b))
    return low.pointwise("where3", low.pointwise("notequal", left, right), left, difference)


def chosen(low: Lowering, condition: Value, a: Value, b: Value) -> Value:
    """a where the condition (1 or 0) holds, else b: b + condition · (a - b)."""
    word = low.convert(condition, a.dtype)
    return plus(low, b, times(low, minus(low, a, b), word))


# --- lowerings: (low, *values, dtype, …) --------------------------------------------------------


def _arithmetic(name: str) -> Lower:
    def lower(low: Lowering, a: Value, b: Value, dtype: str, alpha: int = 1) -> Value:
        a, b = low.convert(a, dtype), low.convert(b, dtype)
        if name == "mul":
            return times(low, a, b)
        factor = -alpha if name == "sub" else alpha
        return plus(low, a, b if factor == 1 else times(low, b, factor))

    return lower


def _compared(name: str) -> Lower:
    def lower(low: Lowering, a: Value, b: Value, dtype: str) -> Value:
        a, b = low.convert(a, dtype), low.convert(b, dtype)
        zero = low.constant(0.0, "float32")
        if name in ("eq", "ne"):
            difference = low.convert(minus(low, a, b), "float32")
            kind = "equal" if name == "eq" else "notequal"
            return low.truth(low.pointwise(kind, difference, zero))
        found = less(low, b, a) if name in ("gt", "le") else less(low, a, b)
        if name in ("le", "ge"):
            found = low.pointwise("equal", found, zero)
        return low.truth(found)

    return lower


def _extreme(name: str) -> Lower:
    def lower(low: Lowering, a: Value, b: Value, dtype: str) -> Value:
        a, b = low.convert(a, dtype), low.convert(b, dtype)
        first = less(low, a, b) if name == "minimum" else less(low, b, a)
        return chosen(low, first, a, b)

    return lower


def _negative(low: Lowering, x: Value) -> Value:
    return times(low, x, -1)


def _magnitude(low: Lowering, x: Value) -> Value:
    return chosen(low, is_negative(low, x), times(low, x, -1), x)


def divided(low: Lowering, x: Value, dtype: str, divisor: int, rest: bool) -> Value:
    """⌊x / divisor⌋, or what that leaves of x, for a positive divisor.

    Two quotients in float32 leave a rest that is off by at most one divisor.
    """
    count = low.constant(divisor, "float32")
    quotient, left = low.constant(0, dtype), low.convert(x, dtype)
    for _ in range(2):
        share = low.pointwise("realdiv", low.convert(left, "float32"), count)
        step = low.convert(share, dtype)
        quotient, left = plus(low, step, quotient), minus(low, left, times(low, step, divisor))
    below = low.convert(is_negative(low, left), dtype)
    quotient, left = minus(low, quotient, below), plus(low, left, times(low, below, divisor))
    missing = is_negative(low, plus(low, left, low.constant(-divisor, dtype)))
    above = low.convert(low.pointwise("equal", missing, low.constant(0.0, "float32")), dtype)
    if rest:
        return minus(low, left, times(low, above, divisor))
    return plus(low, quotient, above)


def _count(low: Lowering, x: Value, dims: tuple[int, ...], keepdim: bool, dtype: str) -> Value:
    """How many elements are true, exact up to 2^24."""
    sizes = tuple(1 if k in dims else n for k, n in enumerate(x.sizes) if keepdim or k not in dims)
    found = low.reduce("sum", low.convert(x, "float32"), dims)
    return low.convert(found.reshaped(sizes), dtype)


# --- kernels -------------------------------------------------------------------------------------


def is_integer(value: Any) -> bool:
    """Tensors of integers or bools on the card, and numbers that are words."""
    if isinstance(value, torch.Tensor):
        on_card = value.device.type == "spyre"
        return on_card and value.dtype in (*INTEGERS, torch.bool)
    return isinstance(value, int) and abs(value) < 1 << 31


def _binary(name: str, lower: Lower, otherwise: Kernel) -> Kernel:
    def kernel(a: Any, b: Any, *, out: torch.Tensor, **named: Any) -> torch.Tensor:
        whole = all(isinstance(v, int) and abs(v) < 1 << 31 for v in named.values())
        if not (out.dtype in INTEGERS and is_integer(a) and is_integer(b) and whole):
            found: torch.Tensor = otherwise(*_promoted(out.dtype, a, b), out=out, **named)
            return found
        operands = [operand(a, out.dtype), operand(b, out.dtype)]
        parameters = (name_of(out.dtype), *named.values())
        return fill(f"int {name}", lower, operands, parameters, out, broadcast_shape(*operands))

    return kernel


def _promoted(dtype: torch.dtype, *values: Any) -> list[Any]:
    """Integer tensors on the card as ``dtype``, if that is a float."""
    return [
        v.to(dtype)
        if isinstance(v, torch.Tensor) and v.dtype in INTEGERS and dtype in FLOATS
        and v.device.type == "spyre"
        else v
        for v in values
    ]  # fmt: skip


def _comparison(name: str, otherwise: Kernel) -> Kernel:
    lower = _compared(name)

    def kernel(a: Any, b: Any, *, out: torch.Tensor) -> torch.Tensor:
        dtype = torch.result_type(a, b)
        if not (dtype in INTEGERS and is_integer(a) and is_integer(b) and out.dtype is torch.bool):
            found: torch.Tensor = otherwise(*_promoted(dtype, a, b), out=out)
            return found
        operands = [operand(a, dtype), operand(b, dtype)]
        shape = broadcast_shape(*operands)
        return fill(f"int {name}", lower, operands, (name_of(dtype),), out, shape)

    return kernel


def _unary(name: str, lower: Lower, otherwise: Kernel) -> Kernel:
    def kernel(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        if x.dtype in INTEGERS and out.dtype == x.dtype:
            return fill(f"int {name}", lower, [x], (), out, x.shape)
        found: torch.Tensor = otherwise(*_promoted(out.dtype, x), out=out)
        return found

    return kernel


def _promoting(otherwise: Kernel) -> Kernel:
    """Functions of floats, of which integers have values too."""

    def kernel(*args: Any, out: torch.Tensor, **named: Any) -> torch.Tensor:
        found: torch.Tensor = otherwise(*_promoted(out.dtype, *args), out=out, **named)
        return found

    return kernel


def on_cpu(name: str) -> Kernel:
    """The CPU fallback of an operation."""
    return partial(cpu_fallback, overload(name))


def _divides(a: Any, b: Any) -> bool:
    if not (isinstance(a, torch.Tensor) and a.dtype in INTEGERS and a.numel()):
        return False
    return isinstance(b, int) and not isinstance(b, bool) and 0 < b < 1 << 30


def _remainder(otherwise: Kernel) -> Kernel:
    def kernel(a: Any, b: Any, *, out: torch.Tensor) -> torch.Tensor:
        if not _divides(a, b) or out.dtype != a.dtype:
            found: torch.Tensor = otherwise(a, b, out=out)
            return found
        return fill("int rest", divided, [a], (name_of(a.dtype), b, True), out, a.shape)

    return kernel


def _floor_divide(otherwise: Kernel) -> Kernel:
    def kernel(a: Any, b: Any) -> torch.Tensor:
        if not _divides(a, b):
            found: torch.Tensor = otherwise(a, b)
            return found
        return fill("int quotient", divided, [a], (name_of(a.dtype), b, False), torch.empty_like(a))

    return kernel


def _counting(otherwise: Kernel) -> Kernel:
    from spyre.torch_backend.eager.reductions import dims_of

    def kernel(
        x: torch.Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        out: torch.Tensor,
    ) -> torch.Tensor:
        if x.dtype is torch.bool and out.dtype in INTEGERS and 0 < x.numel() <= 1 << 24:
            parameters = (dims_of(x, dim), keepdim, name_of(out.dtype))
            return fill("count", _count, [x], parameters, out)
        found: torch.Tensor = otherwise(x, dim, keepdim, dtype=dtype, out=out)
        return found

    return kernel


def integer_kernels(before: Mapping[str, Kernel]) -> dict[str, Kernel]:
    """By aten name; ``before``: kernels of other dtypes, which those here precede."""
    found: dict[str, Kernel] = {}
    for name in ("add", "sub", "mul"):
        full = f"{name}.out"
        found[full] = _binary(name, _arithmetic(name), before[full])
    for name in ("maximum", "minimum"):
        full = f"{name}.out"
        found[full] = _binary(name, _extreme(name), before[full])
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        for kind in ("Tensor_out", "Scalar_out"):
            found[f"{name}.{kind}"] = _comparison(name, before[f"{name}.{kind}"])
    found["neg.out"] = _unary("neg", _negative, before["neg.out"])
    found["abs.out"] = _unary("abs", _magnitude, before["abs.out"])
    for name in ("div", "exp", "sqrt", "rsqrt", "reciprocal", "sigmoid", "log", "tanh"):
        found[f"{name}.out"] = _promoting(before[f"{name}.out"])
    found["sum.IntList_out"] = _counting(before["sum.IntList_out"])
    found["remainder.Tensor_out"] = _remainder(on_cpu("remainder.Tensor_out"))
    found["floor_divide"] = _floor_divide(on_cpu("floor_divide"))
    return found
