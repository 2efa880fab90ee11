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


MIXED = torch.tensor(
    [
        [INF, NAN, INF, NAN, 1.0, -INF],
        [NAN, NAN, NAN, NAN, NAN, NAN],
        [-INF, NAN, -INF, NAN, -INF, -INF],
        [INF, 3.4028234663852886e38, NAN, INF, -INF, NAN],
        [0.0, 2.0, -1.0, -2.0, 5.0, 1.5],
    ]
)
"""Infinities and NaNs, which must be distinguished in one tensor."""


@pytest.mark.parametrize("falling", [True, False])
@pytest.mark.parametrize("dim", [0, 1])
def test_nan_is_larger_than_infinity(dim, falling):
    def ordered(x):
        return x.sort(dim=dim, descending=falling, stable=True)

    for found, wanted in zip(ordered(MIXED.to("spyre")), ordered(MIXED), strict=True):
        same(found, wanted)
    for count in (1, 2, 4):
        found, places = MIXED.to("spyre").topk(count, dim, largest=falling)
        same(found, MIXED.topk(count, dim, largest=falling).values)
        same(places, ordered(MIXED).indices.narrow(dim, 0, count))


@pytest.mark.parametrize("function", [torch.argmax, torch.argmin])
def test_the_first_nan_is_chosen_before_an_infinity(function):
    same(function(MIXED.to("spyre"), 1), function(MIXED, 1))
    same(function(MIXED.to("spyre")), function(MIXED))
