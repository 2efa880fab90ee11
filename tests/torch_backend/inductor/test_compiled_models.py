"""Models compiled: the bounds of eager mode hold, little leaves the card, gradients agree."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.torch_backend.inductor.compiled_code import collected

pytest.importorskip("transformers", reason="model tests need transformers")
from qa.models.configurations import FAMILIES, LAYERS, Family
from tests.torch_backend.models.comparison import (
    DL16,
    UNITS,
    assert_logits_close,
)

FALLBACKS_PER_BLOCK = 3
LONG = "SPYRE_TEST_EXAMPLES" in os.environ
KINDS = ("llama", "gpt2", "bert", "vit") if LONG else ("gpt2", "bert", "vit")
COMPILED = [f for f in FAMILIES if str(f) in KINDS]
"""One family of each kind: compiling takes seconds, and the others differ in little. Llama's logits
are compared where it decodes.
"""
DECODED = {"llama": 3, "gpt2": 2} if LONG else {"llama": 3}
"""New tokens: the prompt's, one of the cache, and one of a cache that has grown."""
CHANGES = {} if LONG else {"num_hidden_layers": 1}


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


@contextlib.contextmanager
def counted_forwards(model: nn.Module) -> Iterator[list[int]]:
    """Count the model's calls to the CPU per forward pass, without those between passes."""
    forward = model.forward
    found: list[int] = []

    def counted(*args: Any, **named: Any) -> Any:
        torch.spyre.reset_fallbacks()
        result = forward(*args, **named)
        found.append(sum(torch.spyre.fallbacks().values()))
        return result

    model.forward = counted
    try:
        yield found
    finally:
        model.forward = forward


@pytest.mark.parametrize("name", DECODED)
@torch.no_grad()
def test_decoding_with_a_cache(name: str):
    """Tokens and logits of eager mode and of the CPU, for a prompt and steps with its cache."""
    torch._dynamo.reset()
    steps = DECODED[name]
    family = next(f for f in FAMILIES if str(f) == name)
    tokens = family.inputs()["input_ids"][:, :5]
    model = family.build("sdpa", **CHANGES).to("spyre", torch.float16)
    options = {"max_new_tokens": steps, "do_sample": False, "output_logits": True}
    options |= {"return_dict_in_generate": True}
    expected = model.generate(tokens.to("spyre"), **options)
    model.forward = torch.compile(model.forward)
    with collected() as kernels, counted_forwards(model) as fallbacks:
        found = model.generate(tokens.to("spyre"), **options)
    assert kernels
    assert found.past_key_values.get_seq_length() == tokens.shape[1] + steps - 1
    assert len(fallbacks) == steps
    assert max(fallbacks) <= FALLBACKS_PER_BLOCK * model.config.num_hidden_layers
    assert torch.equal(found.sequences.cpu(), expected.sequences.cpu())
    reference = family.build("sdpa", **CHANGES)
    host = reference(found.sequences.cpu()).logits[:, tokens.shape[1] - 1 : -1]
    assert_logits_close(torch.stack(found.logits, 1), host)


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
    "transformer": (lambda: nn.Sequential(*(Block() for _ in range(1 + LONG))), (2, 16, 64)),
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
