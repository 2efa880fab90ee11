"""Registers the device's kernels with torch's dispatcher, once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spyre.torch_backend.compat import CPU_KEYS

Kernel = Callable[..., Any]

_libraries: list[torch.library.Library] = []
"""Registrations end with the library that made them."""

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
"""Operations that only touch sizes and strides: ATen's CPU kernels do them, on any device."""


def register_kernels(kernels: dict[str, Kernel]) -> None:
    """Register ``kernels``, by aten name and overload, for the device."""
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    _libraries.append(library)
    for name, kernel in kernels.items():
        library.impl(name, kernel)


def register_fallback(kernel: Kernel) -> None:
    """Register what runs where the device has no kernel."""
    library = torch.library.Library("_", "IMPL")
    _libraries.append(library)
    library.fallback(kernel, "PrivateUse1")


def view_kernels() -> dict[str, Kernel]:
    """Kernels of the operations in `VIEWS`."""
    return {name: _metadata_kernel(name) for name in VIEWS}


def _metadata_kernel(name: str) -> Kernel:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return op.redispatch(CPU_KEYS, *args, **kwargs)

    return kernel
