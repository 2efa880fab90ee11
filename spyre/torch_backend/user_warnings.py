"""Warnings that point at the user's line rather than at ours or torch's."""

from __future__ import annotations

import sys
import warnings

_OURS = ("spyre.torch_backend", "torch")


def warn_user(message: str) -> None:
    """A UserWarning at the innermost line that is neither torch's nor this package's."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level + 1)


def _is_ours(name: str) -> bool:
    return name.startswith(tuple(f"{package}." for package in _OURS)) or name in _OURS
