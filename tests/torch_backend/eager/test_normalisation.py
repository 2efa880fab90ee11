"""Rows of equal elements are normalised to zero, however the sum of their mean is rounded."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

NORMS = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x.unsqueeze(0), len(x)),
    "batch_norm": lambda x: F.batch_norm(x.mT.contiguous(), None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x.unsqueeze(0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("count", [3, 63, 100])
@pytest.mark.parametrize("name", NORMS)
def test_equal_elements_become_zero(name, count, dtype):
    torch.manual_seed(0)
    rows = (torch.randn(16, 1) * 10).expand(16, count).contiguous().to(dtype)
    assert float(NORMS[name](rows.to("spyre")).cpu().abs().max()) < 1e-9


@pytest.mark.parametrize("name", ["layer_norm", "batch_norm"])
def test_a_large_mean_costs_no_accuracy(name):
    torch.manual_seed(0)
    rows = torch.randn(16, 100) * 3 + 50
    exact = NORMS[name](rows.double())
    found = NORMS[name](rows.to("spyre")).cpu()
    assert float((found - exact).abs().max()) < 2e-6


def test_gradients_of_equal_elements():
    rows = torch.full((4, 63), 0.1, requires_grad=True)
    on_card = rows.detach().to("spyre").requires_grad_()
    factor = torch.arange(63.0)
    (F.layer_norm(rows, (63,)) * factor).sum().backward()
    (F.layer_norm(on_card, (63,)) * factor.to("spyre")).sum().backward()
    torch.testing.assert_close(on_card.grad.cpu(), rows.grad, rtol=1e-5, atol=1e-2)


FLOATS = (torch.float32, torch.float16)
GIVEN = (*FLOATS, None)


def results_of(operation, dtypes, device):
    """Return the dtypes of an operation's results, or the words of its error."""
    try:
        results = operation(lambda k, *size: of_ones(dtypes[k], *size, device=device))
    except RuntimeError as error:
        return str(error)
    return [result.dtype for result in results]


def of_ones(dtype, *size, device):
    return None if dtype is None else torch.ones(size, dtype=dtype, device=device)


aten = torch.ops.aten
MIXED = {
    "native_batch_norm": lambda t: aten.native_batch_norm(
        t(0, 3, 2, 4), t(1, 2), t(2, 2), t(3, 2), t(3, 2), True, 0.1, 0.5
    ),
    "native_batch_norm in evaluation": lambda t: aten.native_batch_norm(
        t(0, 3, 2, 4), t(1, 2), t(2, 2), t(3 if t(3, 2) is not None else 0, 2), t(0, 2), False, 0, 1
    ),
    "native_layer_norm": lambda t: aten.native_layer_norm(
        t(0, 3, 2, 4), [4], t(1, 4), t(2, 4), 1e-5
    ),
    "native_group_norm": lambda t: aten.native_group_norm(
        t(0, 3, 2, 4), t(1, 2), t(2, 2), 3, 2, 4, 1, 1e-5
    ),
    "native_batch_norm_backward": lambda t: aten.native_batch_norm_backward(
        t(0, 3, 2, 4), t(0, 3, 2, 4), t(1, 2), None, None, t(2, 2), t(2, 2), True, 0.5, [True] * 3
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_dtypes_are_taken_and_refused_as_on_the_cpu(name):
    for dtypes in itertools.product(FLOATS, GIVEN, GIVEN, GIVEN):
        if "backward" in name and dtypes[2] is None:  # the CPU's kernel reads statistics
            continue
        expected, found = (results_of(MIXED[name], dtypes, d) for d in ("cpu", "spyre"))
        assert found == expected, dtypes


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "sizes", [(2, 16), (2, 4, 9), (3, 6, 5, 7), (1, 64, 8, 8), (2, 12, 3, 4, 5)]
)
def test_group_norm_and_its_gradients_run_on_the_card(sizes, dtype, monkeypatch):
    monkeypatch.setenv("SPYRE_FALLBACK", "error")
    torch.manual_seed(0)
    operands = [torch.randn(s).to(dtype) for s in (sizes, sizes[1], sizes[1])]
    factor, results = torch.randn(sizes).to(dtype), []
    for device in ("cpu", "spyre"):
        x, weight, bias = (t.to(device).detach().requires_grad_() for t in operands)
        y = F.group_norm(x, 2, weight, bias)
        (y * factor.to(device)).sum().backward()
        results.append([t.detach().cpu() for t in (y, x.grad, weight.grad, bias.grad)])
    rtol = 1e-5 if dtype == torch.float32 else 1e-2
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=rtol, atol=4 * rtol)


def padded(operands, device):
    """Return x, weight, bias and statistics on a device; None for the missing ones."""
    x, *given = (t.to(device) for t in operands)
    return [x, *(given[2:] or [None] * 2), *given[:2]]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("sizes", [(0,), (0, 3), (2, 3, 0)])
def test_batch_norm_of_nothing(sizes, training):
    """torch's database has inputs of one dim, without elements."""
    count = (*sizes, sizes[0])[1]
    operands = torch.ones(sizes), *(torch.ones(count) for _ in range(4 if len(sizes) > 1 else 2))
    expected, found = (
        torch.batch_norm(*padded(operands, device), training, 0.1, 1e-5, False)
        for device in ("cpu", "spyre")
    )
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
