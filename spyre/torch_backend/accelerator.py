"""What ``torch.accelerator`` asks of C++, which in torch 2.13 knows nothing of a device in Python.

Once the device is registered it is the accelerator, so these simply take the place of the C
functions. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spyre.torch_backend import cards, device_selection


def _module() -> Any:
    return torch.spyre


def _initialized() -> bool:
    return cards.is_initialized()


def _device_index() -> int:
    return device_selection.current_device()


def _set_device_index(index: int) -> None:
    device_selection.set_device(index)


def _stream(index: int) -> Any:
    return _module().current_stream(index)


def _set_stream(stream: Any) -> None:
    _module().set_stream(stream)


def _synchronize(index: int) -> None:
    device_selection.synchronize(index)


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
    "_accelerator_isAllocatorInitialized": _initialized,
    "_accelerator_getDeviceIndex": _device_index,
    "_accelerator_setDeviceIndex": _set_device_index,
    "_accelerator_exchangeDevice": device_selection._exchange_device,
    "_accelerator_maybeExchangeDevice": device_selection._maybe_exchange_device,
    "_accelerator_getStream": _stream,
    "_accelerator_setStream": _set_stream,
    "_accelerator_synchronizeDevice": _synchronize,
    "_accelerator_getDeviceStats": _stats,
    "_accelerator_resetPeakStats": _reset_peak,
    "_accelerator_resetAccumulatedStats": _reset_accumulated,
    "_accelerator_getMemoryInfo": _memory_info,
    "_accelerator_emptyCache": _empty_cache,
    "_accelerator_emptyHostCache": _no_host_cache,
    "_accelerator_getDeviceCapability": _capability,
}
"""By the function of ``torch._C`` it stands for."""
