"""Registers the device's kernels with torch's dispatcher, once per process.

With TORCH_SPYRE_DEBUG=1, which is read once, they log operations, copies and compiled programs to
``spyre.torch``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from spyre import config
from spyre.interrupts import interrupts
from spyre.torch_backend.compat import CPU_KEYS, operator, skip_in_dynamo

logger = logging.getLogger("spyre.torch")

Kernel = Callable[..., Any]

_libraries: list[torch.library.Library] = []
"""Kept alive, since registrations end with their library."""

VIEWS = (
    "view",
    "as_strided",
    "_reshape_alias",
    "unfold",
    "set_",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
    "view_as_real",
    "view_as_complex",
)
"""Operations that only change sizes and strides; ATen's CPU kernels work on any device."""


def register_kernels(kernels: dict[str, Kernel], namespace: str = "aten") -> None:
    """Register ``kernels``, by name and overload, for the device."""
    logged = _logged(kernels)
    uninterrupted = {name: _uninterrupted(logged[name]) for name in logged}
    register_under("PrivateUse1", uninterrupted, namespace)


def _uninterrupted(kernel: Kernel) -> Kernel:
    """Return ``kernel`` with Ctrl-C deferred to its end, except while it waits or compiles."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with interrupts:
            return kernel(*args, **kwargs)

    return run


def _logged(kernels: dict[str, Kernel]) -> dict[str, Kernel]:
    """Return the kernels, wrapped to log their calls if TORCH_SPYRE_DEBUG is set."""
    if not config.TORCH_DEBUG.is_on:
        return kernels
    logger.setLevel(logging.DEBUG)
    if not logging.getLogger().handlers and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
    return {name: _logging(kernel, name) for name, kernel in kernels.items()}


def _logging(kernel: Kernel, name: str = "") -> Kernel:
    """Return ``kernel`` with a log line per call: the operation and its arguments.

    ``name``: "" for kernels that get the operator as their first argument.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        shown, arguments = (name, args) if name else (f"{args[0]} on the CPU", args[1:])
        parts = [*map(_describe, arguments), *(f"{k}={_describe(v)}" for k, v in kwargs.items())]
        logger.debug("%s(%s)", shown, ", ".join(parts))
        return kernel(*args, **kwargs)

    return call


def _describe(value: Any) -> str:
    """Return dtype, sizes and device of a tensor as text, and the repr of other values."""
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return f"{name}{list(value.size())}@{value.device}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_describe, value)) + "]"
    return repr(value)


def log_program(name: str, listing: str) -> None:
    """Log a line per operation of a compiled program."""
    lines = "".join(f"\n  {line}" for line in listing.splitlines())
    logger.debug("compiled %s:%s", name, lines)


def register_fallback(kernel: Kernel) -> None:
    """Register the kernel for operations without a kernel on the device."""
    logged = _logging(kernel) if config.TORCH_DEBUG.is_on else kernel
    register_fallbacks({"PrivateUse1": _uninterrupted(logged)})


def register_composites(kernels: dict[str, Kernel]) -> None:
    """Register ``kernels`` of composite operations, by aten name, which replace the decompositions.

    They run before autograd, and in inference mode under the device's key.
    """
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        register_under(key, kernels)


def register_under(key: str, kernels: dict[str, Kernel], namespace: str = "aten") -> None:
    """Register ``kernels``, by name and overload, under a dispatch key."""
    library = torch.library.Library(namespace, "IMPL", key)
    _libraries.append(library)
    for name, kernel in kernels.items():
        library.impl(name, skip_in_dynamo(kernel))


def register_fallbacks(kernels: dict[str, Kernel]) -> None:
    """Register kernels for all operations without one, by dispatch key."""
    library = torch.library.Library("_", "IMPL")
    _libraries.append(library)
    for key, kernel in kernels.items():
        library.fallback(kernel, key)


def register_autocast(kernels: dict[str, Kernel]) -> None:
    """Register ``kernels``, by aten name, for autocast."""
    library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for name, kernel in kernels.items():
        library.impl(name, kernel)
    _libraries.append(library)


def pass_autocast() -> None:
    """Let autocast pass operations without a kernel through."""
    register_fallbacks({"AutocastPrivateUse1": torch.library.fallthrough_kernel})


def register_views() -> None:
    """Register `VIEWS`. They need not defer Ctrl-C: each is one call of C++.

    Copies get conjugate and negative tensors as they are: torch resolves others by a copy.
    """
    for key in ("Conjugate", "Negative"):
        library = torch.library.Library("aten", "IMPL", key)
        library.impl("_copy_from", torch.library.fallthrough_kernel)
        _libraries.append(library)
    register_under("PrivateUse1", _logged({name: _metadata_kernel(name) for name in VIEWS}))


def _metadata_kernel(name: str) -> Kernel:
    op = operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return op.redispatch(CPU_KEYS, *args, **kwargs)

    return kernel
