"""What ``import torch`` runs: the device gets its name, its module and its kernels.

Kernels that need the simulated card are imported when they are first called.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

from spyre import config

_loaded = False


def autoload() -> None:
    """Register the device "spyre"; does nothing the second time.

    If another backend has already taken PrivateUse1, this warns and does not change torch. If
    SPYRE_FRONTEND selects torch-spyre's device, this does nothing.
    """
    global _loaded
    if _loaded or config.FRONTEND.read() != "spyre":
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
    from spyre.torch_backend import compat
    from spyre.torch_backend.registration import (
        make_module,
        patches,
        register_fallback,
        register_kernels,
        register_views,
    )

    compat.register_device("spyre", make_module())
    register_views()
    register_kernels(_lazy_kernels())
    register_fallback(_lazy("spyre.torch_backend.fallback.cpu_fallback", "cpu_fallback"))
    _register_exceptions()
    patches.install()
    _register_process_groups()


def _register_process_groups() -> None:
    """Register backend ``spyreccl``; its modules are imported when a group is made."""
    import torch.distributed

    from spyre.torch_backend.registration import patches

    make = _lazy("spyre.torch_backend.distributed.group", "create")

    def create(*arguments: Any) -> Any:
        patches.install(patches.Moment.GROUP)
        return make(*arguments)

    if torch.distributed.is_available():
        torch.distributed.Backend.register_backend(
            "spyreccl", create, extended_api=True, devices=["spyre"]
        )


def _register_exceptions() -> None:
    """Register operations whose decomposition the card cannot run, and unsupported layouts."""
    from spyre.torch_backend.registration import (
        cpu_operations,
        pass_autocast,
        register_composites,
        register_fallbacks,
        register_under,
        unsupported_layouts,
    )

    pass_autocast()
    register_under("PrivateUse1", cpu_operations.formula_kernels())
    register_composites(cpu_operations.composite_kernels())
    register_fallbacks(unsupported_layouts.fallback_kernels())
    for key, kernels in unsupported_layouts.accessor_kernels().items():
        register_under(key, kernels)


_FACTORIES = {
    "empty.memory_format": "empty",
    "empty_strided": "empty_strided",
    "_to_copy": "to_copy",
    "_copy_from": "copy_from",
    "_copy_from_and_resize": "copy_from_and_resize",
    "_local_scalar_dense": "local_scalar_dense",
    "record_stream": "record_stream",
}


_HOST_OPERATIONS = {
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
    "spyre.torch_backend.eager.factories": _FACTORIES,
    "spyre.torch_backend.registration.cpu_operations": _HOST_OPERATIONS,
    "spyre.torch_backend.eager.recurrent": _RECURRENT_CELLS,
    "spyre.torch_backend.tensors.storages": {"resize_": "resize_tensor"},
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

    loaded: Callable[..., Any] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal loaded
        if loaded is None:
            home = importlib.import_module(module)
            importlib.import_module("spyre.torch_backend.eager.registry").register()
            loaded = getattr(home, function)
        return loaded(*args, **kwargs)

    skip_in_dynamo(call)
    return call
