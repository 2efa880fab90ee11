"""Registers the device's kernels with torch's dispatcher, once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spyre import config
from spyre.interrupts import interrupts
from spyre.torch_backend.compat import CPU_KEYS, operator, skip_in_dynamo

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


def register_kernels(kernels: dict[str, Kernel]) -> None:
    """Register ``kernels``, by aten name and overload, for the device."""
    logged = _logged(kernels)
    register_under("PrivateUse1", {name: _uninterrupted(logged[name]) for name in logged})


def _uninterrupted(kernel: Kernel) -> Kernel:
    """Return ``kernel`` with Ctrl-C deferred to its end, except while it waits or compiles."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with interrupts:
            return kernel(*args, **kwargs)

    return run


def _logged(kernels: dict[str, Kernel]) -> dict[str, Kernel]:
    """Return the kernels, wrapped to log their calls if TORCH_SPYRE_DEBUG is set."""
    if not config.logs_torch_operations():
        return kernels
    from spyre.torch_backend.registration.debug_log import logged, start_logging

    start_logging()
    return {name: logged(kernel, name) for name, kernel in kernels.items()}


def register_fallback(kernel: Kernel) -> None:
    """Register the kernel for operations without a kernel on the device."""
    if config.logs_torch_operations():
        from spyre.torch_backend.registration.debug_log import logged

        kernel = logged(kernel)
    register_fallbacks({"PrivateUse1": _uninterrupted(kernel)})


def register_composites(kernels: dict[str, Kernel]) -> None:
    """Register ``kernels`` of composite operations, by aten name, which replace the decompositions.

    They run before autograd, and in inference mode under the device's key.
    """
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        register_under(key, kernels)


def register_under(key: str, kernels: dict[str, Kernel]) -> None:
    """Register ``kernels``, by aten name and overload, under a dispatch key."""
    library = torch.library.Library("aten", "IMPL", key)
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
    """Register `VIEWS`. They need not defer Ctrl-C: each is one call of C++."""
    register_under("PrivateUse1", _logged({name: _metadata_kernel(name) for name in VIEWS}))


def _metadata_kernel(name: str) -> Kernel:
    op = operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return op.redispatch(CPU_KEYS, *args, **kwargs)

    return kernel
