"""Random operations in compiled functions: they run eagerly, in their order."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F


def twice(x):
    return F.dropout(F.dropout(x, 0.5) * 2, 0.25)


def two_draws(x):
    shape = {"device": x.device, "dtype": x.dtype}
    return torch.rand(64, 64, **shape) + torch.rand(64, 64, **shape) * x


@pytest.mark.parametrize("function", [twice, two_draws])
def test_compiled_draws_are_those_of_eager_mode(function):
    torch._dynamo.reset()
    x = torch.randn(64, 64).half().to("spyre")
    torch.manual_seed(7)
    expected = function(x)
    torch.manual_seed(7)
    assert torch.equal(torch.compile(function)(x).cpu(), expected.cpu())


def test_gradients_go_through_what_dropout_kept():
    torch._dynamo.reset()
    x = torch.ones(64, 64, dtype=torch.float16, device="spyre", requires_grad=True)
    found = torch.compile(twice)(x)
    found.sum().backward()
    assert torch.equal(x.grad.cpu() != 0, found.detach().cpu() != 0)
    assert 0.25 < (found == 0).float().mean().item() < 1
