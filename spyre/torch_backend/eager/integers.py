"""Arithmetic of int32 and int64 tensors, whose elements are 32-bit words on the card.

The card adds and multiplies words modulo 2^32; everything else is made of that, exactly: signs and
zeros survive the conversion to float32, so comparisons look at the sign of a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from spyre.torch_backend.device.dtypes import name_of
from spyre.torch_backend.eager.dispatch import (
    FLOATS,
    Kernel,
    broadcast_shape,
    fill,
    operand,
    overload,
)
from spyre.torch_backend.eager.reductions import dims_of, kept_sizes
from spyre.torch_backend.fallback.cpu_fallback import cpu_fallback
from spyre.torch_backend.program.indexing import off_lanes
from spyre.torch_backend.program.op_spec import Value, narrowed
from spyre.torch_backend.program.operations import Lowering

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


def _clamped(low: Lowering, x: Value, *rest: Any) -> Value:
    *bounds, names, dtype = rest
    for name, bound in zip(names, bounds, strict=True):
        x = _extreme(name)(low, x, bound, dtype)
    return x


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
    found = low.reduce("sum", low.convert(x, "float32"), dims)
    return low.convert(found.reshaped(kept_sizes(x.sizes, dims, keepdim)), dtype)


def _with_truth(name: str) -> Lower:
    """Bits of words with a bool, which is 0 or 1: a & b is the lowest bit of a where b holds."""

    def lower(low: Lowering, a: Value, b: Value, dtype: str) -> Value:
        a, b = (b, a) if a.dtype == "bool" else (a, b)
        truth = low.convert(b, dtype)
        both = times(low, divided(low, a, dtype, 2, True), truth)
        if name == "and":
            return both
        either = plus(low, low.convert(a, dtype), truth)
        return minus(low, either, both if name == "or" else times(low, both, 2))

    return lower


def _total(low: Lowering, x: Value, dims: tuple[int, ...], keepdim: bool, dtype: str) -> Value:
    """Sums modulo 2^32, by halves."""
    sizes = kept_sizes(x.sizes, dims, keepdim)
    x = low.convert(x, dtype)
    for dim in dims:
        x = _sum_along(low, x, dim)
    return x.reshaped(sizes)


def _sum_along(low: Lowering, x: Value, dim: int) -> Value:
    x = off_lanes(low, x, dim)
    odd: Value | None = None
    while (extent := x.sizes[dim]) > 1:
        half = extent // 2
        if extent % 2:
            last = narrowed(x, dim, extent - 1, 1)
            odd = last if odd is None else plus(low, odd, last)
        x = plus(low, narrowed(x, dim, 0, half), narrowed(x, dim, half, half))
    return x if odd is None else plus(low, x, odd)


def _outermost(name: str) -> Lower:
    """max and min of words, as two halves that float32 holds: the upper ones decide first."""

    def lower(low: Lowering, x: Value, dims: tuple[int, ...], keepdim: bool, dtype: str) -> Value:
        upper = low.convert(divided(low, x, dtype, 1 << 16, False), "float32")
        lower_half = low.convert(divided(low, x, dtype, 1 << 16, True), "float32")
        first = low.reduce(name, upper, dims)
        other = low.constant(-1.0 if name == "max" else float(1 << 16), "float32")
        among = low.pointwise("where3", low.pointwise("equal", upper, first), lower_half, other)
        rest = low.convert(low.reduce(name, among, dims), dtype)
        found = plus(low, times(low, low.convert(first, dtype), 1 << 16), rest)
        return found.reshaped(kept_sizes(x.sizes, dims, keepdim))

    return lower


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


def _clamp(name: str, otherwise: Kernel) -> Kernel:
    """Bounds as ATen orders them: the lower one is applied first."""
    names: tuple[str, ...] = ("maximum", "minimum")
    if name.startswith(("clamp_min", "clamp_max")):
        names = names[:1] if name.startswith("clamp_min") else names[1:]

    def kernel(x: torch.Tensor, *args: Any, out: torch.Tensor, **named: Any) -> torch.Tensor:
        by_name = {"maximum": named.get("min"), "minimum": named.get("max")}
        given = {**by_name, **dict(zip(names, args, strict=False))}
        used = [(k, given[k]) for k in names if given[k] is not None]
        if out.dtype not in INTEGERS or not all(is_integer(v) for v in (x, *(b for _, b in used))):
            found: torch.Tensor = otherwise(x, *args, out=out, **named)
            return found
        operands = [operand(x, out.dtype), *(operand(b, out.dtype) for _, b in used)]
        parameters = (tuple(k for k, _ in used), name_of(out.dtype))
        return fill("int clamp", _clamped, operands, parameters, out, broadcast_shape(*operands))

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
    def kernel(
        x: torch.Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        out: torch.Tensor,
    ) -> torch.Tensor:
        dims = dims_of(x, dim)
        parameters = (dims, keepdim, name_of(out.dtype))
        sizes = kept_sizes(x.shape, dims, keepdim)
        if x.dtype is torch.bool and out.dtype in INTEGERS and 0 < x.numel() <= 1 << 24:
            return fill("count", _count, [x], parameters, out, sizes)
        if x.dtype in INTEGERS and out.dtype in INTEGERS and _has_room(x):
            return fill("int sum", _total, [x], parameters, out, sizes)
        found: torch.Tensor = otherwise(x, dim, keepdim, dtype=dtype, out=out)
        return found

    return kernel


def _has_room(x: torch.Tensor) -> bool:
    """Reductions of words lay them out with other sticks, up to one element per stick."""
    return bool(0 < x.numel() <= 1 << 20)


def _extreme_of_all(name: str, otherwise: Kernel) -> Kernel:
    lower = _outermost(name)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        if x.dtype not in INTEGERS or not x.numel():
            found: torch.Tensor = otherwise(x)
            return found
        target = torch.empty((), dtype=x.dtype, device=x.device)
        parameters = (dims_of(x, None), False, name_of(x.dtype))
        return fill(f"int {name}", lower, [x], parameters, target)

    return kernel


def _extreme_over(name: str, otherwise: Kernel) -> Kernel:
    lower = _outermost(name)

    def kernel(
        x: torch.Tensor, dim: Any = (), keepdim: bool = False, *, out: torch.Tensor
    ) -> torch.Tensor:
        if x.dtype not in INTEGERS or out.dtype != x.dtype or not x.numel():
            found: torch.Tensor = otherwise(x, dim, keepdim, out=out)
            return found
        dims = dims_of(x, dim)
        sizes = kept_sizes(x.shape, dims, keepdim)
        return fill(f"int {name}", lower, [x], (dims, keepdim, name_of(x.dtype)), out, sizes)

    return kernel


def _bits(name: str, otherwise: Kernel) -> Kernel:
    lower = _with_truth(name)

    def kernel(a: Any, b: Any, *, out: torch.Tensor) -> torch.Tensor:
        tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        given = {a.dtype, b.dtype} if tensors else set()
        if out.dtype not in INTEGERS or given != {out.dtype, torch.bool}:
            found: torch.Tensor = otherwise(a, b, out=out)
            return found
        return fill(f"int {name}", lower, [a, b], (name_of(out.dtype),), out, broadcast_shape(a, b))

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
    for name in ("clamp", "clamp_min", "clamp_max"):
        for kind in ("out", "Tensor_out"):
            full = f"{name}.{kind}"
            found[full] = _clamp(full, before[full])
    found["neg.out"] = _unary("neg", _negative, before["neg.out"])
    found["abs.out"] = _unary("abs", _magnitude, before["abs.out"])
    for name in ("div", "exp", "sqrt", "rsqrt", "reciprocal", "sigmoid", "log", "tanh"):
        found[f"{name}.out"] = _promoting(before[f"{name}.out"])
    for name in ("max", "min"):
        found[name] = _extreme_of_all(name, before[name])
        found[f"a{name}.out"] = _extreme_over(name, before[f"a{name}.out"])
    for name in ("and", "or", "xor"):
        full = f"bitwise_{name}.Tensor_out"
        found[full] = _bits(name, before[full])
    found["sum.IntList_out"] = _counting(before["sum.IntList_out"])
    found["remainder.Tensor_out"] = _remainder(on_cpu("remainder.Tensor_out"))
    found["floor_divide"] = _floor_divide(on_cpu("floor_divide"))
    return found
