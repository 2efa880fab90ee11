"""Losses, dropout, native attention, sine and its kin: on the cores, as the CPU computes them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.torch_backend.eager.agreement import PLAIN_FLOATS, agrees, numbers


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("sizes", [(8, 70), (2, 5, 3, 4), (5,)], ids=str)
def test_negative_log_likelihood(sizes, reduction):
    def loss(x, target, weight):
        x = x.detach().clone().requires_grad_()
        options = {"reduction": reduction, "ignore_index": 1}
        found = F.nll_loss(x, target, weight, **options) + F.nll_loss(x, target, **options)
        (grad,) = torch.autograd.grad(found.sum(), x)
        return found.detach(), grad

    x = numbers(*sizes, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    classes = sizes[min(len(sizes) - 1, 1)]
    target = torch.randint(classes, sizes[:1] * (len(sizes) > 1) + sizes[2:], generator=generator)
    target = torch.where(target == 1, 0, target) if target.dim() == 0 else target
    agrees(loss, x, target, numbers(classes, dtype=torch.float32, seed=1).abs() + 1, exact=False)


def test_dropout_draws_the_cpus_numbers():
    def drop(x):
        torch.manual_seed(3)
        x = x.detach().clone().requires_grad_()
        found = F.dropout(x, 0.5)
        (grad,) = torch.autograd.grad(found.sum(), x)
        return found.detach(), grad

    agrees(drop, numbers(7, 65))
    agrees(lambda x: F.dropout(x, 0.5, training=False), numbers(7, 65))
    agrees(lambda x: F.dropout(x, 1.0), numbers(7, 65))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("masks", [(), ("rows",), ("padding",), ("rows", "padding")], ids=str)
def test_encoder_layers_without_gradients(norm_first, masks):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        64, 4, 128, activation="gelu", batch_first=True, norm_first=norm_first
    ).eval()
    rows = torch.ones(9, 9, dtype=torch.bool).triu(1) if "rows" in masks else None
    padding = (torch.arange(9) > torch.tensor([[6], [8]])) if "padding" in masks else None

    def run(x):
        given = (None if m is None else m.to(x.device) for m in (rows, padding))
        with torch.no_grad():
            return layer.to(x.device)(x, *given)

    agrees(run, torch.randn(2, 9, 64), exact=False)


@pytest.mark.parametrize("average", [True, False])
def test_attention_without_gradients(average):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(64, 4, batch_first=True).eval()

    def run(x):
        with torch.no_grad():
            module = attention.to(x.device)
            found = module(x, x, x, average_attn_weights=average)
            return *found, module(x, x, x, need_weights=False)[0]

    agrees(run, torch.randn(2, 9, 64), exact=False)


def test_attention_to_padding_only_is_nan():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(64, 4, batch_first=True).eval()
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    padding = torch.arange(9) > torch.tensor([[-1], [6]])

    def run(x):
        given, module = padding.to(x.device), attention.to(x.device)
        with torch.no_grad():
            found = [module(x, x, x, given, need_weights=needed)[0] for needed in (True, False)]
            return [*found, layer.to(x.device)(x, src_key_padding_mask=given)]

    x = torch.randn(2, 9, 64)
    for found, expected in zip(run(x.to("spyre")), run(x), strict=True):
        assert expected[0].isnan().all()
        torch.testing.assert_close(found.cpu(), expected, equal_nan=True, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", PLAIN_FLOATS)
@pytest.mark.parametrize("function", [torch.sin, torch.cos, torch.erf])
def test_sine_and_its_kin(function, dtype):
    wide = torch.linspace(-12, 12, 4001)
    x = torch.cat([wide, wide * 4000, wide * 1e-4, torch.tensor([0.0, float("nan")])]).to(dtype)
    if dtype is torch.float16:
        x = (x[:-1] / 8).to("spyre").cpu()  # numbers that the card has
    found, expected = function(x.to("spyre")).cpu(), function(x.double())
    if dtype is torch.float32:
        assert found[-1].isnan()
        found, expected = found[:-1], expected[:-1]
    unit, least = (2.0**-22, 2e-7) if dtype is torch.float32 else (2.0**-9, 1e-4)
    assert ((found.double() - expected).abs() <= unit * expected.abs().clamp(min=least)).all()


def test_counts():
    x = torch.tensor([3, 1, 3, 0, 7])
    agrees(torch.bincount, x)
    agrees(lambda x: torch.bincount(x, minlength=12), x)


@pytest.mark.parametrize("dims", [1, 2])
def test_gradients_of_layer_norm(dims):
    def norm(x, weight, bias):
        given = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
        found = F.layer_norm(given[0], weight.shape, given[1], given[2])
        plain = F.layer_norm(given[0], weight.shape)
        return torch.autograd.grad((found * found + plain * plain * plain).sum(), given)

    x = torch.randn(3, 5, 70, generator=torch.Generator().manual_seed(0))
    rows = [numbers(*x.shape[-dims:], dtype=torch.float32, seed=seed) for seed in (1, 2)]
    agrees(norm, x, *rows, exact=False)


def test_softplus_with_beta_0_is_infinite():
    x = torch.tensor([-1.0, 0.0, 2.0])
    for dtype in (torch.float16, torch.float32):
        want = F.softplus(x.to(dtype), beta=0.0)
        assert torch.equal(F.softplus(x.to(dtype).to("spyre"), beta=0.0).cpu(), want)


def test_gradient_of_softplus():
    def run(x):
        x = x.detach().clone().requires_grad_()
        return torch.autograd.grad(F.softplus(x, beta=2.0, threshold=3.0).sum(), x)

    agrees(run, numbers(7, 65, dtype=torch.float32), exact=False)


def test_infinities_become_the_least_integer():
    x = torch.tensor([1.5, -2.5, float("inf"), -float("inf")]).to("spyre")
    for convert in (torch.Tensor.long, torch.compile(torch.Tensor.long)):
        assert convert(x).tolist() == [1, -2, -(2**31), -(2**31)]


@pytest.mark.parametrize("weight", [None, (1.0, 2.0, 0.0), (0.0, 0.0, 0.0)], ids=str)
@pytest.mark.parametrize("ignored", ["all", "one"])
@pytest.mark.parametrize("sizes", [(4, 3), (2, 3, 5)], ids=str)
def test_means_of_ignored_targets(sizes, ignored, weight):
    def loss(x, target, weight):
        x = x.detach().clone().requires_grad_()
        found = F.cross_entropy(x, target, weight, ignore_index=2)
        (grad,) = torch.autograd.grad(found, x)
        return found.detach(), grad

    target = torch.full(sizes[:1] + sizes[2:], 2)
    target.view(-1)[0] = 2 if ignored == "all" else 1
    given = numbers(*sizes, dtype=torch.float32), target
    factors = None if weight is None else torch.tensor(weight)
    moved = [t if t is None else t.to("spyre") for t in (*given, factors)]
    found = loss(*moved)
    for one, other in zip(found, loss(*given, factors), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-6, equal_nan=True)
