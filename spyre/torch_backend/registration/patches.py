"""The only changes made to torch itself: where torch 2.13 has no hook for a device in Python.

Each one keeps the behaviour for all other devices, and none loads the simulator before a tensor
is on a card.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spyre.torch_backend import compat, device
from spyre.torch_backend.device import (
    _exchange_device,
    _maybe_exchange_device,
    current_device,
    current_if_used,
    is_initialized,
    set_device,
    synchronize,
)

STORAGE_METHODS = (
    *("clone", "resize_", "fill_", "tolist", "is_shared", "share_memory_"),
    *("__getitem__", "__setitem__", "__iter__", "__repr__"),
    *("_share_fd_cpu_", "_share_filename_cpu_"),
)
"""Methods of ``torch.UntypedStorage`` that `storages` has its own of."""


def install() -> None:
    """Install all patches; once per process, after the device is registered."""
    compat.wrap_tensor_text(_print_on_host)
    compat.wrap_storage_new(_new_storage)
    for name in STORAGE_METHODS:
        compat.wrap_method(torch.UntypedStorage, name, _storage_method(name))
    compat.wrap_tensor_method("to", _to)
    compat.wrap_method(torch.Tensor, "__dlpack__", _to_dlpack)
    compat.wrap_tensor_method("pin_memory", _pin_memory)
    compat.wrap_tensor_method("is_pinned", _is_pinned)
    compat.wrap_method(torch.nn.Module, "_apply", _apply)
    compat.wrap_unscale(_unscale)
    compat.wrap_function("empty", _empty)
    compat.wrap_tensor_data(_set_data)
    compat.wrap_backward(_backward)
    install_accelerator()
    for name in ("tensor", "as_tensor", "asarray"):
        compat.wrap_function(name, _with_current_card)
    compat.wrap_tensor_method("new_tensor", _with_current_card)
    torch.Tensor.device_tensor_layout = _device_tensor_layout


def _with_current_card(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """C++ takes "spyre" for card 0 where it fills in the index itself."""
    if index := current_if_used():
        named = {k: _named(v, index) if k == "device" else v for k, v in kwargs.items()}
        return original(*(_named(value, index) for value in args), **named)
    return original(*args, **kwargs)


def _named(value: Any, index: int) -> Any:
    if _is_spyre(value) and torch.device(value).index is None:
        return torch.device("spyre", index)
    return value


def install_accelerator() -> None:
    """``torch.accelerator``, and the constructors of streams, events and generators."""
    compat.replace_accelerator(FUNCTIONS)
    compat.redirect_constructor("Stream", _stream)
    compat.redirect_constructor("Event", _event)
    compat.redirect_constructor("Generator", _generator)


def _is_spyre(device: Any) -> bool:
    """True for "spyre", "spyre:1" and torch devices of that kind."""
    if isinstance(device, str):
        return device.partition(":")[0] == "spyre"
    return isinstance(device, torch.device) and device.type == "spyre"


# --- tensors -------------------------------------------------------------------------------------


def _print_on_host(original: Callable[..., str], tensor: torch.Tensor, *args: Any) -> str:
    """Printing computes in float64, which the card has no format for."""
    return original(tensor.cpu() if tensor.device.type == "spyre" else tensor, *args)


def _to(original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if "device_layout" not in kwargs:
        return _with_current_card(original, tensor, *args, **kwargs)
    from spyre.torch_backend.tensors import to_layout

    return to_layout(tensor, *args, **kwargs)


def _empty(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if "device_layout" not in kwargs:
        return original(*args, **kwargs)
    from spyre.torch_backend.tensors import empty_in_layout

    return empty_in_layout(original, *args, **kwargs)


def _device_tensor_layout(tensor: torch.Tensor) -> Any:
    """The `SpyreTensorLayout` of the storage behind a tensor on a spyre device."""
    from spyre.torch_backend.tensors import device_tensor_layout

    return device_tensor_layout(tensor)


def _set_data(original: Callable[..., None], tensor: torch.Tensor, new: torch.Tensor) -> None:
    from spyre.torch_backend.tensors import set_data

    set_data(original, tensor, new)


def _to_dlpack(
    original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Sticks mean nothing to other libraries."""
    wanted = kwargs.get("dl_device")
    if tensor.device.type == "spyre" and (wanted is None or int(wanted[0]) != 1):
        raise BufferError(
            "spyre tensors cannot be exported by DLPack: their memory is laid out in sticks. "
            "Use tensor.cpu() first"
        )
    return original(tensor, *args, **kwargs)


def _pin_memory(original: Callable[..., Any], tensor: torch.Tensor, device: Any = None) -> Any:
    """A copy marked as pinned: a simulated card copies from any host memory asynchronously."""
    if tensor.device.type != "cpu" or not (device is None or _is_spyre(device)):
        return original(tensor, device)
    if tensor.is_pinned():
        return tensor
    pinned = tensor.detach().clone(memory_format=torch.preserve_format)
    pinned.untyped_storage()._spyre_pinned = True
    return pinned


def _is_pinned(original: Callable[..., Any], tensor: torch.Tensor, device: Any = None) -> Any:
    if tensor.device.type != "cpu" or not (device is None or _is_spyre(device)):
        return original(tensor, device)
    return getattr(tensor.untyped_storage(), "_spyre_pinned", False)


def _apply(original: Callable[..., Any], module: Any, fn: Any, recurse: bool = True) -> Any:
    from spyre.torch_backend.tensors import apply

    return apply(original, module, fn, recurse)


def _backward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The engine's own threads know one card and no current stream; the calling thread does."""
    if not is_initialized():
        return original(*args, **kwargs)
    from spyre.torch_backend.device import follow_all_streams

    follow_all_streams()
    with torch.autograd.set_multithreading_enabled(False):
        return original(*args, **kwargs)


class _InFloat32:
    """A GradScaler's scale whose ``double()`` is the float32 it was, as on other devices without
    float64."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale
        self.device = scale.device

    def double(self) -> torch.Tensor:
        return self.scale


def _unscale(original: Callable[..., Any], scaler: Any, optimizer: Any) -> Any:
    # A disabled scaler has none, an unused one has None: what that means is torch's to say.
    scale = getattr(scaler, "_scale", None)
    if scale is None or scale.device.type != "spyre":
        return original(scaler, optimizer)
    scaler._scale = _InFloat32(scale)
    try:
        return original(scaler, optimizer)
    finally:
        scaler._scale = scale


# --- storages ------------------------------------------------------------------------------------


def _new_storage(original: Callable[..., Any], cls: type, *args: Any, **kwargs: Any) -> Any:
    """torch asks C++ for the device's allocator, which devices in Python do not have."""
    device = kwargs.get("device")
    if device is None or not _is_spyre(device):
        return original(cls, *args, **kwargs)
    size_bytes = args[0] if args else kwargs.get("size", 0)
    if not isinstance(size_bytes, int):
        raise TypeError("a spyre storage is made from a number of bytes, not from data")
    from spyre.torch_backend.tensors import new_storage

    return new_storage(size_bytes, torch.device(device))


def _storage_method(name: str) -> Callable[..., Any]:
    def method(original: Callable[..., Any], storage: Any, *args: Any, **kwargs: Any) -> Any:
        if storage.device.type != "spyre":
            return original(storage, *args, **kwargs)
        from spyre.torch_backend.tensors import METHODS

        return METHODS[name](storage, *args, **kwargs)

    return method


# --- streams, events, generators -----------------------------------------------------------------


def _stream(device: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Without a device: one of the accelerator, which is spyre."""
    if kwargs.get("device_type", compat.PRIVATE_USE_1) != compat.PRIVATE_USE_1:
        return None
    if device is not None and not isinstance(device, int) and not _is_spyre(device):
        return None
    from spyre.torch_backend.device import Stream

    kwargs.pop("device_type", None)
    return Stream(device, *args, **kwargs)


def _event(device: Any = None, **kwargs: Any) -> Any:
    if device is not None and not isinstance(device, int) and not _is_spyre(device):
        return None
    from spyre.torch_backend.device import Event

    return Event(device, **kwargs)


def _generator(*args: Any, **kwargs: Any) -> Any:
    device = args[0] if args else kwargs.get("device")
    if len(args) + len(kwargs) != 1 or not _is_spyre(device):
        return None
    from spyre.torch_backend.device import SpyreGenerator

    return SpyreGenerator(device)


def _of_device(name: str) -> Callable[..., Any]:
    """A function of `spyre.torch_backend.device`, whose home is loaded by the first call."""

    def call(*args: Any) -> Any:
        return getattr(device, name)(*args)

    return call


def _no_host_cache() -> None:
    """Host memory for copies is not cached."""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_accelerator_isAllocatorInitialized": is_initialized,
    "_accelerator_getDeviceIndex": current_device,
    "_accelerator_setDeviceIndex": set_device,
    "_accelerator_exchangeDevice": _exchange_device,
    "_accelerator_maybeExchangeDevice": _maybe_exchange_device,
    "_accelerator_getStream": _of_device("current_stream"),
    "_accelerator_setStream": _of_device("set_stream"),
    "_accelerator_synchronizeDevice": synchronize,
    "_accelerator_getDeviceStats": _of_device("memory_stats"),
    "_accelerator_resetPeakStats": _of_device("reset_peak_memory_stats"),
    "_accelerator_resetAccumulatedStats": _of_device("reset_accumulated_memory_stats"),
    "_accelerator_getMemoryInfo": _of_device("get_memory_info"),
    "_accelerator_emptyCache": _of_device("empty_cache"),
    "_accelerator_emptyHostCache": _no_host_cache,
    "_accelerator_getDeviceCapability": _of_device("get_device_capability"),
}
"""By the function of ``torch._C`` it stands for."""
