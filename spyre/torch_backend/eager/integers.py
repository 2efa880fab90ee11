"""Arithmetic of int32 and int64 tensors, whose elements are 32-bit words on the card.

The card adds and multiplies words modulo 2^32; all other operations are composed of these, exactly:
signs and zeros survive the conversion to float32, so comparisons use the sign of a difference. A
final result, but no intermediate one, is refused if it is an int64 beyond 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import (
    BOOL,
    INTEGERS,
    Arguments,
    Conditions,
    fill_elementwise,
    fill_number,
    new_elementwise,
    operand,
)
from spyre.torch_backend.eager.elementwise import (
    CLAMPS,
    by_squaring,
    clamp_bounds,
    comparison,
    unary,
)
from spyre.torch_backend.eager.reductions import over_dims
from spyre.torch_backend.fallback import on_cpu
from spyre.torch_backend.program import (
    Lowering,
    LoweringError,
    LoweringFunction,
    Value,
    current_recorder,
    narrowed,
    off_lanes,
    range_constants,
)


def _word(name: str, is_exact: bool, builder: Lowering, a: Value, b: Value | int) -> Value:
    """An operation, which if ``is_exact`` raises SPY901 if an int64 result exceeds 32 bits."""
    limits = range_constants(name, a.dtype) if is_exact else None
    return builder.pointwise(name, a, b, constants=limits)


add, exact_add = (partial(_word, "addi32toi32", is_exact) for is_exact in (False, True))
mul, exact_mul = (partial(_word, "muli32toi32", is_exact) for is_exact in (False, True))


def sub(builder: Lowering, a: Value, b: Value | int) -> Value:
    return add(builder, a, -b if isinstance(b, int) else mul(builder, b, -1))


def is_negative(builder: Lowering, a: Value) -> Value:
    """1.0 where a < 0, as float32."""
    return builder.pointwise("lesserthan", builder.convert(a, "float32"), 0.0)


def less(builder: Lowering, a: Value, b: Value) -> Value:
    """1.0 where a < b, as float32: of different signs the negative one, else by the difference."""
    left, right = is_negative(builder, a), is_negative(builder, b)
    difference = is_negative(builder, sub(builder, a, b))
    return builder.pointwise("where3", builder.pointwise("notequal", left, right), left, difference)


def select(builder: Lowering, condition: Value, a: Value, b: Value, dtype: str) -> Value:
    """a where the condition (1 or 0) holds, else b; for words b + condition · (a - b)."""
    a, b = builder.convert(a, dtype), builder.convert(b, dtype)
    if dtype in ("int32", "int64"):
        word = builder.convert(condition, dtype)
        return add(builder, b, mul(builder, sub(builder, a, b), word))
    condition = builder.convert(condition, "float32" if dtype == "float32" else "bool")
    return builder.pointwise("where3", condition, a, b, dtype=dtype)


# --- lowerings: (builder, *values, dtype, …) -----------------------------------------------------


def _arithmetic(
    name: str, builder: Lowering, a: Value, b: Value, dtype: str, alpha: int = 1
) -> Value:
    a, b = builder.convert(a, dtype), builder.convert(b, dtype)
    if name == "mul":
        return exact_mul(builder, a, b)
    factor = -alpha if name == "sub" else alpha
    return exact_add(builder, a, b if factor == 1 else exact_mul(builder, b, factor))


def _compared(name: str, builder: Lowering, a: Value, b: Value, dtype: str) -> Value:
    a, b = builder.convert(a, dtype), builder.convert(b, dtype)
    if name in ("eq", "ne"):
        difference = builder.convert(sub(builder, a, b), "float32")
        return builder.truth(
            builder.pointwise("equal" if name == "eq" else "notequal", difference, 0.0)
        )
    # a <= b is not b < a
    result = less(builder, b, a) if name in ("gt", "le") else less(builder, a, b)
    if name in ("le", "ge"):
        result = builder.pointwise("equal", result, 0.0)
    return builder.truth(result)


def _extreme(name: str, builder: Lowering, a: Value, b: Value, dtype: str) -> Value:
    a, b = builder.convert(a, dtype), builder.convert(b, dtype)
    first = less(builder, a, b) if name == "minimum" else less(builder, b, a)
    return select(builder, first, a, b, dtype)


def _clamped(builder: Lowering, x: Value, *args: Any) -> Value:
    *bounds, names, dtype = args
    for name, bound in zip(names, bounds, strict=True):
        x = _extreme(name, builder, x, bound, dtype)
    return x


def _negative(builder: Lowering, x: Value, dtype: str) -> Value:
    return exact_mul(builder, x, -1)


def _magnitude(builder: Lowering, x: Value, dtype: str) -> Value:
    return select(builder, is_negative(builder, x), exact_mul(builder, x, -1), x, dtype)


def sign(builder: Lowering, x: Value, dtype: str) -> Value:
    """-1, 0 or 1, of floats too."""
    number = builder.convert(x, "float32") if x.dtype == dtype in ("int32", "int64") else x
    above = builder.pointwise("greaterthan", number, 0.0)
    below = builder.pointwise("lesserthan", number, 0.0)
    return builder.convert(builder.pointwise("sub", above, below), dtype)


def _power(builder: Lowering, x: Value, dtype: str, exponent: int) -> Any:
    return by_squaring(x, exponent, partial(exact_mul, builder))


def divided(
    builder: Lowering, x: Value, dtype: str, divisor: Value | int, remainder: bool
) -> Value:
    """⌊x / divisor⌋, or the remainder, for positive divisors.

    Two quotients in float32 leave a remainder that is off by at most one divisor.
    """
    quotient, left = builder.constant(0, dtype), builder.convert(x, dtype)
    number = divisor if isinstance(divisor, int) else builder.convert(divisor, "float32")
    for _ in range(2):
        share = builder.pointwise("realdiv", builder.convert(left, "float32"), number)
        step = builder.convert(builder.convert(share, "int32"), dtype)  # towards zero
        quotient = add(builder, step, quotient)
        left = sub(builder, left, mul(builder, step, divisor))
    below = builder.convert(is_negative(builder, left), dtype)
    quotient, left = sub(builder, quotient, below), add(builder, left, mul(builder, below, divisor))
    missing = is_negative(builder, sub(builder, left, divisor))
    above = builder.convert(builder.pointwise("equal", missing, 0.0), dtype)
    if remainder:
        return sub(builder, left, mul(builder, above, divisor))
    return add(builder, quotient, above)


def _quotient(builder: Lowering, a: Value, b: Value, dtype: str, wanted: str) -> Value:
    """Return a / b rounded down ("floor") or towards zero ("trunc"), or the rest of that division
    ("remainder", "fmod").
    """
    a, b = builder.convert(a, dtype), builder.convert(b, dtype)
    sign = add(builder, mul(builder, builder.convert(is_negative(builder, b), dtype), -2), 1)
    a_like, size = exact_mul(builder, a, sign), exact_mul(builder, b, sign)
    quotient = divided(builder, a_like, dtype, size, False)
    if wanted == "floor":
        return quotient
    rest = sub(builder, a, mul(builder, quotient, b))
    if wanted == "remainder":
        return rest
    # a quotient below zero that is not exact was rounded away from zero
    some = builder.pointwise("notequal", builder.convert(rest, "float32"), 0.0)
    short = builder.pointwise("mul", some, is_negative(builder, quotient))
    quotient = add(builder, quotient, builder.convert(short, dtype))
    return quotient if wanted == "trunc" else sub(builder, a, mul(builder, quotient, b))


def _count(builder: Lowering, x: Value, dims: tuple[int, ...], dtype: str) -> Value:
    """The number of true elements, exact up to 2^24."""
    return builder.convert(builder.reduce("sum", builder.convert(x, "float32"), dims), dtype)


def _with_truth(name: str, builder: Lowering, a: Value, b: Value, dtype: str) -> Value:
    """Bits of words with a bool, which is 0 or 1: a & b is the lowest bit of a where b holds."""
    a, b = (b, a) if a.dtype == "bool" else (a, b)
    truth = builder.convert(b, dtype)
    both = mul(builder, divided(builder, a, dtype, 2, True), truth)
    if name == "and":
        return both
    either = add(builder, builder.convert(a, dtype), truth)
    return sub(builder, either, both if name == "or" else mul(builder, both, 2))


def folded(
    step: Callable[..., Value], builder: Lowering, x: Value, dims: tuple[int, ...], dtype: str
) -> Value:
    """Sums or products by halves: the card has no reduction of words. ``step``: of two."""
    x = builder.convert(x, dtype)
    for dim in dims:
        x = _folded_along(step, builder, x, dim)
    return x


def _folded_along(step: Callable[..., Value], builder: Lowering, x: Value, dim: int) -> Value:
    x = off_lanes(builder, x, dim)
    odd: Value | None = None
    while (extent := x.sizes[dim]) > 1:
        half = extent // 2
        if extent % 2:
            last = narrowed(x, dim, extent - 1, 1)
            odd = last if odd is None else step(builder, odd, last)
        x = step(builder, narrowed(x, dim, 0, half), narrowed(x, dim, half, half))
    return x if odd is None else step(builder, x, odd)


def _outermost(name: str, builder: Lowering, x: Value, dims: tuple[int, ...], dtype: str) -> Value:
    """max and min of words, as two halves that float32 holds: the upper ones decide first."""
    upper = builder.convert(divided(builder, x, dtype, 1 << 16, False), "float32")
    lower_half = builder.convert(divided(builder, x, dtype, 1 << 16, True), "float32")
    first = builder.reduce(name, upper, dims)
    other = -1.0 if name == "max" else float(1 << 16)
    among = builder.pointwise("where3", builder.pointwise("equal", upper, first), lower_half, other)
    lowest_bits = builder.convert(builder.reduce(name, among, dims), dtype)
    return add(builder, mul(builder, builder.convert(first, dtype), 1 << 16), lowest_bits)


# --- kernels -------------------------------------------------------------------------------------


def is_integer(value: Any) -> bool:
    """Tensors of integers or bools on the card, and numbers that are words."""
    if isinstance(value, torch.Tensor):
        on_card = value.device.type == "spyre"
        return on_card and value.dtype in (*INTEGERS, torch.bool)
    return isinstance(value, int) and abs(value) < 1 << 31


def _binary(name: str, lowering: LoweringFunction, args: Arguments) -> torch.Tensor:
    dtype, factor = args.out.dtype, [args.alpha] if hasattr(args, "alpha") else []
    operands = [operand(args.self, dtype), operand(args.other, dtype)]
    parameters = (name_of(dtype), *factor)
    return fill_elementwise(f"int {name}", lowering, operands, parameters, args.out)


def _clamp(args: Arguments) -> torch.Tensor:
    """Bounds as ATen orders them: the lower one is applied first."""
    bounds, dtype = clamp_bounds(args), args.out.dtype
    operands = [operand(value, dtype) for value in (args.self, *bounds.values())]
    extremes = tuple({"min": "maximum", "max": "minimum"}[kind] for kind in bounds)
    return fill_elementwise("int clamp", _clamped, operands, (extremes, name_of(dtype)), args.out)


def _divided(wanted: str, args: Arguments) -> torch.Tensor:
    """Quotients and remainders, `_quotient`; ``wanted`` "" for div's ``rounding_mode``.

    torch's error of a zero among the divisors needs a look at them.
    """
    a, b, wanted = args.self, args.other, wanted or args.rounding_mode
    (out,) = args.results or [new_elementwise(torch.result_type(a, b), *args.inputs)]
    dtype = out.dtype
    if isinstance(b, int) and 0 < b < 1 << 30 and wanted in ("floor", "remainder"):
        numbers = (name_of(dtype), b, wanted == "remainder")
        return fill_elementwise(f"int {wanted} by", divided, [a], numbers, out)
    if isinstance(b, torch.Tensor):
        if current_recorder() is not None:
            raise LoweringError("divisors that may be zero")
        if bool((b == 0).any()):
            raise RuntimeError("ZeroDivisionError")
    operands, parameters = [operand(a, dtype), operand(b, dtype)], (name_of(dtype), wanted)
    return fill_elementwise(f"int {wanted}", _quotient, operands, parameters, out)


def _raised(args: Arguments) -> torch.Tensor:
    if not args.exponent:
        return fill_number(args.out, args.self.shape, 1)
    parameters = (name_of(args.self.dtype), int(args.exponent))
    return fill_elementwise("int pow", _power, [args.self], parameters, args.out)


def _sum(args: Arguments) -> torch.Tensor:
    if args.self.dtype is torch.bool:
        return over_dims("count", _count, args)
    return over_dims("int sum", partial(folded, exact_add), args)


MOST_COMPARISONS = 1 << 22
"""Elements times bins that the cores compare; beyond, the host counts."""


def _histogram(args: Arguments) -> torch.Tensor:
    """aten::histc by the formula of torch's CUDA kernel; its CPU kernel has floats only.

    Bin ⌊(x - min) · bins / (max - min)⌋ counts x; elements equal to ``max`` go to the last bin.
    """
    x, bins, lowest, highest = args.self, args.bins, int(args.min), int(args.max)
    if bins <= 0 or highest < lowest:
        raise RuntimeError("bins must be > 0" if bins <= 0 else "max must be larger than min")
    if lowest == highest and x.numel():
        lowest, highest = int(x.min()), int(x.max())
    if lowest == highest:
        lowest, highest = lowest - 1, highest + 1
    if x.numel() and bins * x.numel() <= MOST_COMPARISONS:
        return _bin_counts(x.reshape(-1), bins, lowest, highest)
    with on_cpu("aten.histc.default"):
        return _bin_counts(x.cpu().reshape(-1), bins, lowest, highest).to(x.device)


def _bin_counts(x: torch.Tensor, bins: int, lowest: int, highest: int) -> torch.Tensor:
    place = ((x.long() - lowest) * bins) // (highest - lowest)
    place = torch.where(place == bins, bins - 1, place)
    if x.is_cpu:
        held = place[(place >= 0) & (place < bins)]
        return torch.bincount(held, minlength=bins).to(x.dtype)
    numbers = torch.arange(bins, device=x.device).unsqueeze(1)
    return (place.unsqueeze(0) == numbers).sum(1).to(x.dtype)


def _counts(args: Arguments) -> torch.Tensor:
    """aten::bincount: the host reads the largest element, which sizes the result."""
    x, minlength = args.self, args.minlength
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


def _has_integers(args: Arguments) -> bool:
    """Both operands are integers, and so is the factor of a sum."""
    return all(map(is_integer, (args.self, args.other))) and is_integer(getattr(args, "alpha", 1))


def _has_divisor(args: Arguments) -> bool:
    """Integers, the divisor not the number zero, the result not a bool."""
    is_word = torch.result_type(args.self, args.other) in INTEGERS
    is_zero = isinstance(args.other, int) and not args.other
    return is_word and not is_zero and all(map(is_integer, (args.self, args.other)))


def _has_bits_and_bools(args: Arguments) -> bool:
    tensors = isinstance(args.self, torch.Tensor) and isinstance(args.other, torch.Tensor)
    return tensors and {args.self.dtype, args.other.dtype} == {args.out.dtype, torch.bool}


_BINARY: dict[str, LoweringFunction] = {
    **{name: partial(_arithmetic, name) for name in ("add", "sub", "mul")},
    **{name: partial(_extreme, name) for name in ("maximum", "minimum")},
}
_COMPARISONS = {
    f"{name}.{kind}": name
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for kind in ("Tensor_out", "Scalar_out")
}
_ARITHMETIC = Conditions(dtypes={"out": INTEGERS}, check=_has_integers)
_COMPARISON = Conditions(dtypes={"out": BOOL}, promotes_to=INTEGERS, check=_has_integers)
_CLAMP = Conditions(
    dtypes={"out": INTEGERS},
    check=lambda args: all(map(is_integer, (args.self, *clamp_bounds(args).values()))),
)
_UNARY = Conditions(dtypes={"self": INTEGERS}, same_dtype=("self", "results"))
_BITS = Conditions(dtypes={"out": INTEGERS}, check=_has_bits_and_bools)
_EXTREME = replace(_UNARY, nonempty=("self",))
_POWER = replace(_UNARY, check=lambda args: isinstance(args.exponent, int) and args.exponent >= 0)
_DIVISION = Conditions(
    dtypes={"results": INTEGERS}, same_dtype=("results",), nonempty=("inputs",), check=_has_divisor
)
_SUM = Conditions(
    dtypes={"self": (*INTEGERS, torch.bool), "out": INTEGERS},
    nonempty=("self",),
    # counts are exact in float32; sums lay words out with other sticks, up to one in each
    check=lambda args: args.self.numel() <= (1 << 24 if args.self.dtype is torch.bool else 1 << 20),
)
_COUNTS = Conditions(
    dtypes={"self": INTEGERS},
    ranks={"self": (1,)},
    values={"weights": (None,)},
    check=lambda args: args.minlength >= 0,
)

KERNELS = (
    *((f"{n}.out", partial(_binary, n, f), _ARITHMETIC) for n, f in _BINARY.items()),
    *(
        (full, partial(comparison, f"int {name}", partial(_compared, name)), _COMPARISON)
        for full, name in _COMPARISONS.items()
    ),
    *((name, _clamp, _CLAMP) for name in CLAMPS),
    *(
        (f"bitwise_{name}.Tensor_out", partial(_binary, name, partial(_with_truth, name)), _BITS)
        for name in ("and", "or", "xor")
    ),
    *(
        (full, partial(over_dims, f"int {name}", partial(_outermost, name)), _EXTREME)
        for name in ("max", "min")
        for full in (name, f"a{name}.out")
    ),
    ("neg.out", partial(unary, "int neg", _negative, ()), _UNARY),
    ("abs.out", partial(unary, "int abs", _magnitude, ()), _UNARY),
    ("sum.IntList_out", _sum, _SUM),
    ("pow.Tensor_Scalar_out", _raised, _POWER),
    (
        "prod.int_out",
        partial(over_dims, "int prod", partial(folded, exact_mul)),
        replace(_SUM, check=lambda args: args.self.numel() <= 1 << 20),
    ),
    *(
        (name, partial(_divided, wanted), _DIVISION)
        for name, wanted in (
            ("div.out_mode", ""),
            ("floor_divide", "floor"),
            ("floor_divide.out", "floor"),
            ("remainder.Tensor_out", "remainder"),
            ("fmod.Tensor_out", "fmod"),
        )
    ),
    ("bincount", _counts, _COUNTS),
    ("histc", _histogram, Conditions(dtypes={"self": INTEGERS})),
)
