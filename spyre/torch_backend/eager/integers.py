"""Arithmetic of int32 and int64 tensors, whose elements are 32-bit words on the card.

The card adds and multiplies words modulo 2^32; everything else is made of that, exactly: signs and
zeros survive the conversion to float32, so comparisons look at the sign of a difference. What is a
result of torch's, not a step on the way there, is refused where int64 has it and words have not.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import (
    BOOL,
    FLOATS,
    INTEGERS,
    Arguments,
    Conditions,
    EagerKernel,
    bind_arguments,
    fill,
    fill_elementwise,
    operand,
)
from spyre.torch_backend.eager.elementwise import (
    CLAMPS,
    clamp_bounds,
)
from spyre.torch_backend.eager.reductions import over_dims, reduce_all, reduced_sizes
from spyre.torch_backend.fallback import on_cpu
from spyre.torch_backend.program import (
    Lowering,
    LoweringFunction,
    Value,
    narrowed,
    off_lanes,
    range_constants,
)


def plus(low: Lowering, a: Value, b: Value) -> Value:
    return low.pointwise("addi32toi32", a, b)


def times(low: Lowering, a: Value, b: Value | int) -> Value:
    return low.pointwise("muli32toi32", a, low.constant(b, a.dtype) if isinstance(b, int) else b)


def exact_plus(low: Lowering, a: Value, b: Value) -> Value:
    """A sum; of int64 SPY901 where it does not fit."""
    return _exact(low, "addi32toi32", a, b)


def exact_times(low: Lowering, a: Value, b: Value | int) -> Value:
    """A product; of int64 SPY901 where it does not fit."""
    other = low.constant(b, a.dtype) if isinstance(b, int) else b
    return _exact(low, "muli32toi32", a, other)


def _exact(low: Lowering, name: str, a: Value, b: Value) -> Value:
    return low.pointwise(name, a, b, constants=range_constants(name, a.dtype))


def word_of(low: Lowering, x: Value, dtype: str) -> Value:
    """float32 as a word, towards zero and within int32."""
    return low.convert(low.convert(x, "int32"), dtype)


def minus(low: Lowering, a: Value, b: Value) -> Value:
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


def _arithmetic(name: str, low: Lowering, a: Value, b: Value, dtype: str, alpha: int = 1) -> Value:
    a, b = low.convert(a, dtype), low.convert(b, dtype)
    if name == "mul":
        return exact_times(low, a, b)
    factor = -alpha if name == "sub" else alpha
    return exact_plus(low, a, b if factor == 1 else exact_times(low, b, factor))


def _compared(name: str, low: Lowering, a: Value, b: Value, dtype: str) -> Value:
    a, b = low.convert(a, dtype), low.convert(b, dtype)
    zero = low.constant(0.0, "float32")
    if name in ("eq", "ne"):
        difference = low.convert(minus(low, a, b), "float32")
        return low.truth(low.pointwise("equal" if name == "eq" else "notequal", difference, zero))
    # a <= b is not b < a
    result = less(low, b, a) if name in ("gt", "le") else less(low, a, b)
    if name in ("le", "ge"):
        result = low.pointwise("equal", result, zero)
    return low.truth(result)


def _extreme(name: str, low: Lowering, a: Value, b: Value, dtype: str) -> Value:
    a, b = low.convert(a, dtype), low.convert(b, dtype)
    first = less(low, a, b) if name == "minimum" else less(low, b, a)
    return chosen(low, first, a, b)


def _clamped(low: Lowering, x: Value, *args: Any) -> Value:
    *bounds, names, dtype = args
    for name, bound in zip(names, bounds, strict=True):
        x = _extreme(name, low, x, bound, dtype)
    return x


def _negative(low: Lowering, x: Value) -> Value:
    return exact_times(low, x, -1)


def _magnitude(low: Lowering, x: Value) -> Value:
    return chosen(low, is_negative(low, x), exact_times(low, x, -1), x)


def divided(low: Lowering, x: Value, dtype: str, divisor: int, remainder: bool) -> Value:
    """⌊x / divisor⌋, or the remainder, for a positive divisor.

    Two quotients in float32 leave a remainder that is off by at most one divisor.
    """
    count = low.constant(divisor, "float32")
    quotient, left = low.constant(0, dtype), low.convert(x, dtype)
    for _ in range(2):
        share = low.pointwise("realdiv", low.convert(left, "float32"), count)
        step = word_of(low, share, dtype)
        quotient, left = plus(low, step, quotient), minus(low, left, times(low, step, divisor))
    below = low.convert(is_negative(low, left), dtype)
    quotient, left = minus(low, quotient, below), plus(low, left, times(low, below, divisor))
    missing = is_negative(low, plus(low, left, low.constant(-divisor, dtype)))
    above = low.convert(low.pointwise("equal", missing, low.constant(0.0, "float32")), dtype)
    if remainder:
        return minus(low, left, times(low, above, divisor))
    return plus(low, quotient, above)


def _count(low: Lowering, x: Value, dims: tuple[int, ...], keepdim: bool, dtype: str) -> Value:
    """How many elements are true, exact up to 2^24."""
    count = low.reduce("sum", low.convert(x, "float32"), dims)
    return low.convert(count.reshaped(reduced_sizes(x.sizes, dims, keepdim)), dtype)


def _with_truth(name: str, low: Lowering, a: Value, b: Value, dtype: str) -> Value:
    """Bits of words with a bool, which is 0 or 1: a & b is the lowest bit of a where b holds."""
    a, b = (b, a) if a.dtype == "bool" else (a, b)
    truth = low.convert(b, dtype)
    both = times(low, divided(low, a, dtype, 2, True), truth)
    if name == "and":
        return both
    either = plus(low, low.convert(a, dtype), truth)
    return minus(low, either, both if name == "or" else times(low, both, 2))


def _total(low: Lowering, x: Value, dims: tuple[int, ...], keepdim: bool, dtype: str) -> Value:
    """Sums by halves: the card has no reduction of words."""
    sizes = reduced_sizes(x.sizes, dims, keepdim)
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
            odd = last if odd is None else exact_plus(low, odd, last)
        x = exact_plus(low, narrowed(x, dim, 0, half), narrowed(x, dim, half, half))
    return x if odd is None else exact_plus(low, x, odd)


def _outermost(
    name: str, low: Lowering, x: Value, dims: tuple[int, ...], keepdim: bool, dtype: str
) -> Value:
    """max and min of words, as two halves that float32 holds: the upper ones decide first."""
    upper = low.convert(divided(low, x, dtype, 1 << 16, False), "float32")
    lower_half = low.convert(divided(low, x, dtype, 1 << 16, True), "float32")
    first = low.reduce(name, upper, dims)
    other = low.constant(-1.0 if name == "max" else float(1 << 16), "float32")
    among = low.pointwise("where3", low.pointwise("equal", upper, first), lower_half, other)
    lowest_bits = low.convert(low.reduce(name, among, dims), dtype)
    word = plus(low, times(low, low.convert(first, dtype), 1 << 16), lowest_bits)
    return word.reshaped(reduced_sizes(x.sizes, dims, keepdim))


# --- kernels -------------------------------------------------------------------------------------


def is_integer(value: Any) -> bool:
    """Tensors of integers or bools on the card, and numbers that are words."""
    if isinstance(value, torch.Tensor):
        on_card = value.device.type == "spyre"
        return on_card and value.dtype in (*INTEGERS, torch.bool)
    return isinstance(value, int) and abs(value) < 1 << 31


def _binary(
    name: str, lowering: LoweringFunction, a: Any, b: Any, *, out: torch.Tensor, **named: Any
) -> torch.Tensor:
    operands = [operand(a, out.dtype), operand(b, out.dtype)]
    parameters = (name_of(out.dtype), *named.values())
    return fill_elementwise(f"int {name}", lowering, operands, parameters, out)


def _comparison(name: str, a: Any, b: Any, *, out: torch.Tensor) -> torch.Tensor:
    dtype = torch.result_type(a, b)
    operands = [operand(a, dtype), operand(b, dtype)]
    lowering = partial(_compared, name)
    return fill_elementwise(f"int {name}", lowering, operands, (name_of(dtype),), out)


def _unary(
    name: str, lowering: LoweringFunction, x: torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    return fill_elementwise(f"int {name}", lowering, [x], (), out)


def _clamp(name: str, *args: Any, **named: Any) -> torch.Tensor:
    """Bounds as ATen orders them: the lower one is applied first."""
    call = bind_arguments(name, args, named)
    bounds, out = clamp_bounds(call), call.out
    operands = [operand(value, out.dtype) for value in (call.self, *bounds.values())]
    extremes = tuple({"min": "maximum", "max": "minimum"}[kind] for kind in bounds)
    parameters = (extremes, name_of(out.dtype))
    return fill_elementwise("int clamp", _clamped, operands, parameters, out)


def _remainder(a: torch.Tensor, b: int, *, out: torch.Tensor) -> torch.Tensor:
    return fill_elementwise("int rest", divided, [a], (name_of(a.dtype), b, True), out)


def _floor_divide(a: torch.Tensor, b: int) -> torch.Tensor:
    return fill("int quotient", divided, [a], (name_of(a.dtype), b, False), torch.empty_like(a))


def _sum(x: torch.Tensor, *args: Any, out: torch.Tensor, **named: Any) -> torch.Tensor:
    if x.dtype is torch.bool:
        return over_dims("count", _count, x, *args, out=out, **named)
    return over_dims("int sum", _total, x, *args, out=out, **named)


# --- promotion: functions of floats, of which integers have values too ----------------------------


def _as_floats(dtype: torch.dtype, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """``args`` with the integer tensors on the card as ``dtype``; None if there are none, or it is
    no float.
    """
    is_word = [
        isinstance(v, torch.Tensor) and v.dtype in INTEGERS and v.device.type == "spyre"
        for v in args
    ]
    if dtype not in FLOATS or not any(is_word):
        return None
    return tuple(v.to(dtype) if word else v for v, word in zip(args, is_word, strict=True))


def _promoted_to_out(*args: Any, out: torch.Tensor, **_: Any) -> tuple[Any, ...] | None:
    return _as_floats(out.dtype, args)


def _promoted_together(a: Any, b: Any, *, out: torch.Tensor) -> tuple[Any, ...] | None:
    return _as_floats(torch.result_type(a, b), (a, b))


MOST_COMPARISONS = 1 << 22
"""Elements times bins that the cores compare; beyond, the host counts."""


def _histogram(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """aten::histc, which torch's CPU has for floats only: as its CUDA computes it.

    Bin ⌊(x - min) · bins / (max - min)⌋ counts x; what is ``max`` belongs to the last one.
    """
    low, high = int(min), int(max)
    if bins <= 0 or high < low:
        raise RuntimeError("bins must be > 0" if bins <= 0 else "max must be larger than min")
    if low == high and x.numel():
        low, high = int(x.min()), int(x.max())
    if low == high:
        low, high = low - 1, high + 1
    if x.numel() and bins * x.numel() <= MOST_COMPARISONS:
        return _bin_counts(x.reshape(-1), bins, low, high)
    with on_cpu("aten.histc.default"):
        return _bin_counts(x.cpu().reshape(-1), bins, low, high).to(x.device)


def _bin_counts(x: torch.Tensor, bins: int, low: int, high: int) -> torch.Tensor:
    place = ((x.long() - low) * bins) // (high - low)
    place = torch.where(place == bins, bins - 1, place)
    if x.is_cpu:
        held = place[(place >= 0) & (place < bins)]
        return torch.bincount(held, minlength=bins).to(x.dtype)
    numbers = torch.arange(bins, device=x.device).unsqueeze(1)
    return (place.unsqueeze(0) == numbers).sum(1).to(x.dtype)


def _counts(x: torch.Tensor, weights: None = None, minlength: int = 0) -> torch.Tensor:
    """aten::bincount: the host has to know the largest of them."""
    if x.numel() and int(x.min()) < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    count = max(int(x.max()) + 1 if x.numel() else 0, minlength)
    if not x.numel() or not count:
        return torch.zeros(count, dtype=torch.int64, device=x.device)
    if count * x.numel() > MOST_COMPARISONS:
        with on_cpu("aten.bincount.default"):
            return torch.bincount(x.cpu(), minlength=minlength).to(x.device)
    numbers = torch.arange(count, device=x.device).unsqueeze(1)
    return (x.long().unsqueeze(0) == numbers).sum(1)


# --- the tables ----------------------------------------------------------------------------------


def _has_integers(call: Arguments) -> bool:
    """Both operands are integers, and so is the factor of a sum."""
    return all(map(is_integer, (call.self, call.other))) and is_integer(getattr(call, "alpha", 1))


def _has_integer_bounds(call: Arguments) -> bool:
    return all(map(is_integer, (call.self, *clamp_bounds(call).values())))


def _has_divisor(call: Arguments) -> bool:
    """A tensor divided by a number that its two steps of division are exact for."""
    is_number = isinstance(call.other, int) and not isinstance(call.other, bool)
    return isinstance(call.self, torch.Tensor) and is_number and 0 < call.other < 1 << 30


def _can_count(call: Arguments) -> bool:
    """Counts are exact in float32; sums lay words out with other sticks, up to one in each."""
    return bool(call.self.numel() <= (1 << 24 if call.self.dtype is torch.bool else 1 << 20))


def _has_bits_and_bools(call: Arguments) -> bool:
    tensors = isinstance(call.self, torch.Tensor) and isinstance(call.other, torch.Tensor)
    return tensors and {call.self.dtype, call.other.dtype} == {call.out.dtype, torch.bool}


_BINARY: dict[str, LoweringFunction] = {
    **{name: partial(_arithmetic, name) for name in ("add", "sub", "mul")},
    **{name: partial(_extreme, name) for name in ("maximum", "minimum")},
}
_COMPARISONS = {
    f"{name}.{kind}": name
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for kind in ("Tensor_out", "Scalar_out")
}
_FLOAT_FUNCTIONS = ("div", "exp", "sqrt", "rsqrt", "reciprocal", "sigmoid", "log", "tanh")

PROMOTIONS = {
    **{f"{name}.out": _promoted_to_out for name in (*_BINARY, *_FLOAT_FUNCTIONS)},
    **dict.fromkeys(_COMPARISONS, _promoted_together),
    "div.out_mode": _promoted_to_out,
}
"""`EagerOperation.promoted` by aten name."""

_ARITHMETIC = Conditions(dtypes={"out": INTEGERS}, check=_has_integers)
_COMPARISON = Conditions(dtypes={"out": BOOL}, promotes_to=INTEGERS, check=_has_integers)
_CLAMP = Conditions(dtypes={"out": INTEGERS}, check=_has_integer_bounds)
_UNARY = Conditions(dtypes={"self": INTEGERS}, same_dtype=("self", "results"))
_BITS = Conditions(dtypes={"out": INTEGERS}, check=_has_bits_and_bools)
_EXTREME = replace(_UNARY, nonempty=("self",))
_DIVISION = replace(_EXTREME, check=_has_divisor)
_SUM = Conditions(
    dtypes={"self": (*INTEGERS, torch.bool), "out": INTEGERS}, nonempty=("self",), check=_can_count
)
_COUNTS = Conditions(
    dtypes={"self": INTEGERS},
    ranks={"self": (1,)},
    values={"weights": (None,)},
    check=lambda call: call.minlength >= 0,
)

KERNELS = (
    *(EagerKernel(f"{n}.out", partial(_binary, n, f), _ARITHMETIC) for n, f in _BINARY.items()),
    *(
        EagerKernel(full, partial(_comparison, name), _COMPARISON)
        for full, name in _COMPARISONS.items()
    ),
    *(EagerKernel(name, partial(_clamp, name), _CLAMP) for name in CLAMPS),
    *(
        EagerKernel(
            f"bitwise_{name}.Tensor_out", partial(_binary, name, partial(_with_truth, name)), _BITS
        )
        for name in ("and", "or", "xor")
    ),
    *(
        EagerKernel(full, partial(function, f"int {name}", partial(_outermost, name)), _EXTREME)
        for name in ("max", "min")
        for full, function in ((name, reduce_all), (f"a{name}.out", over_dims))
    ),
    EagerKernel("neg.out", partial(_unary, "neg", _negative), _UNARY),
    EagerKernel("abs.out", partial(_unary, "abs", _magnitude), _UNARY),
    EagerKernel("sum.IntList_out", _sum, _SUM),
    EagerKernel("remainder.Tensor_out", _remainder, _DIVISION),
    EagerKernel("floor_divide", _floor_divide, _DIVISION),
    EagerKernel("bincount", _counts, _COUNTS),
    EagerKernel("histc", _histogram, Conditions(dtypes={"self": INTEGERS})),
)
