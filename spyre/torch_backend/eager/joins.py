"""Joining tensors along a dim: cat, and stack, which ATen makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from spyre.torch_backend.card_copies import assemble, moves_bits
from spyre.torch_backend.dtypes import name_of
from spyre.torch_backend.eager.copies import CONVERTED
from spyre.torch_backend.eager.kernels import Kernel, falling_back, fill
from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.program.indexing import join_lane, joined, stored_elements
from spyre.torch_backend.program.value import Value

MOST_ELEMENTS = 1 << 26
"""Elements a join may need room for where it is laid out with other sticks; beyond that, DMA."""


def join(low: Lowering, *rest: Any) -> Value:
    """Pieces converted to the result's dtype, joined."""
    *pieces, dim, dtype = rest
    return joined(low, [low.convert(p, dtype) for p in pieces], dim, dtype)


def _pieces(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Without empty ones, among them those of shape (0,), which any shape goes with."""
    return [t for t in tensors if t.numel()]


def cat(tensors: Sequence[torch.Tensor], dim: int = 0, *, out: torch.Tensor) -> torch.Tensor:
    """aten::cat.out; ATen has given ``out`` its sizes."""
    pieces = _pieces(tensors)
    if not pieces:
        return out
    dim %= out.dim()
    starts = [0, *accumulate(p.shape[dim] for p in pieces)]
    if _goes_by_dma(pieces, starts[:-1], dim, out):
        parts = zip(starts, pieces, strict=False)
        assemble(out, [(out.narrow(dim, s, p.shape[dim]), p) for s, p in parts])
        return out
    return fill("cat", join, pieces, (dim, name_of(out.dtype)), out)


def _goes_by_dma(
    pieces: Sequence[torch.Tensor], starts: Sequence[int], dim: int, out: torch.Tensor
) -> bool:
    """Pieces of one dtype that the cores cannot copy, or not without very much memory."""
    if any(p.dtype != out.dtype for p in pieces) or not moves_bits(out):
        return False
    if out.dtype not in CONVERTED:
        return True
    lanes = 128 // (2 if out.dtype.itemsize < 4 else 4)
    lane = join_lane(out.shape, starts, dim, lanes)
    needed = stored_elements(out.shape, lane, lanes)
    return bool(needed > max(MOST_ELEMENTS, 4 * out.numel()))


def _takes(tensors: Sequence[torch.Tensor], dim: int = 0, *, out: torch.Tensor) -> bool:
    pieces = _pieces(tensors)
    if any(p.device != out.device for p in pieces):
        return False
    if all(p.dtype == out.dtype for p in pieces) and moves_bits(out):
        return True
    return {out.dtype, *(p.dtype for p in pieces)} <= set(CONVERTED)


def join_kernels() -> dict[str, Kernel]:
    """By aten name."""
    return {"cat.out": falling_back("cat.out", cat, _takes)}
