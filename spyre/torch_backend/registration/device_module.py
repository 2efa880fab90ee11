"""``torch.spyre``: the device module, whose parts are loaded at their first use.

`EXPORTS` lists its names.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

from spyre.torch_backend.device import is_initialized

EXPORTS: dict[str, tuple[str, ...]] = {
    "spyre.torch_backend.device.cards": (
        *("device_count", "is_available", "is_initialized", "init", "_lazy_init"),
        *("current_device", "set_device", "device", "device_of", "synchronize", "reset"),
        "can_device_access_peer",
        *("_exchange_device", "_maybe_exchange_device", "_is_in_bad_fork"),
        *("get_device_properties", "get_device_name", "get_device_capability"),
        *("is_bf16_supported", "SpyreDeviceProperties"),
    ),
    "spyre.torch_backend.device.streams": (
        *("Stream", "Event", "stream", "set_stream", "current_stream", "default_stream"),
    ),
    "spyre.torch_backend.device.memory": (
        *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
        *("memory_stats", "reset_peak_memory_stats", "reset_accumulated_memory_stats"),
        *("get_memory_info", "mem_get_info", "empty_cache", "memory_summary"),
    ),
    "spyre.torch_backend.device.random": (
        *("manual_seed", "manual_seed_all", "seed", "seed_all", "initial_seed"),
        *("get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all"),
    ),
    "spyre.torch_backend.registration.autocast": ("get_amp_supported_dtype",),
    "spyre.torch_backend.tensors.graphs": ("SpyreGraph", "graph"),
    "spyre.torch_backend.tensors.layouts": ("SpyreTensorLayout",),
    "spyre.torch_backend.device.dtypes": ("set_downcast_warning",),
    "spyre.torch_backend.observe": ("trace", "counting", "sanitizer_findings", "profile"),
    "spyre.torch_backend.fallback": ("fallbacks", "fallback_seconds", "reset_fallbacks"),
    "spyre.torch_backend.ktir": ("ktir",),
    "spyre.torch_backend.inductor.hints": ("declare_tensor_dim", "name_tensor_dims", "spyre_hint"),
}
"""Names of ``torch.spyre`` by the module that defines them."""

_HOMES = {name: module for module, names in EXPORTS.items() for name in names}


class DeviceModule(types.ModuleType):
    """A module that imports the module defining a name when the name is first used."""

    @property
    def _initialized(self) -> bool:
        """True if a card is in use; checkpointing reads it before it saves random states."""
        return is_initialized()

    def __getattr__(self, name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'torch.spyre' has no attribute '{name}'")
        value = getattr(importlib.import_module(home), name)
        if isinstance(value, types.FunctionType) and not hasattr(value, "__wrapped__"):
            from spyre.torch_backend.compat import skip_in_dynamo

            # As in torch's device modules: Dynamo does not trace these functions.
            skip_in_dynamo(value)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_HOMES})


def make_module() -> types.ModuleType:
    """Return the module that torch registers for the device."""
    module = DeviceModule("torch.spyre", "The Spyre device: `docs/torch.md` of spyre.")
    module.__dict__["__all__"] = [name for name in _HOMES if not name.startswith("_")]
    return module
