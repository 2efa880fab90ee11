"""What ``torch.accelerator`` asks of C++, which in torch 2.13 knows nothing of a device in Python.

Once the device is registered it is the accelerator, so these simply take the place of the C
functions. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spyre.torch_backend.cards import is_initialized
from spyre.torch_backend.device_selection import (
    _exchange_device,
    _maybe_exchange_device,
    current_device,
    set_device,
    synchronize,
)


def _module() -> Any:
    return torch.spyre


def _current_stream(index: int) -> Any:
    return _module().current_stream(index)


def _set_current_stream(stream: Any) -> None:
    _module().set_stream(stream)


def _stats(index: int) -> dict[str, int]:
    return dict(_module().memory_stats(index))


def _reset_peak(index: int) -> None:
    _module().reset_peak_memory_stats(index)


def _reset_accumulated(index: int) -> None:
    _module().reset_accumulated_memory_stats(index)


def _memory_info(index: int) -> tuple[int, int]:
    found: tuple[int, int] = _module().get_memory_info(index)
    return found


def _empty_cache() -> None:
    _module().empty_cache()


def _no_host_cache() -> None:
    """Host memory for copies is not kept."""


def _capability(index: int) -> dict[str, Any]:
    found: dict[str, Any] = _module().get_device_capability(index)
    return found


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_accelerator_isAllocatorInitialized": is_initialized,
    "_accelerator_getDeviceIndex": current_device,
    "_accelerator_setDeviceIndex": set_device,
    "_accelerator_exchangeDevice": _exchange_device,
    "_accelerator_maybeExchangeDevice": _maybe_exchange_device,
    "_accelerator_getStream": _current_stream,
    "_accelerator_setStream": _set_current_stream,
    "_accelerator_synchronizeDevice": synchronize,
    "_accelerator_getDeviceStats": _stats,
    "_accelerator_resetPeakStats": _reset_peak,
    "_accelerator_resetAccumulatedStats": _reset_accumulated,
    "_accelerator_getMemoryInfo": _memory_info,
    "_accelerator_emptyCache": _empty_cache,
    "_accelerator_emptyHostCache": _no_host_cache,
    "_accelerator_getDeviceCapability": _capability,
}
"""By the function of ``torch._C`` it stands for."""
