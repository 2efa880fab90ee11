"""Concatenation along a dim: cat, stack (which ATen makes of it) and roll."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import CONVERTED, Arguments, Conditions, NewResult, fill
from spyre.torch_backend.program import (
    Lowering,
    LoweringError,
    Value,
    current_recorder,
    join_lane,
    joined,
    stored_elements,
)
from spyre.torch_backend.tensors import assemble, buffer_of, moves_bits

MAX_ELEMENTS = 1 << 26
"""Elements a join may need room for where it is laid out with other sticks; beyond that, DMA."""


def join(builder: Lowering, *args: Any) -> Value:
    """Pieces converted to the result's dtype, joined."""
    *pieces, dim, dtype = args
    return joined(builder, [builder.convert(p, dtype) for p in pieces], dim, dtype)


def _pieces(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Without empty ones, among them those of shape (0,), which any shape goes with."""
    return [t for t in tensors if t.numel()]


def joined_sizes(tensors: Sequence[torch.Tensor], dim: int) -> torch.Size:
    """Sizes of the result of tensors that go together."""
    shapes = [t.shape for t in tensors if t.shape != (0,)]
    if not shapes:
        return torch.Size((0,))  # for any dim
    sizes = [*shapes[0]]
    sizes[dim] = sum(shape[dim] for shape in shapes)
    return torch.Size(sizes)


def cat(args: Arguments) -> torch.Tensor:
    tensors, out = args.tensors, args.out
    pieces, sizes = _pieces(tensors), joined_sizes(tensors, args.dim)
    if isinstance(out, torch.Tensor):
        if out.shape != sizes:
            out.resize_(sizes)
        if not pieces:
            return out
    dim = args.dim % len(sizes)
    starts = [0, *accumulate(p.shape[dim] for p in pieces)][:-1]
    if _goes_by_dma(pieces, starts, dim, out, sizes):
        if isinstance(out, NewResult) or current_recorder() is not None:
            raise LoweringError("a join that DMA does")
        parts = zip(starts, pieces, strict=True)
        assemble(buffer_of(out), [(out.narrow(dim, s, p.shape[dim]), p) for s, p in parts])
        return out
    return fill("cat", join, pieces, (dim, name_of(out.dtype)), out, sizes)


def _goes_by_dma(
    pieces: Sequence[torch.Tensor],
    starts: Sequence[int],
    dim: int,
    out: torch.Tensor | NewResult,
    sizes: Sequence[int],
) -> bool:
    """Pieces of one dtype that the cores cannot copy, or not without very much memory."""
    if isinstance(out, torch.Tensor):
        if current_recorder() is None and not moves_bits(out):
            return False
        if any(p.dtype != out.dtype for p in pieces):
            return False
        if out.dtype not in CONVERTED:
            return True
    lanes = 128 // (2 if pieces[0].dtype.itemsize < 4 else 4)
    needed = stored_elements(sizes, join_lane(sizes, starts, dim, lanes), lanes)
    return needed > max(MAX_ELEMENTS, 4 * prod(sizes))


def _can_join(args: Arguments) -> bool:
    if isinstance(args.out, NewResult):
        return True  # floats of one dtype
    out, dtypes = args.out, {t.dtype for t in _pieces(args.tensors)}
    if any(t.device != out.device for t in _pieces(args.tensors)):
        return False
    if not all(torch.can_cast(dtype, out.dtype) for dtype in dtypes):
        return False
    if current_recorder() is None and dtypes <= {out.dtype} and moves_bits(out):
        return True
    return {out.dtype, *dtypes} <= set(CONVERTED)


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


_ROLL = Conditions(
    dtypes={"self": CONVERTED},
    nonempty=("self",),
    check=lambda args: args.self.dim() > 0 and len(args.shifts) == (len(args.dims) or 1),
)
KERNELS = (
    ("cat.out", cat, Conditions(check=_can_join)),
    ("roll", lambda args: roll(args.self, args.shifts, args.dims), _ROLL),
)
