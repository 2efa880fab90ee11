"""Formulas on several tensors and numbers: activations with their backward passes, addcmul, lerp.

Formulas of several steps run in float32 and are rounded once, except those that only choose between
their operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt
from typing import Any

import torch

from spyre.torch_backend.device.dtypes import name_of
from spyre.torch_backend.eager.dispatch import FLOATS, Kernel, falling_back, fill
from spyre.torch_backend.eager.operands import ScalarOperand
from spyre.torch_backend.eager.special import erf
from spyre.torch_backend.program.op_spec import Value
from spyre.torch_backend.program.operations import Lowering

Lower = Callable[..., Value]
_F32 = "float32"
_CHANGING_NUMBERS = ("addcmul.out", "addcdiv.out")


class Formula:
    """Arithmetic on float32 values and numbers."""

    def __init__(self, low: Lowering) -> None:
        self.low = low

    def __call__(self, name: str, *values: Value | float) -> Value:
        """An operation of the card, numbers as constants."""
        found = [self.low.constant(v, _F32) if isinstance(v, (int, float)) else v for v in values]
        return self.low.pointwise(name, *found)


def in_float32(formula: Callable[..., Value]) -> Lower:
    """A lowering (low, *values, dtype, *numbers) of ``formula(f, *values, *numbers)``."""

    def lower(low: Lowering, *rest: Any) -> Value:
        values = [low.convert(v, _F32) for v in rest if not isinstance(v, (int, float, str))]
        dtype, *numbers = rest[len(values) :]
        return low.convert(formula(Formula(low), *values, *numbers), dtype)

    return lower


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
    share = f("mul", 0.5, f("add", 1.0, erf(f.low, f("mul", x, sqrt(0.5)))))
    density = f("mul", 1 / sqrt(2 * pi), f("exp", f("mul", -0.5, f("mul", x, x))))
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
    """x · min(max(x + 3, 0), 6) / 6."""
    gate = f("minimum", f("maximum", f("add", x, 3.0), 0.0), 6.0)
    return f("mul", f("mul", x, gate), 1 / 6)


def hardsigmoid(f: Formula, x: Value) -> Value:
    """min(max(x + 3, 0), 6) / 6; NaN stays, which the card's maximum would drop."""
    found = f("mul", f("minimum", f("maximum", f("add", x, 3.0), 0.0), 6.0), 1 / 6)
    return f("where3", f("equal", x, x), found, x)


def elu(f: Formula, x: Value, alpha: float, scale: float, input_scale: float) -> Value:
    """scale · x above zero, else scale · alpha · (e^(input_scale · x) - 1)."""
    below = f("mul", alpha * scale, f("sub", f("exp", f("mul", input_scale, x)), 1.0))
    return f("where3", f("greaterthan", x, 0.0), f("mul", scale, x), below)


def threshold_backward(low: Lowering, grad: Value, x: Value, dtype: str, bound: float) -> Value:
    """grad where x exceeds the bound, else 0."""
    grad, x = low.convert(grad, dtype), low.convert(x, dtype)
    below = low.pointwise("lesserequal", x, low.constant(bound, dtype))
    return low.pointwise("where3", below, low.constant(0.0, dtype), grad)


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


def _kernel(
    name: str, lower: Lower, tensors: int, numbers: Mapping[str, float], label: str = ""
) -> Kernel:
    """``tensors`` tensors, then ``numbers`` by name with their defaults; the target by any name.

    ``label``: of the programs, default ``name``. Numbers that optimizers change from step to step
    are operands, so that one program serves all of them.
    """
    are_operands = name in _CHANGING_NUMBERS

    def kernel(*args: Any, **named: Any) -> torch.Tensor:
        target = _target(args, named)
        operands = list(args[:tensors])
        given = zip(numbers, args[tensors:], strict=False)
        found = {**numbers, **{k: v for k, v in named.items() if k in numbers}, **dict(given)}
        sizes = torch.broadcast_shapes(*(t.shape for t in operands))
        parameters: tuple[Any, ...] = (name_of(target.dtype),)
        if are_operands:
            operands += [ScalarOperand(float(v), _F32) for v in found.values()]
        else:
            parameters += tuple(float(v) for v in found.values())
        return fill(label or name, lower, operands, parameters, target, sizes)

    def takes(*args: Any, **named: Any) -> bool:
        target = _target(args, named)
        given = [*args[:tensors], target]
        return all(t.dtype in FLOATS and t.device == target.device for t in given)

    return falling_back(name, kernel, takes)


def _target(args: tuple[Any, ...], named: Mapping[str, Any]) -> torch.Tensor:
    """``out`` or ``grad_input``; functions without one make it."""
    found = named.get("out", named.get("grad_input"))
    if found is None:
        sizes = torch.broadcast_shapes(*(a.shape for a in args if isinstance(a, torch.Tensor)))
        return torch.empty(sizes, dtype=args[0].dtype, device=args[0].device)
    return found


def hardtanh(x: torch.Tensor, min_val: float = -1, max_val: float = 1) -> torch.Tensor:
    """aten::hardtanh."""
    return torch.clamp(x, min_val, max_val)


def hardtanh_(x: torch.Tensor, min_val: float = -1, max_val: float = 1) -> torch.Tensor:
    """aten::hardtanh_."""
    return torch.clamp_(x, min_val, max_val)


def gelu_backward_kernel() -> Kernel:
    """aten::gelu_backward.grad_input, both forms."""
    name = "gelu_backward.grad_input"
    plain = _kernel(name, in_float32(gelu_backward), 2, {})
    rational = _kernel(name, in_float32(tanh_gelu_backward), 2, {}, "tanh_gelu_backward")

    def kernel(grad: Any, x: Any, *, approximate: str = "none", grad_input: Any) -> Any:
        chosen = rational if approximate == "tanh" else plain
        return chosen(grad, x, grad_input=grad_input)

    return kernel


def activation_kernels() -> dict[str, Kernel]:
    """By aten name."""
    formulas: dict[str, tuple[Callable[..., Value], int, dict[str, float]]] = {
        "sigmoid_backward.grad_input": (sigmoid_backward, 2, {}),
        "tanh_backward.grad_input": (tanh_backward, 2, {}),
        "silu_backward.grad_input": (silu_backward, 2, {}),
        "addcmul.out": (addcmul, 3, {"value": 1.0}),
        "addcdiv.out": (addcdiv, 3, {"value": 1.0}),
        "lerp.Scalar_out": (lerp_number, 2, {"weight": 0.0}),
        "lerp.Tensor_out": (lerp_tensor, 3, {}),
        "hardswish": (hardswish, 1, {}),
        "hardsigmoid.out": (hardsigmoid, 1, {}),
        "elu.out": (elu, 1, {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}),
    }
    found = {
        name: _kernel(name, in_float32(formula), tensors, numbers)
        for name, (formula, tensors, numbers) in formulas.items()
    }
    bounds = {"min_val": -1.0, "max_val": 1.0}
    found["threshold_backward.grad_input"] = _kernel(
        "threshold_backward.grad_input", threshold_backward, 2, {"threshold": 0.0}
    )
    found["hardtanh_backward"] = _kernel("hardtanh_backward", hardtanh_backward, 2, bounds)
    found["gelu_backward.grad_input"] = gelu_backward_kernel()
    return found | {"hardtanh": hardtanh, "hardtanh_": hardtanh_}
