"""What ``import torch`` runs: the device gets its name, its module and its kernels.

Kernels that need the simulated card are imported when they are first called.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

_loaded = False


def autoload() -> None:
    """Register the device "spyre"; does nothing the second time.

    Where another backend has taken PrivateUse1 already, it warns and leaves torch as it is.
    """
    global _loaded
    if _loaded:
        return
    _loaded = True
    from spyre.torch_backend import compat

    other = compat.private_use_name()
    if other != "privateuseone":
        warnings.warn(
            f"the spyre device is not available: another backend, {other!r}, is registered as "
            "PrivateUse1, of which torch has one",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    _register()


def _register() -> None:
    from spyre.torch_backend import compat, patches
    from spyre.torch_backend.compile_hook import install_on_use
    from spyre.torch_backend.device_module import make_module
    from spyre.torch_backend.registration import register_fallback, register_kernels, view_kernels

    compat.register_device("spyre", make_module())
    register_kernels({**view_kernels(), **_lazy_kernels()})
    register_fallback(_lazy("spyre.torch_backend.fallback", "cpu_fallback"))
    _register_exceptions()
    patches.install()
    install_on_use()


def _register_exceptions() -> None:
    """What torch would take apart in a way the card cannot follow, and what it has no form for."""
    from spyre.torch_backend import refused_layouts, whole_operations
    from spyre.torch_backend.registration import (
        register_composites,
        register_fallbacks,
        register_under,
    )

    register_under("PrivateUse1", whole_operations.formula_kernels())
    register_composites(whole_operations.composite_kernels())
    register_fallbacks(refused_layouts.fallback_kernels())
    for key, kernels in refused_layouts.accessor_kernels().items():
        register_under(key, kernels)


_FACTORIES = {
    "empty.memory_format": "empty",
    "empty_strided": "empty_strided",
    "_copy_from": "copy_from",
    "_copy_from_and_resize": "copy_from_and_resize",
    "_local_scalar_dense": "local_scalar_dense",
    "record_stream": "record_stream",
}


_HOST_OPERATIONS = {
    "convolution_overrideable": "convolution",
    "convolution_backward_overrideable": "convolution_backward",
    "mse_loss": "mse_loss",
    "smooth_l1_loss": "smooth_l1_loss",
}
_RECURRENT_CELLS = {
    "_thnn_fused_lstm_cell": "lstm_cell",
    "_thnn_fused_lstm_cell_backward_impl": "lstm_cell_backward",
    "_thnn_fused_gru_cell": "gru_cell",
    "_thnn_fused_gru_cell_backward": "gru_cell_backward",
}


_KERNELS = {
    "spyre.torch_backend.factories": _FACTORIES,
    "spyre.torch_backend.host_operations": _HOST_OPERATIONS,
    "spyre.torch_backend.recurrent_cells": _RECURRENT_CELLS,
    "spyre.torch_backend.resizing": {"resize_": "resize_tensor"},
}
"""Functions by aten name and overload, by the module that has them."""


def _lazy_kernels() -> dict[str, Callable[..., Any]]:
    return {
        name: _lazy(module, function)
        for module, functions in _KERNELS.items()
        for name, function in functions.items()
    }


def _lazy(module: str, function: str) -> Callable[..., Any]:
    """The function of a module that is imported by the first call."""
    from spyre.torch_backend.compat import skip_in_dynamo

    found: Callable[..., Any] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal found
        if found is None:
            imported = importlib.import_module(module)
            importlib.import_module("spyre.torch_backend.eager.registry").register()
            found = getattr(imported, function)
        return found(*args, **kwargs)

    skip_in_dynamo(call)
    return call
