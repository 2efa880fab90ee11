"""Results of operations over transposed, stepping and broadcast tensors: torch's strides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x[0].t(),
    "permuted": lambda x: x.permute(2, 0, 1),
    "permuted steps": lambda x: x.permute(1, 2, 0)[::2],
    "steps": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(4, 6, 5),
}
UNARY = (
    "abs", "neg", "exp", "sqrt", "rsqrt", "reciprocal", "sigmoid", "floor", "ceil", "log",
    "silu", "tanh", "mish", "square", "sin", "cos", "erf", "round", "sign", "relu", "log1p",
    "log2", "expm1", "trunc", "frac", "isnan", "isinf", "isfinite", "logical_not", "positive",
    "clone", "zeros_like", "deg2rad", "asinh", "atan", "digamma", "sgn", "signbit",
    "nan_to_num", "hardswish", "hardsigmoid", "hardtanh", "gelu", "softplus", "elu", "selu",
    "celu", "leaky_relu", "relu6", "logsigmoid", "softsign", "tanhshrink",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2", "fmod", "remainder",
    "floor_divide", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
    "logical_xor", "hypot", "copysign", "fmax", "fmin", "xlogy", "logaddexp", "rsub",
    "heaviside", "true_divide", "clamp_min",
)  # fmt: skip
OTHERS: dict[str, Callable[[Any], Any]] = {
    "where": lambda x: torch.where(x > 9, x, x + 1),
    "where of other strides": lambda x: torch.where(x.contiguous() > 9, x, x),
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "clamp between tensors": lambda x: x.clamp(x, x + 1),
    "power": lambda x: x**2.5,
    "number": lambda x: 1 - x / 3,
    "quotient": lambda x: torch.div(x, 3, rounding_mode="floor"),
    "broadcast": lambda x: x + x[:1],
    "given": lambda x: torch.abs(x, out=torch.empty(0, device=x.device)),
    "masked_fill": lambda x: x.masked_fill(x > 9, 0),
    "halves": lambda x: x.half().abs() + x,
    "integers": lambda x: (x.int() // 3).abs() % 2 + x.int(),
    "integers compared": lambda x: x.int() > 9,
    "bools": lambda x: (x > 9).logical_and(x > 8) & ~(x > 9),
    "flip": lambda x: x.flip(0, 1),
    "roll": lambda x: x.roll(1, 0),
    "sort": lambda x: x.sort(0).values,
    "positions of sort": lambda x: x.sort(-1).indices,
    "topk": lambda x: x.topk(1, 0).values,
    "cumsum": lambda x: x.cumsum(0),
    "softmax": lambda x: x.softmax(0),
    "sum": lambda x: x.sum(-1),
    "amax": lambda x: x.amax(0, keepdim=True),
    "var": lambda x: x.var(0),
    "group_norm": lambda x: F.group_norm(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "tril": lambda x: x.tril(),
    "index_select": lambda x: x.index_select(0, torch.tensor([0, 1], device=x.device)),
    "cat": lambda x: torch.cat([x, x]),
}


def functions() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    def named(name: str) -> Callable[..., torch.Tensor]:
        found: Callable[..., torch.Tensor] = getattr(torch, name, None) or getattr(F, name)
        return found

    unary = {name: named(name) for name in UNARY}
    binary = {name: partial(_of_itself, named(name)) for name in BINARY}
    return {**unary, **binary, **OTHERS}


def _of_itself(function: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return function(x, x)


def strides(x: torch.Tensor) -> list[int]:
    """Return the strides of extents beyond 1, the others have no effect."""
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]


@pytest.mark.parametrize("view", VIEWS)
def test_results_have_torchs_strides(view):
    host = torch.randint(1, 256, (4, 6, 5)).float() / 64 + 8
    card = host.to("spyre")
    differ = {}
    for name, function in functions().items():
        wanted, found = (function(VIEWS[view](x)) for x in (host, card))
        if strides(wanted) != strides(found) or wanted.dtype != found.dtype:
            differ[name] = found.stride(), wanted.stride()
    assert differ == {}


def test_values_keep_their_places():
    host = torch.randint(-256, 256, (5, 6, 70)) / 64
    card = host.to("spyre")
    for function in (torch.abs, torch.logical_not, F.hardswish, lambda x: x.flip(0)):
        for view in (lambda x: x.permute(2, 0, 1), lambda x: x.transpose(0, 1)[:, ::2]):
            found, wanted = function(view(card)), function(view(host))
            assert found.stride() == wanted.stride()
            assert torch.allclose(found.cpu(), wanted, atol=1e-6)
            assert torch.equal(found.cpu().contiguous(), found.contiguous().cpu())


@pytest.mark.parametrize("divisor", [3, 3.0, torch.tensor(3), torch.tensor(3.0).double()])
def test_a_division_without_a_rounding_mode_runs_on_the_cores(divisor):
    host = torch.arange(1, 200).half()
    card = host.to("spyre")
    torch.spyre.reset_fallbacks()
    quotient = card / 3
    assert torch.equal(torch.div(card, divisor, rounding_mode=None).cpu(), quotient.cpu())
    assert torch.equal((card / divisor).cpu(), quotient.cpu())
    assert torch.equal(card.clone().div_(divisor, rounding_mode=None).cpu(), quotient.cpu())
    assert torch.div(card.int(), 3, rounding_mode=None).dtype == torch.float32
    assert torch.spyre.fallbacks() == {}
