"""NaN in float32 comes out of extremes as torch has it, though the card's prefer numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

NAN, INF = math.nan, math.inf
X = torch.tensor(
    [
        [1.0, NAN, -3.0, 2.0, INF],
        [NAN, NAN, -1.0, NAN, -INF],
        [0.0, -0.0, 1.0, -1.0, 5.0],
    ]
)
Y = torch.tensor([0.0, NAN, 1.0, NAN, 2.0])

UNARY = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "hardtanh": functional.hardtanh,
    "hardsigmoid": functional.hardsigmoid,
    "leaky_relu": functional.leaky_relu,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp_min(0),
    "clamp_max": lambda x: x.clamp_max(0),
    "max": torch.max,
    "min": torch.min,
    "infinity norm": lambda x: torch.linalg.vector_norm(x, INF, dim=1),
    "smallest norm": lambda x: torch.linalg.vector_norm(x, -INF, dim=0),
}
OVER_A_DIM = {
    "amax": torch.amax,
    "amin": torch.amin,
    "max": torch.max,
    "min": torch.min,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
}
BINARY = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp": lambda x, y: torch.clamp(x, max=y),
}


def same(found, wanted):
    found, wanted = (v if isinstance(v, tuple) else (v,) for v in (found, wanted))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.cpu(), other, equal_nan=True)


@pytest.mark.parametrize("function", UNARY.values(), ids=UNARY)
def test_elementwise_and_over_everything(function):
    same(function(X.to("spyre")), function(X))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("function", OVER_A_DIM.values(), ids=OVER_A_DIM)
def test_over_a_dim(function, dim):
    same(function(X.to("spyre"), dim), function(X, dim))


@pytest.mark.parametrize("function", BINARY.values(), ids=BINARY)
def test_binary(function):
    same(function(X.to("spyre"), Y.to("spyre")), function(X, Y))
    same(function(Y.to("spyre"), X.to("spyre")), function(Y, X))


def test_positions_of_sorted_elements_are_those_of_elements():
    """NaN counts as infinite there."""
    values, places = (v.cpu() for v in X.to("spyre").sort(dim=1))
    assert torch.equal(places.sort(dim=1).values, torch.arange(5).expand(3, 5))
    assert torch.equal(values, X.nan_to_num(nan=INF, posinf=INF, neginf=-INF).sort(dim=1).values)
