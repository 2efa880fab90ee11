"""Arguments of compiled functions in other layouts than kernels are made for."""

from __future__ import annotations

import pytest
import torch


def other_layout():
    """Elements in row-major order on the host, sticks along the rows on the card."""
    layout = torch.spyre.SpyreTensorLayout.from_dim_order((64, 128), (128, 1), "float16", (1, 0))
    return torch.randn(64, 128).half().to("spyre", device_layout=layout)


def add_all(x):
    return x + 1


def write_all(x):
    x.copy_(x * 2)
    return x + 1


def write_some(x):
    x[8:16].copy_(torch.full((8, 128), 3.0, dtype=x.dtype, device=x.device))
    return x + 1


@pytest.mark.parametrize("function", [add_all, write_all, write_some])
@pytest.mark.parametrize("offset", [False, True])
def test_results_and_what_is_written(function, offset):
    torch._dynamo.reset()
    whole = torch.randn(65, 128).half().to("spyre")
    x = whole[1:] if offset else other_layout()
    host = x.cpu().clone()
    expected = function(host)
    found = torch.compile(function)(x)
    assert torch.allclose(found.cpu(), expected, rtol=2**-8, atol=2**-8)
    assert torch.allclose(x.cpu(), host, rtol=2**-8, atol=2**-8)
