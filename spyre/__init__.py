"""spyre: the open, hardware-free IBM Spyre accelerator.

`run` runs a bundle, `load_bundle` reads one, `load_ktir` reads a KTIR program, `Device` is a card,
`errors` holds the exceptions.
`FlexDevice` is a card with streams; `prepare_kernel` and `launch_kernel` run kernels on it.
`explain` shows how a function is compiled for the PyTorch device, `profile` models the time of a
run on a card.
Every name is imported on first use: ``import spyre`` loads neither numpy nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spyre import errors as errors
    from spyre.errors import SpyreError as SpyreError
    from spyre.hw.device import Device as Device
    from spyre.hw.numerics import Numerics as Numerics
    from spyre.mlir.bundle import Bundle as Bundle, load_bundle as load_bundle
    from spyre.mlir.tiles import KtirProgram as KtirProgram, load_ktir as load_ktir
    from spyre.runtime.flex import (
        Event as Event,
        FlexDevice as FlexDevice,
        launch_jobplan as launch_jobplan,
        launch_kernel as launch_kernel,
        prepare_kernel as prepare_kernel,
    )
    from spyre.runtime.memory import SpyreTensor as SpyreTensor
    from spyre.runtime.profile.profile import profile as profile
    from spyre.runtime.run import RunResult as RunResult, Session as Session, run as run

__version__ = "0.1.0"

_EXPORTS = {
    "Bundle": "spyre.mlir.bundle",
    "Device": "spyre.hw.device.device",
    "Event": "spyre.runtime.flex.stream",
    "FlexDevice": "spyre.runtime.flex.device",
    "KtirProgram": "spyre.mlir.tiles.program",
    "Numerics": "spyre.hw.numerics",
    "RunResult": "spyre.runtime.run.session",
    "Session": "spyre.runtime.run.session",
    "SpyreError": "spyre.errors",
    "SpyreTensor": "spyre.runtime.memory.allocator",
    "explain": "spyre.torch_backend.inductor.explain",
    "first_wrong": "spyre.torch_backend.torch_reference",
    "launch_jobplan": "spyre.runtime.flex.prepare",
    "launch_kernel": "spyre.runtime.flex.prepare",
    "load_bundle": "spyre.mlir.bundle",
    "load_ktir": "spyre.mlir.tiles.program",
    "prepare_kernel": "spyre.runtime.flex.prepare",
    "profile": "spyre.runtime.profile.profile",
    "run": "spyre.runtime.run.session",
}

__all__ = [
    "Bundle",
    "Device",
    "Event",
    "FlexDevice",
    "KtirProgram",
    "Numerics",
    "RunResult",
    "Session",
    "SpyreError",
    "SpyreTensor",
    "__version__",
    "errors",
    "explain",
    "first_wrong",
    "launch_jobplan",
    "launch_kernel",
    "load_bundle",
    "load_ktir",
    "prepare_kernel",
    "profile",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("spyre.errors")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'spyre' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
