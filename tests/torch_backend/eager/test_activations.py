"""Formulas: activations and their gradients, addcmul, lerp."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.torch_backend.eager.agreement import PLAIN_FLOATS, agrees, numbers

SHAPES = [(4, 65), (), (2, 3, 5), (1,), (100,)]
A = torch.ops.aten
CHOSEN = {
    "threshold_backward": lambda a, b, c: A.threshold_backward(a, b, 0.25),
    "hardtanh_backward": lambda a, b, c: A.hardtanh_backward(a, b, -1, 1.5),
    "threshold": lambda a, b, c: F.threshold(a, 0.25, 0.75),
    "threshold in place": lambda a, b, c: F.threshold(a.clone(), -1, 2, inplace=True),
    "relu6": lambda a, b, c: F.relu6(a * 8),
    "hardtanh": lambda a, b, c: F.hardtanh(a),
    "hardtanh in place": lambda a, b, c: F.hardtanh(a.clone(), -0.5, 0.75, inplace=True),
    "square": lambda a, b, c: a.square(),
    "rsub": lambda a, b, c: 1 - a,
}
COMPUTED = {
    "sigmoid_backward": lambda a, b, c: A.sigmoid_backward(a, b),
    "tanh_backward": lambda a, b, c: A.tanh_backward(a, b),
    "silu_backward": lambda a, b, c: A.silu_backward(a, b),
    "gelu_backward": lambda a, b, c: A.gelu_backward(a, b),
    "gelu_backward tanh": lambda a, b, c: A.gelu_backward(a, b, approximate="tanh"),
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=0.5),
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c.abs() + 1, value=2),
    "addcmul in place": lambda a, b, c: a.clone().addcmul_(b, c),
    "lerp near": lambda a, b, c: torch.lerp(a, b, 0.3),
    "lerp far": lambda a, b, c: a.clone().lerp_(b, 0.7),
    "lerp by tensor": lambda a, b, c: torch.lerp(a, b, c),
    "hardswish": lambda a, b, c: F.hardswish(a),
    "hardsigmoid": lambda a, b, c: F.hardsigmoid(a),
    "elu": lambda a, b, c: F.elu(a),
    "selu": lambda a, b, c: F.selu(a),
    "celu": lambda a, b, c: F.celu(a, 0.5),
}


def three(sizes, dtype):
    return [numbers(*sizes, dtype=dtype, seed=k) for k in range(3)]


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("dtype", PLAIN_FLOATS)
@pytest.mark.parametrize("sizes", SHAPES)
def test_choices_are_exact(name, dtype, sizes):
    agrees(CHOSEN[name], *three(sizes, dtype))


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("dtype", PLAIN_FLOATS)
@pytest.mark.parametrize("sizes", SHAPES)
def test_formulas(name, dtype, sizes):
    agrees(COMPUTED[name], *three(sizes, dtype), exact=False)


def test_broadcasts_and_views():
    a, b = numbers(4, 65), numbers(65, 4)
    agrees(lambda a, b: torch.addcmul(a, b.t(), a[:1]), a, b, exact=False)
    agrees(lambda a, b: torch.lerp(a[:, 3:9], b[3:9].t(), 0.25), a, b, exact=False)


def test_gradients():
    def gradient(x):
        x = x.clone().requires_grad_()
        for function in (F.gelu, F.silu, torch.tanh, torch.sigmoid, F.relu, F.hardtanh):
            function(x).sum().backward()
        return x.grad

    agrees(gradient, numbers(4, 65, dtype=torch.float32), exact=False)
