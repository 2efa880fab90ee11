"""TORCH_SPYRE_DEBUG=1: log operations, copies and compiled programs to ``spyre.torch``.

The variable is read once, when the device is registered; without it this module is not loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger("spyre.torch")


def describe(value: Any) -> str:
    """Return dtype, sizes and device of a tensor as text, and the repr of other values."""
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return f"{name}{list(value.size())}@{value.device}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(describe, value)) + "]"
    return repr(value)


def logged(kernel: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Return ``kernel`` with a log line per call: the operation and its arguments.

    ``name``: None for kernels that get the operator as their first argument.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        shown, arguments = (name, args) if name is not None else (f"{args[0]} on the CPU", args[1:])
        parts = [*map(describe, arguments), *(f"{k}={describe(v)}" for k, v in kwargs.items())]
        logger.debug("%s(%s)", shown, ", ".join(parts))
        return kernel(*args, **kwargs)

    return call


def log_program(name: str, listing: str) -> None:
    """Log a line per operation of a compiled program."""
    lines = "".join(f"\n  {line}" for line in listing.splitlines())
    logger.debug("compiled %s:%s", name, lines)


def start_logging() -> None:
    """Enable the log lines, on stderr if the program has not configured logging."""
    logger.setLevel(logging.DEBUG)
    if not logging.getLogger().handlers and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
