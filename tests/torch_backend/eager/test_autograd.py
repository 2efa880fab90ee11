"""Autograd on the card: gradients, hooks, functions, checkpoints."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint


def leaf(host, device):
    return host.clone().to(device).requires_grad_()


def test_gradients_through_mm(host):
    torch.manual_seed(0)
    weight = torch.randn(6, 3)
    results = []
    for device in ("cpu", "spyre"):
        x, w = leaf(host, device), leaf(weight, device)
        (x @ w).relu().sum().backward()
        results.append((x.grad, w.grad))
    for expected, found in zip(*results, strict=True):
        assert found.device.type == "spyre"
        assert torch.allclose(found.cpu(), expected)


def test_gradients_accumulate(host):
    x = leaf(host, "spyre")
    for _ in range(2):
        (x * 3).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full_like(host, 6))


def test_gradient_across_devices(host):
    x = host.clone().requires_grad_()
    (x.to("spyre") * 2).cpu().sum().backward()
    assert torch.equal(x.grad, torch.full_like(host, 2))


def test_grad_function_and_double_backward(host):
    x = leaf(host, "spyre")
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(second.cpu(), 6 * host)


def test_backward_runs_where_it_is_called(host):
    seen = []
    x = leaf(host, "spyre")
    y = x * 2
    y.register_hook(lambda gradient: seen.append(threading.get_ident()))
    with torch.spyre.Stream() as s:
        y.register_hook(lambda gradient: seen.append(torch.spyre.current_stream() == s))
        y.sum().backward()
    assert seen == [threading.get_ident(), True]


def test_backward_in_threads(host):
    found = []

    def work(k):
        x = leaf(host, "spyre")
        (x * k).sum().backward()
        found.append((k, x.grad.cpu()[0, 0].item()))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(k, k) for k in range(4)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(host, reentrant):
    x = leaf(host, "spyre")
    y = checkpoint(lambda t: torch.nn.functional.dropout(t * t, 0.5), x, use_reentrant=reentrant)
    y.sum().backward()
    kept = (y != 0).cpu()
    assert torch.allclose(x.grad.cpu(), torch.where(kept, 4 * host, 0.0))


def test_function_transforms(card, host):
    gradient = torch.func.grad(lambda t: (t**2).sum())(card)
    assert torch.allclose(gradient.cpu(), 2 * host)
    assert torch.allclose(torch.func.vmap(lambda row: row.sum())(card).cpu(), host.sum(1))


def test_detach_shares_memory(host):
    x = leaf(host, "spyre")
    assert x.detach().data_ptr() == x.data_ptr()
    x.detach_()
    assert not x.requires_grad


def test_no_grad_and_inference_mode(card):
    x = card.clone().requires_grad_()
    with torch.no_grad():
        assert not (x + 1).requires_grad
    with torch.inference_mode():
        y = x * 2
        y.add_(1)
    assert y.is_inference()
    assert y.cpu().sum() == 2 * x.cpu().sum() + 24


def test_in_place_on_a_leaf_is_refused(host):
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        leaf(host, "spyre").add_(1)


def test_version_counter_sees_writes(host):
    x = leaf(host, "spyre")
    y = x * 1
    z = (y * y).sum()
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_gradient_of_a_custom_function(host):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    x = leaf(host, "spyre")
    Double.apply(x).sum().backward()
    assert x.grad.cpu().unique().tolist() == [2]


def test_backward_on_the_cpu_is_torchs(host):
    x = host.clone().requires_grad_()
    (x * 2).sum().backward()
    assert torch.equal(x.grad, torch.full_like(host, 2))


def test_gradcheck_in_float32():
    x = torch.rand(3, 3).add_(0.5).to("spyre").requires_grad_()
    (x.log() * x).sum().backward()
    step = 1e-2
    value = x.detach().cpu().double()
    expected = ((value + step).log() * (value + step) - (value - step).log() * (value - step)) / (
        2 * step
    )
    assert torch.allclose(x.grad.cpu().double(), expected, atol=1e-3)


def test_gradients_that_are_zero_everywhere(host):
    x = leaf(host, "spyre")
    torch.sgn(x).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.zeros_like(host))
    assert torch._efficientzerotensor(3).to("spyre").cpu().tolist() == [0, 0, 0]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_group_norm_in_every_memory_format(memory_format):
    results = []
    for device in ("cpu", "spyre"):
        x = torch.arange(64.0).reshape(2, 4, 2, 4).to(memory_format=memory_format)
        x = x.to(device).requires_grad_()
        y = torch.nn.functional.group_norm(x, 2)
        (y * y * y).sum().backward()
        results.append((y, x.grad))
    for expected, found in zip(*results, strict=True):
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
