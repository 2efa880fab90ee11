"""int64 on the card, which holds it as int32 (runtime reference §2).

The first int64 tensor gets a warning; values that have no place in int32 are an error, since the
card would hold other numbers.
"""

from __future__ import annotations

import torch

from spyre import config
from spyre.torch_backend.errors import Int64Overflow
from spyre.torch_backend.user_warnings import warn_user

_LIMITS = torch.iinfo(torch.int32)
_warns = True


def set_downcast_warning(enabled: bool) -> None:
    """Whether the next int64 tensor put on a card gives a warning; then none does any more."""
    global _warns
    _warns = bool(enabled)


def warn_of_downcast() -> None:
    """Warn, the first time."""
    global _warns
    if _warns:
        _warns = False
        if config.warns_of_downcasts():
            warn_user(
                "Spyre holds int64 tensors as int32: values outside its range are refused "
                "(TORCH_SPYRE_DOWNCAST_WARN=0 hides this warning)"
            )


def check_int64(source: torch.Tensor) -> None:
    """Int64Overflow SPY901 if an int64 CPU tensor has a value that int32 does not."""
    if source.dtype is not torch.int64 or source.numel() == 0:
        return
    low, high = (int(value) for value in torch.aminmax(source))
    if low < _LIMITS.min or high > _LIMITS.max:
        raise Int64Overflow(
            "SPY901",
            "an int64 value does not fit the card, which holds int64 as int32",
            expected=f"{_LIMITS.min} to {_LIMITS.max}",
            found=str(low if low < _LIMITS.min else high),
            hint="keep such numbers on the CPU",
        )
