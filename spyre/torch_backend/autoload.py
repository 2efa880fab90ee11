"""Entry point of ``import torch``: gives the device its name, its module and its kernels.

Kernels that need the simulated card are imported when they are first called.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable
from functools import cache, partial
from importlib.machinery import ModuleSpec
from pathlib import Path
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
        register_exceptions,
        register_fallback,
        register_kernels,
        register_views,
    )

    fallback = _lazy("spyre.torch_backend.fallback", "cpu_fallback")
    compat.register_device("spyre", make_module())
    register_views()
    register_kernels(
        {
            **{name: _lazy(*home) for name, home in _KERNELS.items()},
            **{name: partial(fallback, compat.operator(name)) for name in _LOSSES},
        }
    )
    register_fallback(fallback)
    register_exceptions(fallback)
    patches.install()
    _register_process_groups()
    sys.meta_path.append(_SendnnFinder)


def _register_process_groups() -> None:
    """Register backend ``spyreccl``; its modules are imported when a group is made."""
    import torch.distributed

    from spyre.torch_backend.registration import patches

    make = _lazy("spyre.torch_backend.distributed.group", "create")
    install_once = cache(partial(patches.install, with_groups=True))

    def create(*arguments: Any) -> Any:
        install_once()
        return make(*arguments)

    if torch.distributed.is_available():
        torch.distributed.Backend.register_backend(
            "spyreccl", create, extended_api=True, devices=["spyre"]
        )


class _SendnnFinder:
    """Finds ``torch_sendnn`` where no other finder does."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        """Return the spec of this package's ``torch_sendnn``, None for other names."""
        if name != "torch_sendnn":
            return None
        home = Path(__file__).parent / name
        return importlib.util.spec_from_file_location(
            name, home / "__init__.py", submodule_search_locations=[str(home)]
        )


_LOSSES = ("mse_loss", "smooth_l1_loss")
"""Losses whose ``out`` variants the general fallback would call, which warn of a resized result."""

_FACTORIES = "spyre.torch_backend.eager.factories"
_RECURRENT = "spyre.torch_backend.eager.recurrent"
_KERNELS = {
    "empty.memory_format": (_FACTORIES, "empty"),
    "empty_strided": (_FACTORIES, "empty_strided"),
    "_to_copy": (_FACTORIES, "to_copy"),
    "_copy_from": (_FACTORIES, "copy_from"),
    "_copy_from_and_resize": (_FACTORIES, "copy_from_and_resize"),
    "_local_scalar_dense": (_FACTORIES, "local_scalar_dense"),
    "random_": (_FACTORIES, "random_"),
    "random_.from": (_FACTORIES, "random_"),
    "record_stream": (_FACTORIES, "record_stream"),
    "_thnn_fused_lstm_cell": (_RECURRENT, "lstm_cell"),
    "_thnn_fused_lstm_cell_backward_impl": (_RECURRENT, "lstm_cell_backward"),
    "_thnn_fused_gru_cell": (_RECURRENT, "gru_cell"),
    "_thnn_fused_gru_cell_backward": (_RECURRENT, "gru_cell_backward"),
    "resize_": ("spyre.torch_backend.tensors.storages", "resize_tensor"),
}
"""Module and function by aten name and overload."""


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
