"""A small Llama spread over cards: heads, MLP columns and vocabulary divided among the ranks.

    python examples/torch/tensor_parallel.py
    torchrun --nproc-per-node 2 examples/torch/tensor_parallel.py
    torchrun --nproc-per-node 4 examples/torch/tensor_parallel.py

Each rank has a card. All print the same tokens. Per layer two sums go over the cards, and at the
end the logits are gathered; everything else is a rank's own.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn import functional

VOCABULARY, HIDDEN, HEADS, MLP, LAYERS, CONTEXT = 256, 128, 4, 384, 2, 320
HEAD = HIDDEN // HEADS


def weights() -> dict[str, torch.Tensor]:
    """Random ones, equal on all ranks; matrices are [out, in]."""
    random = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) / columns**0.5

    made = {"embedding": matrix(VOCABULARY, HIDDEN) * 8, "logits": matrix(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        for name in ("q", "k", "v", "o"):
            made[f"{layer}.{name}"] = matrix(HIDDEN, HIDDEN)
        made[f"{layer}.gate"] = matrix(MLP, HIDDEN)
        made[f"{layer}.up"] = matrix(MLP, HIDDEN)
        made[f"{layer}.down"] = matrix(HIDDEN, MLP)
    return made


class Llama:
    """One rank's part of the model. ``rank``, ``ranks``: which, of how many; a power of two."""

    def __init__(self, rank: int, ranks: int, device: torch.device) -> None:
        self.ranks = ranks
        self.heads = HEADS // ranks
        self.own = {
            name: self._part(name, whole, rank).contiguous().to(device)
            for name, whole in weights().items()
        }
        size = (LAYERS, self.heads, CONTEXT, HEAD)
        self.keys, self.values = torch.zeros(size, device=device), torch.zeros(size, device=device)
        angles = torch.outer(torch.arange(CONTEXT), 10000 ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.cos = torch.cat((angles.cos(), angles.cos()), 1).to(device)
        self.sin = torch.cat((-angles.sin(), angles.sin()), 1).to(device)
        self.mask = torch.full((CONTEXT, CONTEXT), -1e4).triu(1).to(device)

    def _part(self, name: str, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """Rows of what comes before, columns of what comes after a rank's own computation."""
        if name == "embedding":
            return whole
        return whole.chunk(self.ranks, 1 if name.endswith((".o", ".down")) else 0)[rank]

    def _summed(self, x: torch.Tensor) -> torch.Tensor:
        if self.ranks > 1:
            dist.all_reduce(x)
        return x

    def _rotated(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """``x``: [heads, head]."""
        low, high = x.chunk(2, 1)
        turned = torch.cat((high, low), 1)
        return x * self.cos[position] + turned * self.sin[position]

    def _attention(self, layer: int, x: torch.Tensor, position: int) -> torch.Tensor:
        q, k, v = (
            functional.linear(x, self.own[f"{layer}.{name}"]).view(self.heads, HEAD)
            for name in ("q", "k", "v")
        )
        self.keys[layer, :, position] = self._rotated(k, position)
        self.values[layer, :, position] = v
        scores = self.keys[layer] @ self._rotated(q, position).unsqueeze(2) / HEAD**0.5
        shares = (scores.squeeze(2) + self.mask[position]).softmax(1)
        mixed = (shares.unsqueeze(1) @ self.values[layer]).view(1, -1)
        return self._summed(functional.linear(mixed, self.own[f"{layer}.o"]))

    def _mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        gate = functional.silu(functional.linear(x, self.own[f"{layer}.gate"]))
        up = functional.linear(x, self.own[f"{layer}.up"])
        return self._summed(functional.linear(gate * up, self.own[f"{layer}.down"]))

    def logits(self, token: int, position: int) -> torch.Tensor:
        """Of the token after ``token``, which stands at ``position``: [vocabulary]."""
        x = self.own["embedding"][token : token + 1]
        for layer in range(LAYERS):
            x = x + self._attention(layer, functional.rms_norm(x, (HIDDEN,)), position)
            x = x + self._mlp(layer, functional.rms_norm(x, (HIDDEN,)))
        part = functional.linear(functional.rms_norm(x, (HIDDEN,)), self.own["logits"]).flatten()
        if self.ranks == 1:
            return part
        whole = part.new_empty(VOCABULARY)
        dist.all_gather_single(whole, part)
        return whole


def decode(rank: int, ranks: int, device: torch.device, count: int) -> list[int]:
    """``count`` tokens, each the likeliest after those before it."""
    model, tokens = Llama(rank, ranks, device), [1]
    with torch.no_grad():
        for position in range(count):
            tokens.append(int(model.logits(tokens[-1], position).cpu().argmax()))
    return tokens[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=64, help="tokens to decode; default: 64")
    count = parser.parse_args().tokens
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("cpu:gloo,spyre:spyreccl")
    rank = dist.get_rank() if ranks > 1 else 0
    device = torch.device("spyre", torch.spyre.current_device())
    tokens = decode(rank, ranks, device, count)
    print(f"rank {rank} of {ranks}: {' '.join(map(str, tokens))}")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
