"""spyre: the open, hardware-free IBM Spyre accelerator.

`run` runs a bundle, `load_bundle` reads one, `Device` is a card, `errors` holds what can go wrong.
Everything is imported on first use: ``import spyre`` itself loads neither numpy nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spyre import errors as errors
    from spyre.errors import SpyreError as SpyreError
    from spyre.hw.device import Device as Device
    from spyre.hw.numerics import Numerics as Numerics
    from spyre.mlir.bundle import Bundle as Bundle
    from spyre.mlir.bundle import load_bundle as load_bundle
    from spyre.runtime.run_result import RunResult as RunResult
    from spyre.runtime.session import Session as Session
    from spyre.runtime.session import run as run

__version__ = "0.1.0"

_EXPORTS = {
    "Bundle": "spyre.mlir.bundle",
    "Device": "spyre.hw.device",
    "Numerics": "spyre.hw.numerics",
    "RunResult": "spyre.runtime.run_result",
    "Session": "spyre.runtime.session",
    "SpyreError": "spyre.errors",
    "load_bundle": "spyre.mlir.bundle",
    "run": "spyre.runtime.session",
}

__all__ = [
    "Bundle",
    "Device",
    "Numerics",
    "RunResult",
    "Session",
    "SpyreError",
    "__version__",
    "errors",
    "load_bundle",
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
