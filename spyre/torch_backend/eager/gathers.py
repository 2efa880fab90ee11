"""Reading through indices: embedding, index_select, indexing with a tensor, gather.

Indices out of range stop the launch with a device fault, which the next synchronization raises.
Negative ones count from the end where torch says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from spyre.torch_backend.eager.copies import CONVERTED
from spyre.torch_backend.eager.kernels import Kernel, falling_back, fill
from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.program.indexing import (
    MOST_ROWS,
    gathered,
    other_lane,
    stored_elements,
    wrapped_positions,
)
from spyre.torch_backend.program.value import Ints, Value, narrowed

INDICES = (torch.int32, torch.int64)
MOST_ELEMENTS = 1 << 26
"""Elements a gather may need room for in its layout; beyond that, the CPU."""


def select_rows(low: Lowering, table: Value, index: Value, dim: int, wraps: bool) -> Value:
    """The rows of ``table`` along ``dim`` that ``index`` names, whose dims stand there."""
    sizes = (*table.sizes[:dim], *index.sizes, *table.sizes[dim + 1 :])
    if wraps:
        index = wrapped_positions(low, index, table.sizes[dim])
    if not index.sizes:
        index = index.unsqueezed(0)
    for _ in range(len(index.sizes) - 1):
        table = table.unsqueezed(dim)
    along = dim + len(index.sizes) - 1
    for _ in range(dim):
        index = index.unsqueezed(0)
    for _ in range(len(table.sizes) - len(index.sizes)):
        index = index.unsqueezed(len(index.sizes))
    whole = tuple(
        table.sizes[k] if k < dim or k > along else index.sizes[k] for k in range(len(table.sizes))
    )
    return gathered(low, table, along, index, whole).reshaped(sizes)


def select_elements(low: Lowering, table: Value, index: Value, dim: int) -> Value:
    """``output[i, j] = table[index[i, j], j]`` for ``dim`` 0, and so on."""
    for k, extent in enumerate(index.sizes):
        if k != dim:
            table = narrowed(table, k, 0, extent)
    return gathered(low, table, dim, index, index.sizes)


# --- kernels -------------------------------------------------------------------------------------


def embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """aten::embedding."""
    found = weight.new_empty((*indices.shape, *weight.shape[1:]))
    return fill("select", select_rows, [weight, indices], (0, False), found)


def _takes_embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> bool:
    return takes_table(weight, 0, indices)


def takes_table(table: torch.Tensor, dim: int, index: torch.Tensor) -> bool:
    """True if the cores can move rows along ``dim`` by ``index``."""
    if table.dtype not in CONVERTED or index.dtype not in INDICES or table.dim() == 0:
        return False
    if table.device != index.device or not table.numel():
        return False
    sizes = table.shape
    lane = other_lane(sizes, dim)
    rows = index.numel() * (prod(sizes) // sizes[dim])
    needed = max(stored_elements(sizes, lane), rows * 64 if lane < 0 else rows)
    return bool(sizes[dim] <= MOST_ROWS and needed <= max(MOST_ELEMENTS, 4 * table.numel()))


def _dim(x: torch.Tensor, dim: int) -> int:
    return dim % x.dim() if x.dim() else 0


def index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """aten::index_select."""
    dim = _dim(x, dim)
    sizes = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :])
    found = x.new_empty(sizes)
    index = index.reshape(-1)
    return fill("select", select_rows, [x, index], (dim, False), found)


def _takes_index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> bool:
    return takes_table(x, _dim(x, dim), index)


def gather(
    x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False, out: torch.Tensor
) -> torch.Tensor:
    """aten::gather.out."""
    return fill("gather", select_elements, [x, index], (_dim(x, dim),), out, index.shape)


def _takes_gather(
    x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False, out: torch.Tensor
) -> bool:
    if x.dtype != out.dtype or x.dim() != index.dim() or not x.dim() or not index.numel():
        return False
    dim = _dim(x, dim)
    lane = other_lane(index.shape, dim)
    if x.dtype not in CONVERTED or index.dtype not in INDICES or x.device != index.device:
        return False
    needed = max(stored_elements(x.shape, lane), stored_elements(index.shape, lane))
    return bool(x.shape[dim] <= MOST_ROWS and needed <= max(MOST_ELEMENTS, 4 * x.numel()))


def _only_index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> int:
    """The dim that the one index of an indexing belongs to; -1 where there are several."""
    given = [k for k, index in enumerate(indices) if index is not None]
    return given[0] if len(given) == 1 else -1


def index(x: torch.Tensor, indices: Sequence[torch.Tensor | None], *, out: Any) -> torch.Tensor:
    """aten::index.Tensor_out with one index tensor."""
    dim = _only_index(x, indices)
    chosen = indices[dim]
    assert chosen is not None
    target: torch.Tensor = out
    return fill("select", select_rows, [x, chosen], (dim, True), target)


def _takes_index(x: torch.Tensor, indices: Sequence[torch.Tensor | None], *, out: Any) -> bool:
    dim = _only_index(x, indices)
    chosen = indices[dim] if dim >= 0 else None
    if chosen is None or not takes_table(x, dim, chosen) or out.dtype != x.dtype:
        return False
    sizes: Ints = (*x.shape[:dim], *chosen.shape, *x.shape[dim + 1 :])
    return tuple(out.shape) == sizes


def gather_kernels() -> dict[str, Kernel]:
    """By aten name."""
    return {
        "embedding": falling_back("embedding", embedding, _takes_embedding),
        "index_select": falling_back("index_select", index_select, _takes_index_select),
        "gather.out": falling_back("gather.out", gather, _takes_gather),
        "index.Tensor_out": falling_back("index.Tensor_out", index, _takes_index),
    }
