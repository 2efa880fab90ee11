"""``torch.spyre``: the device module."""

from __future__ import annotations

import types
from typing import Any

import torch


def make_module() -> types.ModuleType:
    """The module torch registers for the device."""
    module = types.ModuleType("torch.spyre")
    for function in (
        device_count,
        is_available,
        is_initialized,
        current_device,
        set_device,
        manual_seed,
        manual_seed_all,
        get_amp_supported_dtype,
        synchronize,
        memory_stats,
        memory_allocated,
        fallbacks,
        _is_in_bad_fork,
        _lazy_init,
    ):
        setattr(module, function.__name__, function)
    return module


def device_count() -> int:
    from spyre.runtime.memory.device_enumeration import visible_devices

    return len(visible_devices())


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return True


def current_device() -> int:
    from spyre.runtime.flex.devices import devices

    return devices().current_index


def set_device(device: Any) -> None:
    from spyre.runtime.flex.devices import devices

    index = torch.device(device).index if not isinstance(device, int) else device
    if index is not None:
        devices().set_current(index)


def _is_in_bad_fork() -> bool:
    return False


def _lazy_init() -> None:
    return None


def manual_seed(seed: int) -> None:
    from spyre.torch_backend.random_state import seed_card

    seed_card(seed)


def manual_seed_all(seed: int) -> None:
    from spyre.torch_backend.random_state import seed_all

    seed_all(seed)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def synchronize(device: Any = None) -> None:
    from spyre.runtime.flex.devices import devices

    devices().synchronize()


def memory_stats(device: Any = None) -> dict[str, int]:
    from spyre.runtime.flex.devices import devices
    from spyre.torch_backend.tensor_memory import tensor_memory

    return tensor_memory(devices().current).counters()


def memory_allocated(device: Any = None) -> int:
    return memory_stats(device)["allocated_bytes.all.current"]


def fallbacks() -> dict[str, int]:
    from spyre.torch_backend.fallback import fallbacks

    return fallbacks()
