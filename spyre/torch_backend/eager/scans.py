"""Running sums along a dim."""

from __future__ import annotations

from typing import Any

import torch

from spyre.torch_backend.dtypes import name_of
from spyre.torch_backend.eager.copies import CONVERTED
from spyre.torch_backend.eager.kernels import FLOATS, Kernel, falling_back, fill
from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.program.indexing import other_lane, running_sum, stored_elements
from spyre.torch_backend.program.value import Value

MOST_ELEMENTS = 1 << 24
INTEGERS = (torch.int32, torch.int64)


def cumulated(low: Lowering, x: Value, dim: int, dtype: str) -> Value:
    """Sums in float32, or in integers, rounded to ``dtype`` at the end."""
    inner = dtype if dtype in ("int32", "int64") else "float32"
    return low.convert(running_sum(low, low.convert(x, inner), dim), dtype)


def cumsum(
    x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None, out: torch.Tensor
) -> torch.Tensor:
    """aten::cumsum.out."""
    if x.dim() == 0:
        return out.copy_(x)
    return fill("cumsum", cumulated, [x], (dim % x.dim(), name_of(out.dtype)), out, x.shape)


def _takes(
    x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None, out: torch.Tensor
) -> bool:
    if x.dtype not in CONVERTED or out.dtype not in (*FLOATS, *INTEGERS):
        return False
    if x.dim() == 0:
        return True
    lane: Any = other_lane(x.shape, dim % x.dim())
    return stored_elements(x.shape, lane) <= MOST_ELEMENTS


def scan_kernels() -> dict[str, Kernel]:
    """By aten name."""
    return {"cumsum.out": falling_back("cumsum.out", cumsum, _takes)}
