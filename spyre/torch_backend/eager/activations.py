"""Formulas on several tensors and numbers: activations with their backward passes, addcmul, lerp.

Formulas of several steps run in float32 and are rounded once, except those that only choose between
their operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import pi, sqrt
from typing import Any

import torch

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.compile import ScalarOperand
from spyre.torch_backend.eager.dispatch import (
    ARITHMETIC,
    FLOATS,
    Conditions,
    EagerKernel,
    fill_elementwise,
    new_elementwise,
)
from spyre.torch_backend.eager.masks import filling
from spyre.torch_backend.eager.special import exponential_minus_one, normal_tail, within_tail
from spyre.torch_backend.program import Lowering, LoweringFunction, Value

_F32 = "float32"


class Formula:
    """Arithmetic on float32 values and numbers."""

    def __init__(self, low: Lowering) -> None:
        self.low = low

    def __call__(self, name: str, *operands: Value | float) -> Value:
        """An operation of the card, numbers as constants."""
        values = [
            self.low.constant(x, _F32) if isinstance(x, (int, float)) else x for x in operands
        ]
        return self.low.pointwise(name, *values)


def in_float32(formula: Callable[..., Value], low: Lowering, *args: Any) -> Value:
    """A lowering (low, *values, dtype, *numbers) of ``formula(f, *values, *numbers)``."""
    values = [low.convert(v, _F32) for v in args if not isinstance(v, (int, float, str))]
    dtype, *numbers = args[len(values) :]
    return low.convert(formula(Formula(low), *values, *numbers), dtype)


def sigmoid_backward(f: Formula, grad: Value, y: Value) -> Value:
    """grad · y · (1 - y)."""
    return f("mul", grad, f("mul", y, f("sub", 1.0, y)))


def tanh_backward(f: Formula, grad: Value, y: Value) -> Value:
    """grad · (1 - y²)."""
    return f("mul", grad, f("sub", 1.0, f("mul", y, y)))


def silu_backward(f: Formula, grad: Value, x: Value) -> Value:
    """grad · σ · (1 + x · (1 - σ))."""
    s = f("sigmoid", x)
    return f("mul", grad, f("mul", s, f("add", 1.0, f("mul", x, f("sub", 1.0, s)))))


def gelu_backward(f: Formula, grad: Value, x: Value) -> Value:
    """grad · (Φ(x) + x · φ(x))."""
    ratio, e = normal_tail(f.low, within_tail(f.low, x))
    tail = f("mul", ratio, e)
    share = f("where3", f("lesserthan", x, 0.0), tail, f("sub", 1.0, tail))
    density = f("mul", 1 / sqrt(2 * pi), e)
    return f("mul", grad, f("add", share, f("mul", x, density)))


def tanh_gelu_backward(f: Formula, grad: Value, x: Value) -> Value:
    """grad · d/dx x·σ(2u), u = √(2/π)·(x + 0.044715·x³), the tanh form."""
    beta, cubic = sqrt(2 / pi), 0.044715
    square = f("mul", x, x)
    u = f("mul", beta, f("mul", x, f("add", 1.0, f("mul", cubic, square))))
    s = f("sigmoid", f("mul", 2.0, u))
    slope = f("mul", 2 * beta, f("add", 1.0, f("mul", 3 * cubic, square)))
    change = f("mul", f("mul", x, slope), f("mul", s, f("sub", 1.0, s)))
    return f("mul", grad, f("add", s, change))


def softplus_backward(f: Formula, grad: Value, x: Value, beta: float, threshold: float) -> Value:
    """grad · σ(beta · x); grad alone where beta · x exceeds the threshold."""
    scaled = f("mul", beta, x)
    below = f("mul", grad, f("sigmoid", scaled))
    return f("where3", f("greaterthan", scaled, threshold), grad, below)


def addcmul(f: Formula, x: Value, a: Value, b: Value, factor: Value) -> Value:
    """x + factor · a · b."""
    return f("add", x, f("mul", factor, f("mul", a, b)))


def addcdiv(f: Formula, x: Value, a: Value, b: Value, factor: Value) -> Value:
    """x + factor · a / b."""
    return f("add", x, f("mul", factor, f("realdiv", a, b)))


def lerp_number(f: Formula, start: Value, end: Value, weight: float) -> Value:
    """start + weight · (end - start), from the nearer end."""
    if weight < 0.5:
        return f("add", start, f("mul", weight, f("sub", end, start)))
    return f("sub", end, f("mul", 1 - weight, f("sub", end, start)))


def lerp_tensor(f: Formula, start: Value, end: Value, weight: Value) -> Value:
    """start + weight · (end - start), from the nearer end."""
    way = f("sub", end, start)
    low = f("add", start, f("mul", weight, way))
    high = f("sub", end, f("mul", f("sub", 1.0, weight), way))
    return f("where3", f("lesserthan", f("abs", weight), 0.5), low, high)


def hardswish(f: Formula, x: Value) -> Value:
    """x · (min(max(x + 3, 0), 6) / 6), in which nothing overflows."""
    gate = f("minimum", f("maximum", f("add", x, 3.0), 0.0), 6.0)
    return f("mul", x, f("mul", gate, 1 / 6))


def hardsigmoid(f: Formula, x: Value) -> Value:
    """min(max(x + 3, 0), 6) / 6; NaN stays, which the card's maximum would drop."""
    gate = f("mul", f("minimum", f("maximum", f("add", x, 3.0), 0.0), 6.0), 1 / 6)
    return f("where3", f("equal", x, x), gate, x)


def elu(f: Formula, x: Value, alpha: float, scale: float, input_scale: float) -> Value:
    """scale · x above zero, else scale · alpha · (e^(input_scale · x) - 1)."""
    below = exponential_minus_one(f.low, _scaled(f, x, input_scale))
    above = _scaled(f, x, scale)
    return f("where3", f("greaterthan", x, 0.0), above, _scaled(f, below, alpha * scale))


def _scaled(f: Formula, x: Value, factor: float) -> Value:
    return x if factor == 1.0 else f("mul", factor, x)


def threshold_backward(low: Lowering, grad: Value, x: Value, dtype: str, bound: float) -> Value:
    """grad where x exceeds the bound, else 0."""
    grad, x = low.convert(grad, dtype), low.convert(x, dtype)
    below = low.pointwise("lesserequal", x, low.constant(bound, dtype))
    return low.pointwise("where3", below, low.constant(0.0, dtype), grad)


def threshold(low: Lowering, x: Value, number: Value, dtype: str, bound: float) -> Value:
    """``number`` where x does not exceed the bound, else x."""
    x = low.convert(x, dtype)
    below = low.pointwise("lesserequal", x, low.constant(bound, dtype))
    return low.pointwise("where3", below, low.convert(number, dtype), x)


def hardtanh_backward(
    low: Lowering, grad: Value, x: Value, dtype: str, lowest: float, highest: float
) -> Value:
    """grad where x lies between the bounds, else 0."""
    grad, x = low.convert(grad, dtype), low.convert(x, dtype)
    zero = low.constant(0.0, dtype)
    below = low.pointwise("lesserequal", x, low.constant(lowest, dtype))
    above = low.pointwise("greaterequal", x, low.constant(highest, dtype))
    inside = low.pointwise("where3", below, zero, grad)
    return low.pointwise("where3", above, zero, inside)


# --- kernels -------------------------------------------------------------------------------------


def _run_formula(
    label: str,
    lowering: LoweringFunction,
    tensors: int,
    numbers: Mapping[str, float],
    numbers_are_operands: bool,
    *args: Any,
    **named: Any,
) -> torch.Tensor:
    """``tensors`` tensors, then ``numbers`` by name with their defaults; the target by any name.

    ``numbers_are_operands``: of numbers that optimizers change from step to step, so that one
    program serves all of them.
    """
    target = _target(args, named)
    operands = list(args[:tensors])
    positional = dict(zip(numbers, args[tensors:], strict=False))
    values = {**numbers, **{k: v for k, v in named.items() if k in numbers}, **positional}
    parameters: tuple[Any, ...] = (name_of(target.dtype),)
    if numbers_are_operands:
        operands += [ScalarOperand(float(v), _F32) for v in values.values()]
    else:
        parameters += tuple(float(v) for v in values.values())
    return fill_elementwise(label, lowering, operands, parameters, target)


def _target(args: tuple[Any, ...], named: Mapping[str, Any]) -> torch.Tensor:
    """``out`` or ``grad_input``; functions without one make it."""
    target: torch.Tensor | None = named.get("out", named.get("grad_input"))
    if target is None:
        return new_elementwise(args[0].dtype, *(a for a in args if isinstance(a, torch.Tensor)))
    return target


def _threshold(x: torch.Tensor, bound: float, number: float, *, out: torch.Tensor) -> torch.Tensor:
    """aten::threshold.out."""
    operands = [x, filling(number, out.dtype)]
    return fill_elementwise("threshold", threshold, operands, (name_of(out.dtype), bound), out)


def hardtanh(x: torch.Tensor, min_val: float = -1, max_val: float = 1) -> torch.Tensor:
    return torch.clamp(x, *_bounds_in(x.dtype, min_val, max_val))


def hardtanh_(x: torch.Tensor, min_val: float = -1, max_val: float = 1) -> torch.Tensor:
    return torch.clamp_(x, *_bounds_in(x.dtype, min_val, max_val))


def _bounds_in(dtype: torch.dtype, *bounds: float) -> tuple[float, ...]:
    """Bounds do not promote as those of clamp do: of integers they are cut off to integers."""
    if dtype is torch.bool:
        raise RuntimeError("Bool inputs not supported for hardtanh")
    return bounds if dtype.is_floating_point else tuple(map(int, bounds))


def _gelu_backward(
    grad: torch.Tensor, x: torch.Tensor, *, approximate: str = "none", grad_input: torch.Tensor
) -> torch.Tensor:
    """aten::gelu_backward.grad_input, both forms."""
    label, formula = "gelu_backward.grad_input", gelu_backward
    if approximate == "tanh":
        label, formula = "tanh_gelu_backward", tanh_gelu_backward
    lowering = partial(in_float32, formula)
    return _run_formula(label, lowering, 2, {}, False, grad, x, grad_input=grad_input)


# --- the table -----------------------------------------------------------------------------------


_FLOATS = Conditions(
    dtypes={"inputs": FLOATS, "results": FLOATS}, same_device=("inputs", "results")
)


def _formula(
    name: str, lowering: LoweringFunction, tensors: int, numbers: Mapping[str, float]
) -> EagerKernel:
    are_operands = name in ("addcmul.out", "addcdiv.out")
    run = partial(_run_formula, name, lowering, tensors, numbers, are_operands)
    return EagerKernel(name, run, _FLOATS)


_FORMULAS: dict[str, tuple[Callable[..., Value], int, dict[str, float]]] = {
    "sigmoid_backward.grad_input": (sigmoid_backward, 2, {}),
    "tanh_backward.grad_input": (tanh_backward, 2, {}),
    "silu_backward.grad_input": (silu_backward, 2, {}),
    "softplus_backward.grad_input": (softplus_backward, 2, {"beta": 1.0, "threshold": 20.0}),
    "addcmul.out": (addcmul, 3, {"value": 1.0}),
    "addcdiv.out": (addcdiv, 3, {"value": 1.0}),
    "lerp.Scalar_out": (lerp_number, 2, {"weight": 0.0}),
    "lerp.Tensor_out": (lerp_tensor, 3, {}),
    "hardswish": (hardswish, 1, {}),
    "hardsigmoid.out": (hardsigmoid, 1, {}),
    "elu.out": (elu, 1, {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}),
}
"""Formula, how many tensors it takes, and numbers with their defaults, by aten name."""

KERNELS = (
    *(
        _formula(name, partial(in_float32, formula), tensors, numbers)
        for name, (formula, tensors, numbers) in _FORMULAS.items()
    ),
    _formula("threshold_backward.grad_input", threshold_backward, 2, {"threshold": 0.0}),
    _formula("hardtanh_backward", hardtanh_backward, 2, {"min_val": -1.0, "max_val": 1.0}),
    EagerKernel("threshold.out", _threshold, ARITHMETIC),
    EagerKernel("gelu_backward.grad_input", _gelu_backward, _FLOATS),
    EagerKernel("hardtanh", hardtanh),
    EagerKernel("hardtanh_", hardtanh_),
)
