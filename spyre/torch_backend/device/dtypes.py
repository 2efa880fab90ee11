"""torch dtypes with a format on the card, and the error for all others (runtime reference §2).

int64 is stored as int32: the first int64 tensor gives a warning, and values that do not fit int32
are an error.
"""

from __future__ import annotations

import sys
import threading
import warnings

import torch

from spyre import config
from spyre.dtypes import HOST_DTYPES
from spyre.errors import LaunchError, UnsupportedError

NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name for name in HOST_DTYPES if not name.startswith("q")
}
"""Name in `spyre.dtypes.HOST_DTYPES` by torch dtype; quantised dtypes are left out."""
DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in NAMES.items()}

PARTS: dict[torch.dtype, torch.dtype] = {torch.complex64: torch.float32}
"""dtypes whose elements are two on the card each, and the dtype of these; the CPU computes them."""


class UnsupportedDtype(UnsupportedError):
    """SPY311 for a torch dtype; its text begins with the message, followed by the code."""

    def __init__(self, dtype: torch.dtype, known: str) -> None:
        name = str(dtype).removeprefix("torch.")
        super().__init__(
            "SPY311",
            f"Spyre backend does not support dtype {name}",
            expected=known,
            hint="convert on the CPU first, for example x.float().to('spyre')",
        )
        finding = self.finding
        head, _, details = str(finding).partition("\n")
        self.args = (f"{finding.message} [{finding.code}]\n{details}" if head else details,)


def name_of(dtype: torch.dtype) -> str:
    """Return the dtype's name in `spyre.dtypes`; UnsupportedDtype SPY311 if there is no format."""
    name = NAMES.get(dtype)
    if name is None:
        raise UnsupportedDtype(dtype, ", ".join(NAMES.values()))
    return name


class Int64Overflow(LaunchError, OverflowError):
    """An int64 value does not fit the card's int32."""


_OURS = ("spyre.torch_backend.", "torch.", "contextlib.")


def warn_user(message: str) -> None:
    """Give a UserWarning at the innermost line that is neither torch's nor this package's."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(_OURS):
        frame = frame.f_back
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level + 1)


_LIMITS = torch.iinfo(torch.int32)
_warns = True


def set_downcast_warning(enabled: bool) -> None:
    """Set whether the next int64 tensor put on a card gives a warning; later ones never do."""
    global _warns
    _warns = bool(enabled)


def warn_of_downcast() -> None:
    """Warn that int64 is stored as int32, at the first call."""
    global _warns
    if _warns:
        _warns = False
        if config.DOWNCAST_WARN.is_on:
            warn_user(
                "Spyre holds int64 tensors as int32: values outside its range are refused "
                "(TORCH_SPYRE_DOWNCAST_WARN=0 hides this warning)"
            )


class DoublesOnHost(threading.local):
    """``with doubles_on_host:`` makes ``x.double()`` of a tensor on a card a CPU tensor."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


doubles_on_host = DoublesOnHost()


def check_int64(source: torch.Tensor) -> None:
    """Raise Int64Overflow SPY901 if a value of an int64 CPU tensor does not fit int32."""
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
