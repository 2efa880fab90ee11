"""Larger tensors made of smaller ones in compiled code: repeated ones, and padded ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spyre.torch_backend.compat import operator
from spyre.torch_backend.eager.copies import CONVERTED
from spyre.torch_backend.eager.masks import is_number_of


def repeat(x: torch.Tensor, repeats: Sequence[int]) -> Any:
    """aten::repeat: dims of repetitions in front of those they repeat, then joined with them."""
    if not _takes(x) or 0 in repeats:
        return NotImplemented
    sizes = (*[1] * (len(repeats) - x.dim()), *x.shape)
    apart = [n for size in sizes for n in (1, size)]
    whole = [n for pair in zip(repeats, sizes, strict=True) for n in pair]
    joined = [a * b for a, b in zip(repeats, sizes, strict=True)]
    return x.reshape(apart).expand(whole).clone().reshape(joined)


def constant_pad_nd(x: torch.Tensor, pad: Sequence[int], value: Any = 0) -> Any:
    """aten::constant_pad_nd: a tensor of the number before and behind, dim by dim from the last."""
    kept = [n + min(a, 0) + min(b, 0) for n, a, b in _padded(x, pad)]
    if not _takes(x) or not is_number_of(value, x.dtype) or min(kept, default=1) < 1:
        return NotImplemented
    found = x
    for k, (extent, before, behind) in enumerate(_padded(x, pad)):
        dim = x.dim() - 1 - k
        start = max(-before, 0)
        found = found.narrow(dim, start, extent - start - max(-behind, 0))
        pieces = [_filled(found, dim, before, value), found, _filled(found, dim, behind, value)]
        given = [piece for piece in pieces if piece is not None]
        found = torch.cat(given, dim) if len(given) > 1 else found
    return found.clone() if all(n <= 0 for n in pad) else found


def _padded(x: torch.Tensor, pad: Sequence[int]) -> list[tuple[int, int, int]]:
    """(extent, elements before, elements behind) from the last dim on."""
    return list(zip(reversed(x.shape), pad[::2], pad[1::2], strict=False))


def _filled(x: torch.Tensor, dim: int, length: int, value: Any) -> torch.Tensor | None:
    """``length`` steps along ``dim`` of nothing but ``value``; None for no steps."""
    if length <= 0:
        return None
    sizes = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return torch.full(sizes, value, dtype=x.dtype, device=x.device)


def _takes(x: torch.Tensor) -> bool:
    return x.device.type == "spyre" and x.numel() > 0 and x.dtype in CONVERTED


def enlargement_decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator overload."""
    return {operator("repeat"): repeat, operator("constant_pad_nd"): constant_pad_nd}
