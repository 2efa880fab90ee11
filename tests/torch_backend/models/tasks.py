"""Models with a batch and a loss, small enough to train in a test."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch
from torch import nn
from torch.nn import functional

from qa.models import configurations
from qa.models.configurations import HEADS, HIDDEN, SEQUENCE, VOCABULARY

Batch = dict[str, torch.Tensor]


class TinyTransformer(nn.Module):
    """One causal block of torch's own attention between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Parameter(torch.randn(SEQUENCE, HIDDEN))
        self.norm = nn.LayerNorm(HIDDEN)
        self.attention = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(HIDDEN),
            nn.Linear(HIDDEN, 2 * HIDDEN),
            nn.GELU(),
            nn.Linear(2 * HIDDEN, HIDDEN),
        )
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions
        mask = nn.Transformer.generate_square_subsequent_mask(SEQUENCE, x.device, x.dtype)
        normed = self.norm(x)
        mixed, _ = self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)
        x = x + mixed
        return self.head(x + self.feed_forward(x))


class Task(msgspec.Struct, frozen=True):
    """A training task: the model (float32, CPU), one batch for it, and the loss of the batch."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], torch.Tensor]

    def __str__(self) -> str:
        return self.name


def _mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(HIDDEN, 128), nn.GELU(), nn.Linear(128, 10))


def _mlp_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, HIDDEN, generator=generator)
    return {"x": x, "labels": torch.randint(10, (32,), generator=generator)}


def _mlp_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["labels"])


def _transformer() -> nn.Module:
    torch.manual_seed(0)
    return TinyTransformer()


def _next_token_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    ids = batch["input_ids"]
    logits = model(ids)[:, :-1].flatten(0, 1)
    return functional.cross_entropy(logits, ids[:, 1:].flatten())


def _labelled_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(**batch, labels=batch["input_ids"], use_cache=False).loss


MLP = Task("mlp", _mlp, _mlp_batch, _mlp_loss)
TRANSFORMER = Task("transformer", _transformer, configurations.token_inputs, _next_token_loss)
LLAMA = Task(
    "llama", lambda: configurations.llama().train(), configurations.token_inputs, _labelled_loss
)
TASKS = (MLP, TRANSFORMER, LLAMA)
