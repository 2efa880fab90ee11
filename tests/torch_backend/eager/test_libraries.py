"""Paged attention and the products of experts, against loops over tokens on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

LIBRARY = torch.library.Library("spyre", "FRAGMENT")
EXPERTS = torch.library.Library("moe", "FRAGMENT")
LIBRARY.define("paged_attn_store(Tensor k, Tensor v, Tensor ks, Tensor vs, Tensor s) -> Tensor[]")
LIBRARY.define(
    "paged_attn_compute(Tensor q, Tensor ks, Tensor vs, float scale, Tensor lengths, Tensor starts,"
    " Tensor table) -> Tensor"
)
EXPERTS.define(
    "moe_mm(Tensor x, Tensor weights, Tensor experts, Tensor a, Tensor b, Tensor c, int topk,"
    " int size) -> Tensor"
)
"""The operators as FMS defines them, here without kernels of other devices."""


def on_card(operator, *given):
    before = torch.spyre.fallbacks()
    found = operator(*(g.to("spyre") if isinstance(g, torch.Tensor) else g for g in given))
    assert torch.spyre.fallbacks() == before
    return [t.cpu() for t in found] if isinstance(found, (list, tuple)) else found.cpu()


@pytest.fixture
def caches():
    return [torch.randn(6, 64, 2, 32).half() for _ in range(2)]


def test_rows_go_to_their_slots(caches):
    rows = [torch.randn(2, 3, 2, 32).half() for _ in range(2)]
    slots = torch.tensor([[5, 64, 383], [0, 1, -1]])
    found = on_card(torch.ops.spyre.paged_attn_store, *rows, *caches, slots)
    for after, cache, new in zip(found, caches, rows, strict=True):
        wanted = cache.clone().flatten(0, 1)
        for slot, row in zip(slots.flatten().tolist(), new.flatten(0, 1), strict=True):
            wanted[slot] = row
        torch.testing.assert_close(after.flatten(0, 1), wanted, rtol=2**-9, atol=2**-9)


@pytest.mark.parametrize("tokens", [1, 70])
def test_attention_reads_the_blocks_of_its_sequence(tokens, caches):
    query = torch.randn(2, tokens, 4, 32).half()
    lengths, starts = torch.tensor([70, 130]), torch.tensor([0, 66])
    table = torch.tensor([[3, 1, 999], [0, 5, 2]])  # entries that are not read may have any value
    found = on_card(torch.ops.spyre.paged_attn_compute, query, *caches, 0.2, lengths, starts, table)
    for k, (length, start) in enumerate(zip(lengths.tolist(), starts.tolist(), strict=True)):
        rows = [table[k, p // 64] * 64 + p % 64 for p in range(start, length)]
        keys, values = (
            c.flatten(0, 1)[rows].float().repeat_interleave(2, 1).transpose(0, 1) for c in caches
        )
        for t in range(tokens):
            last = length - tokens + t - start + 1
            if last < 1:
                assert not found[k, t].any()
                continue
            wanted = F.scaled_dot_product_attention(
                query[k, t].float().unsqueeze(1), keys[:, :last], values[:, :last], scale=0.2
            )
            torch.testing.assert_close(found[k, t].float(), wanted[:, 0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("topk", [1, 3])
def test_rows_are_multiplied_by_their_experts(topk):
    x, weights = torch.randn(12 // topk, 64).half(), torch.randn(5, 32, 64).half() / 8
    experts = torch.randint(0, 4, (4, 3))
    none = torch.zeros(1, dtype=torch.int64)
    found = on_card(torch.ops.moe.moe_mm, x, weights, experts, none, none, none, topk, 16)
    rows = x.repeat_interleave(topk, 0).float().unsqueeze(1)
    wanted = rows @ weights[experts.flatten()].float().mT
    torch.testing.assert_close(found.float().flatten(0, 1), wanted[:, 0], rtol=0.02, atol=0.02)
