"""The only changes made to torch itself: where torch 2.13 has no hook for a device in Python.

Each one keeps the behaviour for all other devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spyre.torch_backend import compat


def install() -> None:
    """Install all patches; once per process, after the device is registered."""
    compat.wrap_tensor_text(_print_on_host)
    compat.wrap_storage_new(_new_storage)


def _print_on_host(original: Callable[..., str], tensor: torch.Tensor, *args: Any) -> str:
    """Printing computes in float64, which the card has no format for."""
    return original(tensor.cpu() if tensor.device.type == "spyre" else tensor, *args)


def _new_storage(original: Callable[..., Any], cls: type, *args: Any, **kwargs: Any) -> Any:
    """torch asks C++ for the device's allocator, which devices in Python do not have."""
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "spyre":
        return original(cls, *args, **kwargs)
    size = args[0] if args else 0
    if not isinstance(size, int):
        raise TypeError("a spyre storage is made from a number of bytes, not from data")
    import numpy as np

    from spyre.torch_backend.allocation import allocate_raw

    index = torch.device(device).index
    found = allocate_raw(np.zeros(size, np.uint8), -1 if index is None else index)
    return found.untyped_storage()
