"""Tensors that hold nothing but what their sizes say: arange, linspace, eye, index triangles.

They are constants: made on the host and copied to the card, as a compiler's constants are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spyre.torch_backend.card_copies import upload
from spyre.torch_backend.dtypes import NAMES
from spyre.torch_backend.eager.kernels import Kernel, falling_back


def _filled(out: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    if out.shape != made.shape:
        out.resize_(made.shape)
    if made.numel():
        upload(out, made, non_blocking=True)
    return out


def _made_by(name: str, make: Callable[..., torch.Tensor]) -> Kernel:
    """``make(*args, dtype)`` on the CPU."""

    def kernel(*args: Any, out: torch.Tensor) -> torch.Tensor:
        return _filled(out, make(*args, dtype=out.dtype))

    def takes(*args: Any, out: torch.Tensor) -> bool:
        return out.dtype in NAMES and not any(isinstance(a, torch.Tensor) for a in args)

    return falling_back(name, kernel, takes)


def _indices(name: str, make: Callable[..., torch.Tensor]) -> Kernel:
    def kernel(row: int, col: int, offset: int = 0, **options: Any) -> torch.Tensor:
        dtype = options.get("dtype") or torch.int64
        made = make(row, col, offset, dtype=dtype)
        out = torch.empty(made.shape, dtype=dtype, device=options.get("device") or "spyre")
        return _filled(out, made)

    return kernel


def sequence_kernels() -> dict[str, Kernel]:
    """By aten name."""
    return {
        "arange.start_out": _made_by("arange.start_out", torch.arange),
        "linspace.out": _made_by("linspace.out", torch.linspace),
        "eye.m_out": _made_by("eye.m_out", torch.eye),
        "eye.out": _made_by("eye.out", torch.eye),
        "tril_indices": _indices("tril_indices", torch.tril_indices),
        "triu_indices": _indices("triu_indices", torch.triu_indices),
    }
