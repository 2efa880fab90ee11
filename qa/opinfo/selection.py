"""Index results: indices that differ from the CPU's are right if they select equal values.

Sorting and searching may choose among equal elements. Their indices are compared through the input:
the values at the device's indices must equal those at the CPU's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Selector:
    """Position and default of an operator's argument ``dim`` (None: the flat input).

    ``distinct``: no index may occur twice along the dim.
    """

    position: int
    default: int | None
    distinct: bool = False


SELECTORS = {
    "argmax": Selector(1, None),
    "argmin": Selector(1, None),
    "max/reduction_with_dim": Selector(1, None),
    "min/reduction_with_dim": Selector(1, None),
    "median": Selector(1, None),
    "nanmedian": Selector(1, None),
    "mode": Selector(1, -1),
    "kthvalue": Selector(2, -1),
    "topk": Selector(2, -1, distinct=True),
    "sort": Selector(1, -1, distinct=True),
    "argsort": Selector(1, -1, distinct=True),
}


def selects_same(
    op: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    found: torch.Tensor,
    wanted: torch.Tensor,
) -> bool:
    """Return True if both index tensors select the same values from the first argument."""
    selector = SELECTORS.get(op)
    if selector is None or found.dtype is not torch.int64 or kwargs.get("stable"):
        return False
    values = args[0]
    given = args[selector.position] if len(args) > selector.position else selector.default
    dim = kwargs.get("dim", given)
    if dim is None or values.dim() == 0:
        values, found, wanted, dim = values.reshape(-1), found.reshape(-1), wanted.reshape(-1), 0
    elif found.dim() < values.dim():
        found, wanted = found.unsqueeze(dim), wanted.unsqueeze(dim)
    return _in_range(found, values, dim, selector.distinct) and torch.equal(
        values.gather(dim, found).nan_to_num(), values.gather(dim, wanted).nan_to_num()
    )


def _in_range(found: torch.Tensor, values: torch.Tensor, dim: int, distinct: bool) -> bool:
    if found.numel() and (found.min() < 0 or found.max() >= values.shape[dim]):
        return False
    ordered = found.sort(dim=dim).values
    return not distinct or not bool((ordered.diff(dim=dim) == 0).any())
