"""Modules on batches without elements: results, gradients and buffers are those of the CPU."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

NORMS = [
    *(nn.BatchNorm1d(4, affine=affine, track_running_stats=affine) for affine in (True, False)),
    nn.BatchNorm1d(4).eval(),
    nn.GroupNorm(2, 4),
    nn.LayerNorm(6),
    nn.RMSNorm(6),
]
MODULES = [
    *((module, (0, 4, 6)) for module in NORMS),
    (nn.BatchNorm1d(4), (0, 4)),
    (nn.BatchNorm2d(4), (0, 4, 3, 3)),
    (nn.BatchNorm2d(4), (2, 4, 0, 3)),
    (nn.BatchNorm3d(4), (0, 4, 3, 3, 3)),
    (nn.Conv1d(4, 6, 3), (0, 4, 6)),
    (nn.ConvTranspose2d(4, 6, 3), (0, 4, 6, 6)),
    *(
        (getattr(nn, name)(2), (0, 4, 6))
        for name in ("MaxPool1d", "AvgPool1d", "AdaptiveAvgPool1d")
    ),
    *((getattr(nn, name)(), (0, 4)) for name in ("GELU", "PReLU", "SELU", "Softplus", "GLU")),
    *((nn.Softmax(dim), (0, 4)) for dim in (0, 1)),
    *((nn.Linear(4, 5), sizes) for sizes in ((0, 4), (2, 0, 4))),
    *((getattr(nn, name)(4, 6), (3, 0, 4)) for name in ("RNN", "LSTM", "GRU")),
    (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), (0, 3, 4)),
]


def _trained(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    """The result, the gradients and the buffers, on the CPU."""
    module, x = deepcopy(module).to(x.device), x.detach().requires_grad_()
    found = module(x)
    found = found[0] if isinstance(found, tuple) else found
    found.sum().backward()
    parameters = [p.grad for p in module.parameters()]
    return [
        t if t is None else t.detach().cpu()
        for t in (found, x.grad, *parameters, *module.buffers())
    ]


@pytest.mark.parametrize(("module", "sizes"), MODULES, ids=str)
def test_forward_and_backward(module, sizes):
    found, wanted = (
        _trained(module, torch.empty(sizes, device="spyre")),
        _trained(module, torch.empty(sizes)),
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert wanted[0].numel() == 0


def test_compiled_batch_norm():
    module = nn.BatchNorm2d(4)
    for sizes in ((0, 4, 3, 3), (2, 4, 3, 3)):
        x = torch.ones(sizes)
        found = torch.compile(deepcopy(module).to("spyre"))(x.to("spyre"))
        torch.testing.assert_close(found.cpu(), deepcopy(module)(x))
