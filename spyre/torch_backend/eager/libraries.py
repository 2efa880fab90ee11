"""Operators that libraries of models define, and that they have kernels of other devices for.

Paged attention and the products of experts of FMS, as compositions of operations of the card. The
numbers of sequences' tokens and the choice of experts are read on the host, as the kernels of the
CPU do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F


def paged_attn_store(
    key: torch.Tensor, value: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of both caches [blocks, positions, heads, width] with new rows in their slots, which
    count the positions through all blocks.
    """
    numbers = [slots.reshape(-1)]
    stored = [
        cache.flatten(0, 1).index_put(numbers, rows.reshape(-1, *cache.shape[2:])).view_as(cache)
        for cache, rows in ((keys, key), (values, value))
    ]
    return stored[0], stored[1]


def paged_attn_compute(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    table: torch.Tensor,
) -> torch.Tensor:
    """Attention of the last tokens of every sequence [sequences, tokens, heads, width] to the
    positions from its start up to their own; tokens before the start get zeros.

    ``table``: the blocks of every sequence in both caches.
    """
    tokens, size = query.shape[1], keys.shape[1]
    blocks = -(-int(lengths.max()) // size)
    position = torch.arange(blocks * size, dtype=torch.int32, device=query.device)
    lengths, starts = lengths.int().unsqueeze(1), starts.int().unsqueeze(1)
    is_read = position < lengths
    chosen = torch.where(is_read[:, ::size], table[:, :blocks], 0)
    last = lengths - tokens + torch.arange(tokens, dtype=torch.int32, device=query.device)
    sees = ((position >= starts).unsqueeze(1) & (position <= last.unsqueeze(2))).unsqueeze(1)

    def rows(cache: torch.Tensor) -> torch.Tensor:
        return torch.where(is_read[..., None, None], cache[chosen].flatten(1, 2), 0.0)

    q, k, v = (x.transpose(1, 2) for x in (query, rows(keys), rows(values)))
    attended = F.scaled_dot_product_attention(q, k, v, sees, scale=scale, enable_gqa=True)
    return attended.transpose(1, 2).contiguous()


def moe_mm(x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, *args: Any) -> Any:
    """[tokens, choices, outputs]: rows of ``x``, each ``topk`` times, times their expert's weights.

    Positions of an expert are repeated up to a power of two, so that few programs serve all counts.
    """
    *_, topk, _ = args
    rows, choices = x.repeat_interleave(topk, 0), experts.reshape(-1).cpu()
    found = x.new_zeros(len(rows), weights.shape[1])
    for expert in choices.unique().tolist():
        places = (choices == expert).nonzero().reshape(-1)
        missing = (1 << (len(places) - 1).bit_length()) - len(places)
        places = torch.cat([places, places[-1:].expand(missing)]).to(x.device)
        found.index_copy_(0, places, rows.index_select(0, places) @ weights[expert].t())
    return found.view(*experts.shape, -1)


OPERATORS: dict[str, dict[str, Callable[..., Any]]] = {
    "spyre": {"paged_attn_store": paged_attn_store, "paged_attn_compute": paged_attn_compute},
    "moe": {"moe_mm": moe_mm},
}
"""Operations by namespace and name, known before the library defines them."""
