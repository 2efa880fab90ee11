"""Tests of one's own on the simulated card."""

import pytest
import torch


@pytest.mark.spyre(fallbacks=False)
@pytest.mark.parametrize("compiled", [False, True])
def test_softmax_of_a_product(compiled):
    def function(x, w):
        return torch.softmax(x @ w, -1)

    torch.manual_seed(0)
    x, w = (torch.randn(64, 64) / 8 for _ in range(2))
    run = torch.compile(function) if compiled else function
    y = run(x.half().to("spyre"), w.half().to("spyre")).cpu().float()
    torch.testing.assert_close(y, function(x, w), rtol=1e-2, atol=1e-3)
