"""Networks of torch.nn's own larger modules on the device, in float32 against the CPU.

These take special paths for some devices: fused layers, nested tensors, fused cells, and statistics
that an operation writes although its schema does not declare it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.torch_backend.models.comparison import FLOAT32, assert_logits_close

BATCH, LENGTH, WIDTH = 2, 12, 32
ROUNDINGS = 4 * FLOAT32
"""Recurrent and convolutional sums are longer than the bound of a model's logits allows for."""


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, groups=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


@pytest.mark.parametrize("training", [True, False])
def test_encoder(training: bool, device: str):
    reference = seeded(encoder).train(training)
    for module in reference.modules():
        if isinstance(module, (nn.Dropout, nn.MultiheadAttention)):
            module.p = module.dropout = 0.0
    model = copy.deepcopy(reference).to(device)
    x = numbers(BATCH, LENGTH, WIDTH)
    with torch.set_grad_enabled(training):
        assert_logits_close(model(x.to(device)), reference(x), ROUNDINGS)


def test_encoder_with_padding(device: str):
    """Rows shorter than the batch; torch makes nested tensors of them where it can."""
    reference = seeded(encoder).eval()
    x = numbers(BATCH, LENGTH, WIDTH)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1, 7:] = True
    with torch.no_grad():
        expected = reference(x, src_key_padding_mask=padding)
        model = copy.deepcopy(reference).to(device)
        found = model(x.to(device), src_key_padding_mask=padding.to(device))
    assert_logits_close(found.cpu()[~padding], expected[~padding], ROUNDINGS)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent(cell: Callable[..., nn.Module], device: str):
    reference = seeded(lambda: cell(WIDTH, WIDTH, num_layers=2, batch_first=True))
    model = copy.deepcopy(reference).to(device)
    x = numbers(BATCH, LENGTH, WIDTH)
    found, expected = model(x.to(device))[0], reference(x)[0]
    assert_logits_close(found, expected, ROUNDINGS)
    found.sum().backward()
    expected.sum().backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert_logits_close(ours.grad, theirs.grad, ROUNDINGS)


def test_convolutional(device: str):
    reference = seeded(convolutional)
    model = copy.deepcopy(reference).to(device)
    x = numbers(BATCH, 3, 16, 16)
    found, expected = model(x.to(device)), reference(x)
    assert_logits_close(found, expected, ROUNDINGS)
    found.square().sum().backward()
    expected.square().sum().backward()
    largest = max(p.grad.abs().max() for p in reference.parameters())
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert (ours.grad.cpu() - theirs.grad).abs().max() < 1e-5 * largest


def test_batch_norm_keeps_statistics(device: str):
    reference = seeded(lambda: nn.BatchNorm1d(WIDTH))
    model = copy.deepcopy(reference).to(device)
    for seed in range(3):
        x = numbers(BATCH, WIDTH, LENGTH, seed=seed) + 1
        assert_logits_close(model(x.to(device)), reference(x), ROUNDINGS)
    assert int(model.num_batches_tracked) == 3
    assert_logits_close(model.running_mean, reference.running_mean, ROUNDINGS)
    assert_logits_close(model.running_var, reference.running_var, ROUNDINGS)
    x = numbers(BATCH, WIDTH, LENGTH)
    assert_logits_close(model.eval()(x.to(device)), reference.eval()(x), ROUNDINGS)
