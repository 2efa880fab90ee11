"""Truth values: logical and bitwise operations of bools, questions about numbers."""

from __future__ import annotations

import pytest
import torch

from tests.torch_backend.eager.agreement import MOVED, PLAIN_FLOATS, agrees, numbers

SHAPES = [(4, 65), (), (2, 3, 5), (1,), (100,)]
PAIRS = ["logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"]
QUESTIONS = ["isfinite", "isinf", "isposinf", "isneginf", "isnan", "sign", "sgn", "logical_not"]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("sizes", SHAPES)
def test_pairs_of_bools(name, sizes):
    a, b = numbers(*sizes, dtype=torch.bool), numbers(*sizes, dtype=torch.bool, seed=1)
    agrees(getattr(torch, name), a, b)
    agrees(lambda a: getattr(torch, name)(a, a.new_ones(())), a)


@pytest.mark.parametrize("name", PAIRS[:3])
@pytest.mark.parametrize("dtype", MOVED)
def test_pairs_of_numbers(name, dtype):
    agrees(getattr(torch, name), numbers(4, 65, dtype=dtype), numbers(65, dtype=dtype, seed=1))
    agrees(getattr(torch, name), numbers(4, 65, dtype=dtype), numbers(65, dtype=torch.bool))


def test_operators():
    a = numbers(4, 65, dtype=torch.int64)
    agrees(lambda a: ~(a == 2) & (a > 0) | (a < -3), a)
    agrees(lambda a: (a > 0) & True, a)
    agrees(lambda a: (a > 0).__iand__(a < 5), a)
    agrees(lambda a: (a.t() > 0) ^ (a[:1].t() > 1), a)


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("dtype", PLAIN_FLOATS)
def test_questions(name, dtype):
    x = numbers(4, 65, dtype=dtype)
    x[0, 0], x[3, 64] = float("inf"), float("-inf")
    agrees(getattr(torch, name), x)


def test_nan_in_float32():
    x = torch.tensor([float("nan"), 1.0, float("inf"), 0.0])
    for name in QUESTIONS:
        agrees(getattr(torch, name), x)


def test_bitwise_of_integers_falls_back():
    a = numbers(4, 65, dtype=torch.int64)
    agrees(lambda a: a & 3, a, fallbacks=True)
    agrees(lambda a: ~a, a, fallbacks=True)
