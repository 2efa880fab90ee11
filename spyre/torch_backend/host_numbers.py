"""Python numbers where an operator takes a tensor.

Torch wraps a number as a tensor of rank 0 that takes no part in type promotion but by its kind, and
unwraps it on the way to a Python kernel. The CPU wants a tensor again: one whose dtype leads to the
same promotion.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

Number = bool | int | float | complex
NUMBERS = (bool, int, float, complex)


def number_tensor(value: Number, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """``value`` as a CPU tensor of rank 0 in the dtype it has beside ``others``.

    Tensors of rank 0 rank below those with dims in torch's promotion, so they are asked first;
    booleans only where there is nothing else.
    """
    chosen = [t for t in others if t.dtype is not torch.bool] or list(others)
    chosen = [t for t in chosen if t.dim() == 0] or chosen
    alone = torch.tensor(value)
    if not chosen:
        return alone
    dtype = functools.reduce(torch.promote_types, (torch.result_type(t, value) for t in chosen))
    return alone.to(dtype)
