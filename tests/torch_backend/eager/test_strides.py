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


def _parameter(x: torch.Tensor, *sizes: int) -> torch.Tensor:
    """Return a weight that both devices have, of small positive numbers."""
    count = torch.Size(sizes).numel()
    weight = torch.arange(1.0, count + 1).remainder(7).reshape(sizes) / 8
    return weight.to(x.device).requires_grad_()


def _normalised(x: torch.Tensor, weight: torch.Tensor, training: bool) -> torch.Tensor:
    statistics = weight.detach().clone(), weight.detach() + 1
    return F.batch_norm(x, *statistics, weight, weight, training)


IMAGES: dict[int, dict[str, tuple[tuple[int, ...], Callable[..., torch.Tensor]]]] = {
    4: {
        "conv": ((6, 4, 3, 3), lambda x, w: F.conv2d(x, w, padding=1)),
        "conv of a place": ((6, 4, 1, 1), F.conv2d),
        "conv of channels": ((4, 1, 3, 3), lambda x, w: F.conv2d(x, w, groups=4)),
        "conv of groups": ((4, 2, 3, 3), lambda x, w: F.conv2d(x, w, groups=2)),
        "conv_transpose": ((4, 6, 3, 3), lambda x, w: F.conv_transpose2d(x, w, stride=2)),
        "batch_norm": ((4,), partial(_normalised, training=True)),
        "batch_norm of given statistics": ((4,), partial(_normalised, training=False)),
        "max_pool": ((1,), lambda x, w: F.max_pool2d(x * w, 2)),
        "avg_pool": ((1,), lambda x, w: F.avg_pool2d(x * w, 2)),
        "adaptive_avg_pool": ((1,), lambda x, w: F.adaptive_avg_pool2d(x * w, (2, 3))),
        "interpolate": ((1,), lambda x, w: F.interpolate(x * w, scale_factor=2)),
        "bilinear": ((1,), lambda x, w: F.interpolate(x * w, scale_factor=2, mode="bilinear")),
        "pad": ((1,), lambda x, w: F.pad(x * w, (1, 2, 0, 1))),
        "reflected": ((1,), lambda x, w: F.pad(x * w, (1, 2, 0, 1), "reflect")),
        "pixel_shuffle": ((1,), lambda x, w: F.pixel_shuffle(torch.cat([x, x * w], 1), 2)),
        "pixel_unshuffle": ((1,), lambda x, w: F.pixel_unshuffle(x * w, 2)),
        "dropout": ((1,), lambda x, w: F.dropout(x * w)),
        "glu": ((1,), lambda x, w: F.glu(x * w, 1)),
        "prelu": ((4,), F.prelu),
        "masked_scatter": ((2, 4, 4, 6), lambda x, w: x.masked_scatter(x > 9, w)),
        "cat": ((2, 4, 4, 6), lambda x, w: torch.cat([x, w], 1)),
        "gate": ((1,), lambda x, w: x * (x * w).mean((2, 3), keepdim=True).sigmoid()),
    },
    5: {
        "conv": ((6, 4, 3, 3, 3), lambda x, w: F.conv3d(x, w, padding=1)),
        "conv_transpose": ((4, 6, 3, 3, 3), F.conv_transpose3d),
        "batch_norm": ((4,), partial(_normalised, training=True)),
        "max_pool": ((1,), lambda x, w: F.max_pool3d(x * w, 2)),
        "avg_pool": ((1,), lambda x, w: F.avg_pool3d(x * w, 2)),
        "pad": ((1,), lambda x, w: F.pad(x * w, (1, 1, 1, 1))),
    },
}
"""By rank, functions of an image and a weight of the given sizes."""


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


@pytest.mark.parametrize("rank", IMAGES)
@pytest.mark.parametrize("last", ["image", "weight", "neither"])
def test_images_have_torchs_memory_format(rank, last):
    """The result, and the gradients of image and weight."""
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}[rank]
    image = torch.randint(1, 256, (2, 4, 4, 6, 5)[:rank]).float() / 64 + 8
    differ = {}
    for name, (sizes, function) in IMAGES[rank].items():
        rows, values = [], []
        for device in ("cpu", "spyre"):
            x, w = image.to(device), _parameter(image.to(device), *sizes)
            if last == "image":
                x = x.to(memory_format=memory_format)
            if last == "weight" and w.dim() == rank:
                w = w.to(memory_format=memory_format)
            y = function(x.requires_grad_(), w)
            grads = torch.autograd.grad(y, (x, w), torch.ones_like(y), allow_unused=True)
            found = [t for t in (y, *grads) if t is not None]
            rows.append([strides(t) for t in found])
            values.append([t.detach().cpu() for t in found])
        if rows[0] != rows[1]:
            differ[name] = rows
        if name != "dropout":
            torch.testing.assert_close(*values, rtol=1e-3, atol=1e-3)
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
