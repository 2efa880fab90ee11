"""Activations, losses and dropout with their backward passes, addcmul, lerp.

Formulas of several steps run in float32 and are rounded once, except those that only choose between
their operands. Losses and dropout are made of other operations; losses are added up in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import pi, sqrt
from typing import Any

import torch

from spyre.torch_backend.device import cpu_generator, name_of
from spyre.torch_backend.eager.compile import ScalarOperand
from spyre.torch_backend.eager.dispatch import (
    ARITHMETIC,
    BOOL,
    FLOATS,
    INTEGERS,
    Arguments,
    Conditions,
    copy_into,
    fill_elementwise,
    new_elementwise,
    row,
)
from spyre.torch_backend.eager.masks import as_fill_operand
from spyre.torch_backend.eager.special import Term, exponential_minus_one, normal_tail, within_tail
from spyre.torch_backend.program import (
    Lowering,
    LoweringError,
    LoweringFunction,
    Value,
    current_recorder,
)

_F32 = "float32"


def in_float32(formula: Callable[..., Term], builder: Lowering, *args: Any) -> Value:
    """A lowering (builder, *values, dtype, *numbers) of ``formula(*terms, *numbers)``."""
    values = [v for v in args if not isinstance(v, (int, float, str))]
    dtype, *numbers = args[len(values) :]
    terms = (Term(builder, builder.convert(v, _F32)) for v in values)
    return builder.convert(formula(*terms, *numbers).value, dtype)


def silu_backward(grad: Term, x: Term) -> Term:
    s = x.sigmoid()
    return grad * (s * (1.0 + x * (1.0 - s)))


def gelu_backward(grad: Term, x: Term) -> Term:
    """grad · (Φ(x) + x · φ(x))."""
    ratio, e = normal_tail(within_tail(x))
    tail = ratio * e
    share = (x < 0.0).chosen(tail, 1.0 - tail)
    return grad * (share + x * (1 / sqrt(2 * pi) * e))


def tanh_gelu_backward(grad: Term, x: Term) -> Term:
    """grad · d/dx x·σ(2u), u = √(2/π)·(x + 0.044715·x³), the tanh form."""
    beta, cubic = sqrt(2 / pi), 0.044715
    square = x * x
    s = (2.0 * (beta * (x * (1.0 + cubic * square)))).sigmoid()
    slope = 2 * beta * (1.0 + 3 * cubic * square)
    return grad * (s + x * slope * (s * (1.0 - s)))


def softplus_backward(grad: Term, x: Term, beta: float, threshold: float) -> Term:
    """grad · σ(beta · x); grad alone where beta · x exceeds the threshold."""
    scaled = beta * x
    below = grad * scaled.sigmoid()
    return (scaled > threshold).chosen(grad, below)


def lerp_number(start: Term, end: Term, weight: float) -> Term:
    """start + weight · (end - start), from the nearer end."""
    if weight < 0.5:
        return start + weight * (end - start)
    return end - (1 - weight) * (end - start)


def lerp_tensor(start: Term, end: Term, weight: Term) -> Term:
    """start + weight · (end - start), from the nearer end."""
    way = end - start
    from_start, from_end = start + weight * way, end - (1.0 - weight) * way
    return (abs(weight) < 0.5).chosen(from_start, from_end)


def hardswish(x: Term) -> Term:
    """x · (min(max(x + 3, 0), 6) / 6), in which nothing overflows."""
    return x * ((x + 3.0).maximum(0.0).minimum(6.0) * (1 / 6))


def hardsigmoid(x: Term) -> Term:
    """min(max(x + 3, 0), 6) / 6; NaN stays, which the card's maximum would drop."""
    gate = (x + 3.0).maximum(0.0).minimum(6.0) * (1 / 6)
    return x.equal(x).chosen(gate, x)


def elu(x: Term, alpha: float, scale: float, input_scale: float) -> Term:
    """scale · x from zero on, else scale · alpha · (e^(input_scale · x) - 1)."""
    below = exponential_minus_one(_scaled(x, input_scale))
    return (x >= 0.0).chosen(_scaled(x, scale), _scaled(below, alpha * scale))


def _scaled(x: Term, factor: float) -> Term:
    return x if factor == 1.0 else factor * x


def threshold_backward(builder: Lowering, grad: Value, x: Value, dtype: str, bound: float) -> Value:
    """grad where x exceeds the bound, else 0."""
    grad, x = builder.convert(grad, dtype), builder.convert(x, dtype)
    below = builder.pointwise("lesserequal", x, bound)
    return builder.pointwise("where3", below, 0.0, grad)


def threshold(builder: Lowering, x: Value, number: Value, dtype: str, bound: float) -> Value:
    """``number`` where x does not exceed the bound, else x."""
    x = builder.convert(x, dtype)
    below = builder.pointwise("lesserequal", x, bound)
    return builder.pointwise("where3", below, builder.convert(number, dtype), x)


def hardtanh_backward(
    builder: Lowering, grad: Value, x: Value, dtype: str, lowest: float, highest: float
) -> Value:
    """grad where x is between the bounds, else 0."""
    grad, x = builder.convert(grad, dtype), builder.convert(x, dtype)
    below = builder.pointwise("lesserequal", x, lowest)
    above = builder.pointwise("greaterequal", x, highest)
    inside = builder.pointwise("where3", below, 0.0, grad)
    return builder.pointwise("where3", above, 0.0, inside)


# --- kernels -------------------------------------------------------------------------------------


def _run_formula(
    label: str, lowering: LoweringFunction, numbers: Sequence[str], args: Arguments
) -> torch.Tensor:
    """A formula of the tensors among the positional arguments and of ``numbers``, by name.

    Numbers that optimizers change from step to step are operands, so that one program serves them.
    Operators without an ``out`` or ``grad_input`` make a new tensor.
    """
    (target,) = args.results or [new_elementwise(args.inputs[0].dtype, *args.inputs)]
    operands, values = [*args.inputs], [float(getattr(args, name)) for name in numbers]
    parameters: tuple[Any, ...] = (name_of(target.dtype),)
    if label in ("addcmul.out", "addcdiv.out"):
        operands += [ScalarOperand(value, _F32) for value in values]
    else:
        parameters += tuple(values)
    return fill_elementwise(label, lowering, operands, parameters, target)


def _threshold(args: Arguments) -> torch.Tensor:
    operands = [args.self, as_fill_operand(args.value, args.out.dtype)]
    parameters = (name_of(args.out.dtype), args.threshold)
    return fill_elementwise("threshold", threshold, operands, parameters, args.out)


def _hardtanh(clamp: Callable[..., torch.Tensor], args: Arguments) -> torch.Tensor:
    """A clamp whose bounds do not promote: of integers they are truncated to integers."""
    dtype, bounds = args.self.dtype, (args.min_val, args.max_val)
    if dtype is torch.bool:
        raise RuntimeError("Bool inputs not supported for hardtanh")
    return clamp(args.self, *(bounds if dtype.is_floating_point else map(int, bounds)))


def _gelu_backward(args: Arguments) -> torch.Tensor:
    label, formula = "gelu_backward.grad_input", gelu_backward
    if args.approximate == "tanh":
        label, formula = "tanh_gelu_backward", tanh_gelu_backward
    return _run_formula(label, partial(in_float32, formula), (), args)


_FLOATS = Conditions(
    dtypes={"inputs": FLOATS, "results": FLOATS}, same_device=("inputs", "results")
)

_FORMULAS: tuple[tuple[str, Callable[..., Term], tuple[str, ...]], ...] = (
    ("sigmoid_backward.grad_input", lambda grad, y: grad * (y * (1.0 - y)), ()),
    ("tanh_backward.grad_input", lambda grad, y: grad * (1.0 - y * y), ()),
    ("silu_backward.grad_input", silu_backward, ()),
    ("softplus_backward.grad_input", softplus_backward, ("beta", "threshold")),
    ("addcmul.out", lambda x, a, b, factor: x + factor * (a * b), ("value",)),
    ("addcdiv.out", lambda x, a, b, factor: x + factor * (a / b), ("value",)),
    ("lerp.Scalar_out", lerp_number, ("weight",)),
    ("lerp.Tensor_out", lerp_tensor, ()),
    ("hardswish", hardswish, ()),
    ("hardsigmoid.out", hardsigmoid, ()),
    ("elu.out", elu, ("alpha", "scale", "input_scale")),
)
"""Operator, formula, and the names of the numbers it takes behind the tensors."""
_LOWERINGS: tuple[tuple[str, LoweringFunction, tuple[str, ...]], ...] = (
    *((name, partial(in_float32, formula), numbers) for name, formula, numbers in _FORMULAS),
    ("threshold_backward.grad_input", threshold_backward, ("threshold",)),
    ("hardtanh_backward", hardtanh_backward, ("min_val", "max_val")),
)

NONE, MEAN, SUM = 0, 1, 2
"""Reductions as torch numbers them."""


def nll_loss(args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses by class, which is dim 1 or the only dim; nll_loss2d_forward makes its results."""
    x, target, reduction = args.self, args.target, args.reduction
    dim = min(x.dim() - 1, 1)
    keeps, classes, factors = _classes(target, args.weight, args.ignore_index)
    picked = x.gather(dim, classes.unsqueeze(dim)).squeeze(dim).float()
    losses = torch.where(keeps, -picked * factors, 0.0)
    total = factors.sum() if reduction != NONE else torch.zeros_like(factors.sum())
    if reduction != NONE:
        losses = losses.sum()
    if reduction == MEAN:
        losses = losses / total
    output, total_weight = args.results or (
        x.new_empty(target.shape if reduction == NONE else ()),
        x.new_empty(()),
    )
    return copy_into(output, losses.to(x.dtype)), copy_into(total_weight, total.to(x.dtype))


def _classes(
    target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Whether a target counts, its class (0 where it does not) and its weight (0 there)."""
    keeps = target != ignore_index
    classes = torch.where(keeps, target, 0)
    if weight is None:
        return keeps, classes, keeps.float()
    chosen = weight.float().index_select(0, classes.reshape(-1)).reshape(target.shape)
    return keeps, classes, torch.where(keeps, chosen, 0.0)


def nll_loss_backward(args: Arguments) -> torch.Tensor:
    """Gradients of the input; nll_loss2d_backward makes its result."""
    x, grad = args.self, args.grad_output.float()
    dim = min(x.dim() - 1, 1)
    keeps, classes, factors = _classes(args.target, args.weight, args.ignore_index)
    share = grad / args.total_weight.float() if args.reduction == MEAN else grad
    # the total weight is 0 if all targets are ignored
    values = torch.where(keeps, -factors * share, 0.0).to(x.dtype).unsqueeze(dim)
    found = torch.zeros_like(x).scatter(dim, classes.unsqueeze(dim), values)
    (grad_input,) = args.results or [torch.empty_like(x)]
    return copy_into(grad_input, found)


def _halves(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    half = x.shape[dim] // 2
    return x.narrow(dim, 0, half), x.narrow(dim, half, half)


def _gated(args: Arguments) -> torch.Tensor:
    """aten::glu: the first half times σ of the second one."""
    formula = partial(in_float32, lambda a, b: a * b.sigmoid())
    parameters = (name_of(args.out.dtype),)
    return fill_elementwise("glu", formula, _halves(args.self, args.dim), parameters, args.out)


def _gated_backward(args: Arguments) -> torch.Tensor:
    """Gradients of both halves."""
    a, b = (half.float() for half in _halves(args.self, args.dim))
    gate = torch.sigmoid(b)
    share = args.grad_output.float() * gate
    found = torch.cat([share, share * a * (1 - gate)], args.dim).to(args.self.dtype)
    (grad_input,) = args.results or [args.self.new_empty(args.self.shape)]
    return copy_into(grad_input, found)


def native_dropout(args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::native_dropout; the mask is drawn on the host, as all random numbers are."""
    if current_recorder() is not None:
        raise LoweringError("random numbers")
    x, p = args.input, args.p
    mask = torch.ones_like(x, dtype=torch.bool, device="cpu")
    if args.train is None or args.train:
        mask.bernoulli_(1 - p, generator=cpu_generator(x.device.index))
    else:
        p = 0.0
    mask = mask.to(x.device)
    return torch.where(mask, x * (1 / (1 - p) if p < 1 else 0.0), 0.0), mask


_LOSS = Conditions(
    dtypes={"inputs": (*FLOATS, *INTEGERS)}, same_device=("inputs",), nonempty=("inputs",)
)

KERNELS = (
    *(
        (name, partial(_run_formula, name, lowering, numbers), _FLOATS)
        for name, lowering, numbers in _LOWERINGS
    ),
    ("threshold.out", _threshold, ARITHMETIC),
    ("gelu_backward.grad_input", _gelu_backward, _FLOATS),
    ("hardtanh", partial(_hardtanh, torch.clamp), None),
    ("hardtanh_", partial(_hardtanh, torch.clamp_), None),
    ("glu.out", _gated, Conditions(dtypes={"self": FLOATS, "out": FLOATS})),
    ("glu_backward", _gated_backward, _FLOATS),
    ("glu_backward.grad_input", _gated_backward, _FLOATS),
    ("nll_loss_forward.output", nll_loss, _LOSS),
    ("nll_loss2d_forward.output", nll_loss, _LOSS),
    ("nll_loss2d_forward", nll_loss, _LOSS),
    ("nll_loss2d_backward", nll_loss_backward, _LOSS),
    ("nll_loss_backward.grad_input", nll_loss_backward, _LOSS),
    ("nll_loss2d_backward.grad_input", nll_loss_backward, _LOSS),
    row(native_dropout, dtypes={"input": FLOATS}, nonempty=("input",)),
    row(
        lambda args: torch.where(args.mask, args.grad_output * args.scale, 0.0),
        "native_dropout_backward",
        dtypes={"grad_output": FLOATS, "mask": BOOL},
        nonempty=("grad_output",),
    ),
)
