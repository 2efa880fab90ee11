"""Concatenation along a dim: cat, stack (which ATen makes of it) and roll."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import (
    ANY,
    CONVERTED,
    ArgumentClass,
    EagerKernel,
    checked_dim,
    fill,
)
from spyre.torch_backend.program import (
    Lowering,
    LoweringError,
    Value,
    current_recorder,
    join_lane,
    joined,
    stored_elements,
)
from spyre.torch_backend.tensors import assemble, moves_bits

MAX_ELEMENTS = 1 << 26
"""Elements a join may need room for where it is laid out with other sticks; beyond that, DMA."""


def join(low: Lowering, *args: Any) -> Value:
    """Pieces converted to the result's dtype, joined."""
    *pieces, dim, dtype = args
    return joined(low, [low.convert(p, dtype) for p in pieces], dim, dtype)


def _pieces(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Without empty ones, among them those of shape (0,), which any shape goes with."""
    return [t for t in tensors if t.numel()]


def joined_sizes(tensors: Sequence[torch.Tensor], dim: int) -> torch.Size:
    """Sizes of the result, by torch's own rules."""
    shapes = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
    return torch.cat(shapes, dim).shape


def cat(tensors: Sequence[torch.Tensor], dim: int = 0, *, out: torch.Tensor) -> torch.Tensor:
    pieces = _pieces(tensors)
    sizes = joined_sizes(tensors, dim)
    if out.shape != sizes:
        out.resize_(sizes)
    if not pieces:
        return out
    dim %= out.dim()
    starts = [0, *accumulate(p.shape[dim] for p in pieces)]
    if _goes_by_dma(pieces, starts[:-1], dim, out):
        if current_recorder() is not None:
            raise LoweringError("a join that DMA does")
        parts = zip(starts, pieces, strict=False)
        assemble(out, [(out.narrow(dim, s, p.shape[dim]), p) for s, p in parts])
        return out
    return fill("cat", join, pieces, (dim, name_of(out.dtype)), out, sizes)


def _goes_by_dma(
    pieces: Sequence[torch.Tensor], starts: Sequence[int], dim: int, out: torch.Tensor
) -> bool:
    """Pieces of one dtype that the cores cannot copy, or not without very much memory."""
    if current_recorder() is None and not moves_bits(out):
        return False
    if any(p.dtype != out.dtype for p in pieces):
        return False
    if out.dtype not in CONVERTED:
        return True
    lanes = 128 // (2 if out.dtype.itemsize < 4 else 4)
    lane = join_lane(out.shape, starts, dim, lanes)
    needed = stored_elements(out.shape, lane, lanes)
    return bool(needed > max(MAX_ELEMENTS, 4 * out.numel()))


def _takes(tensors: Sequence[torch.Tensor], dim: int = 0, *, out: torch.Tensor) -> bool:
    pieces = _pieces(tensors)
    if any(p.device != out.device for p in pieces):
        return False
    if not all(torch.can_cast(p.dtype, out.dtype) for p in pieces):
        return False
    if current_recorder() is None and all(p.dtype == out.dtype for p in pieces) and moves_bits(out):
        return True
    return {out.dtype, *(p.dtype for p in pieces)} <= set(CONVERTED)


def roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """aten::roll: the end of every dim in front of its beginning."""
    if not dims:
        return roll(x.reshape(-1), shifts, (0,)).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):  # a dim may come twice
        extent = x.shape[dim]
        cut = extent - shift % extent
        pieces = [x.narrow(dim, cut, extent - cut), x.narrow(dim, 0, cut)]
        x = torch.cat(pieces, dim)
    return x


def _takes_roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> bool:
    counts = len(shifts) == (len(dims) or 1)
    for dim in dims:
        checked_dim(dim, x.dim())
    return counts and x.numel() > 0 and x.dim() > 0 and x.dtype in CONVERTED


KERNELS: dict[str, dict[ArgumentClass, EagerKernel]] = {
    "cat.out": {ANY: EagerKernel(cat, _takes)},
    "roll": {ANY: EagerKernel(roll, _takes_roll)},
}
