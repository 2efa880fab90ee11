"""Functions of a sweep, found by module name or by file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from spyre.errors import SweepError
from spyre.sweep.subjects import FunctionSubject


def load_function(subject: FunctionSubject) -> Callable[..., Any]:
    """What is compiled. SweepError SPY744 if there is no such module or function."""
    module = _module(subject)
    function = getattr(module, subject.function, None)
    if not callable(function):
        raise SweepError(
            "SPY744",
            f"{subject.module} has no function {subject.function}",
            found=", ".join(name for name in vars(module) if not name.startswith("_")),
        )
    found: Callable[..., Any] = function
    return found


def _module(subject: FunctionSubject) -> ModuleType:
    if not subject.is_file:
        try:
            return importlib.import_module(subject.module)
        except ModuleNotFoundError as error:
            raise SweepError(
                "SPY744", f"there is no module {subject.module}", found=str(error)
            ) from error
    name = f"spyre_sweep_{Path(subject.module).stem}"
    spec = importlib.util.spec_from_file_location(name, subject.module)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dynamo imports it by this name
    spec.loader.exec_module(module)
    return module
