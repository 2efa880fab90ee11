"""Errors and warnings of the device in the form PyTorch users expect.

All errors are RuntimeErrors, as every `SpyreError` is, and also of torch's class where torch has
one. Warnings point at the user's line rather than at this package's or torch's.
"""

from __future__ import annotations

import sys
import warnings

import torch

from spyre.errors import DeviceOutOfMemory, Finding, LaunchError, UnsupportedError


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
        self.args = (_message_first(self.finding),)


class SpyreOutOfMemory(DeviceOutOfMemory, torch.OutOfMemoryError):  # type: ignore[misc]
    """DeviceOutOfMemory that ``except torch.OutOfMemoryError`` catches."""


class Int64Overflow(LaunchError, OverflowError):
    """An int64 value does not fit the card's int32."""


class EventsWithoutTime(LaunchError, ValueError):
    """The time between two events is unknown; a ValueError, as in torch."""


def _message_first(finding: Finding) -> str:
    head, _, details = str(finding).partition("\n")
    return f"{finding.message} [{finding.code}]\n{details}" if head else details


_OURS = ("spyre.torch_backend", "torch")


def warn_user(message: str) -> None:
    """Give a UserWarning at the innermost line that is neither torch's nor this package's."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level + 1)


def _is_ours(name: str) -> bool:
    return name.startswith(tuple(f"{package}." for package in _OURS)) or name in _OURS
