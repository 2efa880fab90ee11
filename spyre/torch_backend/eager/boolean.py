"""Boolean logic and predicates: logical_*, bitwise_* of bools, isnan, sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spyre.torch_backend.eager.dispatch import (
    CONVERTED,
    FLOATS,
    Kernel,
    broadcast_shape,
    falling_back,
    fill,
)
from spyre.torch_backend.eager.dispatch import operand as operand_of
from spyre.torch_backend.program.op_spec import Value
from spyre.torch_backend.program.operations import Lowering

Lower = Callable[..., Value]


def _truths(name: str) -> Lower:
    """An operation on 1.0 and 0.0."""

    def lower(low: Lowering, a: Value, b: Value) -> Value:
        return low.truth(low.pointwise(name, low.convert(a, "bool"), low.convert(b, "bool")))

    return lower


def negated(low: Lowering, x: Value) -> Value:
    """Whether elements are zero."""
    x = low.convert(x, "float32") if x.dtype in ("int32", "int64") else x
    return low.truth(low.pointwise("equal", x, low.constant(0.0, x.dtype)))


def _unequal_to_itself(low: Lowering, x: Value) -> Value:
    return low.truth(low.pointwise("notequal", x, x))


def _equal_to(number: float) -> Lower:
    def lower(low: Lowering, x: Value) -> Value:
        return low.truth(low.pointwise("equal", x, low.constant(number, x.dtype)))

    return lower


def _sign(low: Lowering, x: Value) -> Value:
    zero = low.constant(0.0, x.dtype)
    above, below = low.pointwise("greaterthan", x, zero), low.pointwise("lesserthan", x, zero)
    return low.pointwise("sub", above, below)


# --- kernels -------------------------------------------------------------------------------------


def _pair(name: str, lower: Lower, dtypes: tuple[torch.dtype, ...]) -> Kernel:
    def kernel(a: Any, b: Any, *, out: torch.Tensor) -> torch.Tensor:
        operands = [operand_of(a, torch.bool), operand_of(b, torch.bool)]
        return fill(name, lower, operands, (), out, broadcast_shape(*operands))

    def takes(a: Any, b: Any, *, out: torch.Tensor) -> bool:
        fits = all(_is_truth(v) or (torch.is_tensor(v) and v.dtype in dtypes) for v in (a, b))
        return fits and out.dtype is torch.bool

    return falling_back(name, kernel, takes)


def _is_truth(value: Any) -> bool:
    """Python's bools and tensors of them."""
    if isinstance(value, torch.Tensor):
        return value.dtype is torch.bool
    return isinstance(value, bool)


def _single(
    name: str, lower: Lower, dtypes: tuple[torch.dtype, ...], out_dtypes: tuple[torch.dtype, ...]
) -> Kernel:
    def kernel(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        return fill(name, lower, [x], (), out, x.shape)

    def takes(x: torch.Tensor, *, out: torch.Tensor) -> bool:
        return (
            x.dtype in dtypes
            and out.dtype in out_dtypes
            and (out.dtype.itemsize == 1 or x.dtype == out.dtype)
        )

    return falling_back(name, kernel, takes)


def isnan(x: torch.Tensor) -> torch.Tensor:
    """aten::isnan. The card's 16-bit format has no NaN: what came as one is an infinity there."""
    found = torch.empty_like(x, dtype=torch.bool)
    return fill("isnan", _unequal_to_itself, [x], (), found)


def _is_float(x: torch.Tensor) -> bool:
    return x.dtype in FLOATS


def boolean_kernels(before: dict[str, Kernel]) -> dict[str, Kernel]:
    """By aten name; ``before``: kernels of other dtypes, which those here precede."""
    pairs = {"and": _truths("minimum"), "or": _truths("maximum"), "xor": _truths("notequal")}
    found: dict[str, Kernel] = {}
    for name, lower in pairs.items():
        found[f"logical_{name}.out"] = _pair(f"logical_{name}.out", lower, CONVERTED)
        full = f"bitwise_{name}.Tensor_out"
        found[full] = _pair(full, lower, ())
    bools = (torch.bool,)
    found["logical_not.out"] = _single("logical_not.out", negated, CONVERTED, bools)
    found["bitwise_not.out"] = _single("bitwise_not.out", negated, bools, bools)
    for name, number in (("isposinf.out", float("inf")), ("isneginf.out", float("-inf"))):
        found[name] = _single(name, _equal_to(number), FLOATS, bools)
    for name in ("sign.out", "sgn.out"):
        found[name] = _single(name, _sign, FLOATS, FLOATS)
    found["isnan"] = falling_back("isnan", isnan, _is_float)
    found["mul.out"] = _product_of_truths(pairs["and"], before["mul.out"])
    return found


def _product_of_truths(lower: Lower, otherwise: Kernel) -> Kernel:
    def kernel(a: Any, b: Any, *, out: torch.Tensor) -> torch.Tensor:
        if out.dtype is not torch.bool or not (_is_truth(a) and _is_truth(b)):
            found: torch.Tensor = otherwise(a, b, out=out)
            return found
        operands = [operand_of(a, torch.bool), operand_of(b, torch.bool)]
        return fill("logical_and.out", lower, operands, (), out, broadcast_shape(*operands))

    return kernel
