"""Running sums."""

from __future__ import annotations

import pytest
import torch

from tests.torch_backend.eager.agreement import MOVED, agrees, numbers

SHAPES = [
    ((5,), 0),
    ((4, 9), 1),
    ((4, 9), 0),
    ((2, 65, 40), 1),
    ((3, 100, 70), 2),
    ((1, 1), 0),
    ((), 0),
]


@pytest.mark.parametrize("dtype", MOVED)
@pytest.mark.parametrize(("sizes", "dim"), SHAPES)
def test_cumsum(dtype, sizes, dim):
    agrees(lambda x: x.cumsum(dim), numbers(*sizes, dtype=dtype), exact=dtype != torch.bfloat16)


def test_dtype_and_views():
    agrees(lambda x: x.t().cumsum(1), numbers(70, 5))
    agrees(lambda x: x[:, 3:9].cumsum(1), numbers(5, 70))
    agrees(lambda x: x.cumsum(0, dtype=torch.float32), numbers(5, 70, dtype=torch.int64))
    agrees(lambda x: x.clone().cumsum_(0), numbers(5, 70))


def test_infinity_counts_from_its_place_on():
    x = torch.tensor([1.0, 2.0, float("inf"), 4.0])
    agrees(lambda x: x.cumsum(0), x)
    agrees(lambda x: x.cumsum(0), x.half())


def test_integers_wrap_as_words():
    agrees(
        lambda x: x.cumsum(0, dtype=torch.int32), torch.tensor([2**31 - 1, 1, 5], dtype=torch.int32)
    )
