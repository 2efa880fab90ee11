"""Models compiled: the bounds of eager mode hold, little leaves the card, gradients agree."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.torch_backend.inductor.compiled_code import collected

pytest.importorskip("transformers", reason="model tests need transformers")
from tests.torch_backend.models.comparison import (
    DL16,
    UNITS,
    assert_logits_close,
)
from tests.torch_backend.models.configurations import FAMILIES, LAYERS, Family

FALLBACKS_PER_BLOCK = 3
COMPILED = [f for f in FAMILIES if str(f) in ("llama", "gpt2", "bert", "vit")]
"""One family of each kind: compiling takes seconds, and the others differ in little."""


@pytest.mark.parametrize("family", COMPILED, ids=str)
@torch.no_grad()
def test_logits(family: Family):
    torch._dynamo.reset()
    torch.spyre.reset_fallbacks()
    inputs = family.inputs()
    expected = family.build("sdpa")(**inputs).logits
    model = family.build("sdpa").to("spyre", torch.float16)
    given = {
        k: v.to("spyre", torch.float16) if v.is_floating_point() else v.to("spyre")
        for k, v in inputs.items()
    }
    with collected() as kernels:
        found = torch.compile(model)(**given).logits
    assert kernels
    assert_logits_close(found, expected)
    assert sum(torch.spyre.fallbacks().values()) <= FALLBACKS_PER_BLOCK * LAYERS


@torch.no_grad()
def test_generation_with_a_cache_gives_the_tokens_of_eager_mode():
    torch._dynamo.reset()
    family = next(f for f in FAMILIES if str(f) == "gpt2")
    tokens = family.inputs()["input_ids"][:, :5]
    model = family.build("sdpa").to("spyre", torch.float16)
    options = {"max_new_tokens": 3, "do_sample": False}
    expected = model.generate(tokens.to("spyre"), **options).cpu()
    model.forward = torch.compile(model.forward)
    assert torch.equal(model.generate(tokens.to("spyre"), **options).cpu(), expected)


class Block(nn.Module):
    """One causal transformer block of 64 features in 2 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
        self.attention, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [
            t.view(*x.shape[:2], 2, 32).transpose(1, 2)
            for t in self.attention(self.first(x)).chunk(3, -1)
        ]
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.second(x))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 32))


TRAINED = {
    "mlp": (mlp, (16, 64)),
    "transformer": (lambda: nn.Sequential(Block(), Block()), (2, 16, 64)),
}


@pytest.mark.parametrize("name", TRAINED)
def test_gradients(name):
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, shape = TRAINED[name]
    host, x = make(), torch.randn(shape)
    card = copy.deepcopy(host).half().to("spyre")
    host(x).pow(2).mean().backward()
    with collected() as kernels:
        torch.compile(card)(x.half().to("spyre")).pow(2).mean().backward()
    assert len(kernels) >= 2
    for (label, a), b in zip(card.named_parameters(), host.parameters(), strict=True):
        error = (a.grad.cpu().float() - b.grad).norm() / b.grad.norm()
        assert error <= UNITS * DL16, label


def test_a_training_step_changes_parameters_as_on_the_host():
    torch._dynamo.reset()
    torch.manual_seed(0)
    host = mlp()
    card = copy.deepcopy(host).half().to("spyre")
    x = torch.randn(16, 64)
    for model, given in ((host, x), (torch.compile(card), x.half().to("spyre"))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(given).pow(2).mean().backward()
        optimizer.step()
    for a, b in zip(card.parameters(), host.parameters(), strict=True):
        assert torch.allclose(a.detach().cpu().float(), b.detach(), atol=4 * DL16, rtol=4 * DL16)
