"""Decompositions of aten operations into others: repeats, padding, writes to parts of tensors, and
operations on lists of tensors.

A write to a slice becomes a join of the parts before it, the source and the parts after it. Writes
to diagonals, strided views and slices with steps run eagerly between the bundles, as ``spyre::``
operations: Inductor would turn the aten ones into writes to views, but a view made by eager mode is
a separate buffer to Inductor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from spyre.torch_backend.compat import COMPOSITE_KEYS, operator, schema_of
from spyre.torch_backend.eager.dispatch import CONVERTED
from spyre.torch_backend.eager.launch import in_format_of
from spyre.torch_backend.eager.masks import is_number_of

aten = torch.ops.aten


def repeat(x: torch.Tensor, repeats: Sequence[int]) -> Any:
    """aten::repeat: dims of repetitions in front of those they repeat, then joined with them."""
    if not _can_enlarge(x) or 0 in repeats:
        return NotImplemented
    sizes = (*[1] * (len(repeats) - x.dim()), *x.shape)
    apart = [n for size in sizes for n in (1, size)]
    whole = [n for pair in zip(repeats, sizes, strict=True) for n in pair]
    joined = [a * b for a, b in zip(repeats, sizes, strict=True)]
    return x.reshape(apart).expand(whole).clone().reshape(joined)


def constant_pad_nd(x: torch.Tensor, pad: Sequence[int], value: Any = 0) -> Any:
    """aten::constant_pad_nd: a tensor of the number before and behind, dim by dim from the last."""
    kept = [n + min(a, 0) + min(b, 0) for n, a, b in _padded(x, pad)]
    if not _can_enlarge(x) or not is_number_of(value, x.dtype) or min(kept, default=1) < 1:
        return NotImplemented
    padded = x
    for k, (extent, before, behind) in enumerate(_padded(x, pad)):
        dim = x.dim() - 1 - k
        start = max(-before, 0)
        padded = padded.narrow(dim, start, extent - start - max(-behind, 0))
        pieces = [_filled(padded, dim, before, value), padded, _filled(padded, dim, behind, value)]
        given = [piece for piece in pieces if piece is not None]
        padded = torch.cat(given, dim) if len(given) > 1 else padded
    return in_format_of(x, padded.clone() if all(n <= 0 for n in pad) else padded)


def _padded(x: torch.Tensor, pad: Sequence[int]) -> list[tuple[int, int, int]]:
    """(extent, elements before, elements behind) from the last dim on."""
    return list(zip(reversed(x.shape), pad[::2], pad[1::2], strict=False))


def _filled(x: torch.Tensor, dim: int, length: int, value: Any) -> torch.Tensor | None:
    """A tensor of ``value`` like ``x`` with ``length`` steps along ``dim``; None if it is 0."""
    if length <= 0:
        return None
    sizes = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return torch.full(sizes, value, dtype=x.dtype, device=x.device)


def _can_enlarge(x: torch.Tensor) -> bool:
    return x.numel() > 0 and x.dtype in CONVERTED


def slice_scatter(
    x: torch.Tensor,
    source: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """aten::slice_scatter: with step 1 a join, otherwise ``spyre::slice_scatter``."""
    _check_source(operator("slice.Tensor")(x, dim, start, end, step), source)
    if step != 1 or not _can_scatter(x, source):
        return torch.ops.spyre.slice_scatter(x, source, dim, start, end, step)
    dim %= x.dim()
    extent = x.shape[dim]
    begin, stop, _ = slice(start, end).indices(extent)
    pieces = [x.narrow(dim, 0, begin), source, x.narrow(dim, stop, extent - stop)]
    if stop <= begin:
        return x.clone()
    return _joined_as(x, [p for p in pieces if p.shape[dim]], dim)


def _joined_as(x: torch.Tensor, pieces: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """The pieces joined along ``dim``, with the strides of ``x``, which later views rely on."""
    if x.is_contiguous():
        return torch.cat(pieces, dim)
    order, back = _orders(x)
    joined = torch.cat([piece.permute(order) for piece in pieces], order.index(dim))
    return joined.permute(back)


def _orders(x: torch.Tensor) -> tuple[list[int], list[int]]:
    """The dims of ``x``, the outermost in memory first, and the permutation that undoes this."""
    order = sorted(range(x.dim()), key=lambda each: -x.stride(each))
    return order, [order.index(each) for each in range(x.dim())]


def _check_source(part: torch.Tensor, source: torch.Tensor) -> None:
    """Raise torch's RuntimeError unless ``source`` has the sizes of the part that it replaces."""
    if part.shape != source.shape:
        found, expected = list(source.shape), list(part.shape)
        message = "expected src to have a size equal to the slice of self."
        raise RuntimeError(f"{message} src size = {found}, slice size = {expected}")


def select_scatter(x: torch.Tensor, source: torch.Tensor, dim: int, index: int) -> Any:
    """aten::select_scatter, as a slice of one step."""
    _check_source(x.select(dim, index), source)
    dim, index = dim % x.dim(), index % x.shape[dim]
    return slice_scatter(x, source.unsqueeze(dim), dim, index, index + 1)


def _can_scatter(x: torch.Tensor, source: torch.Tensor) -> bool:
    on_card = all(t.device.type == "spyre" and t.numel() > 0 for t in (x, source))
    return on_card and x.dtype == source.dtype and x.dtype in CONVERTED and x.dim() > 0


def copied(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    """aten::copy: the source in the sizes, dtype and order of dims of ``x``."""
    on_card = all(t.device.type == "spyre" and t.numel() > 0 for t in (x, source))
    if not on_card or not {x.dtype, source.dtype} <= set(CONVERTED):
        return NotImplemented
    order, back = _orders(x)
    ordered = source.to(x.dtype).expand(x.shape).permute(order)
    return ordered.clone(memory_format=torch.contiguous_format).permute(back)


def sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """aten::sort as a stable sort, as in eager mode."""
    stable: Callable[..., Any] = operator("sort.stable")
    return stable(x, stable=True, dim=dim, descending=descending)


def celu(x: torch.Tensor, alpha: float = 1.0) -> Any:
    """aten::celu as aten::elu, as in eager mode."""
    return operator("elu")(x, alpha, 1.0, 1.0 / alpha)


def index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    """aten::index_fill as aten::index_put, which counts negative indices from the end too."""
    if not x.dim():
        return index_fill(x.reshape(1), 0, index, value).reshape(())
    number = value.to(x.dtype) if isinstance(value, torch.Tensor) else x.new_full((), value)
    indices = [None] * (dim % x.dim()) + [index.reshape(-1)]
    return operator("index_put")(x, indices, number)


def on_each_tensor() -> dict[Any, Callable[..., Any]]:
    """Decompositions of the operations on lists of tensors, ``aten::_foreach_add`` and so on."""
    packets = {getattr(aten, n.removesuffix("_")) for n in dir(torch) if n.startswith("_foreach_")}
    overloads = (getattr(packet, name) for packet in packets for name in packet.overloads())
    functional = (op for op in overloads if not schema_of(op).is_mutable)
    return {op: partial(op.redispatch, COMPOSITE_KEYS) for op in functional} | {
        aten._foreach_copy.default: lambda xs, ys, _=False: [*map(operator("copy"), xs, ys)],
        aten._foreach_zero.default: lambda xs: [*map(torch.zeros_like, xs)],
    }


COMPOSITE_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    operator("sort"): sort,
    operator("celu"): celu,
    operator("index_fill.int_Scalar"): index_fill,
    operator("index_fill.int_Tensor"): index_fill,
    operator("repeat"): repeat,
    operator("constant_pad_nd"): constant_pad_nd,
    operator("copy"): copied,
    operator("slice_scatter"): slice_scatter,
    operator("select_scatter"): select_scatter,
}
"""Decompositions of this module by operator."""
