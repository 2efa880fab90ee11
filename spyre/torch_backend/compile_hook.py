"""Puts the compiler backend into Inductor when Inductor is first imported, and not before.

`autoload` runs with every ``import torch`` and may not load Inductor. So it leaves a finder on
``sys.meta_path`` that waits for Inductor's entry module and goes when it has come.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

ENTRY = "torch._inductor.compile_fx"
BACKEND = "spyre.torch_backend.inductor.registration"


def install_on_use() -> None:
    """Register the backend with Inductor's entry module: now if it is there, else on import."""
    if ENTRY in sys.modules:
        importlib.import_module(BACKEND).install()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the entry module as everybody else does, with a loader that installs the backend."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec, if it is the entry module."""
        if fullname != ENTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module with ``loader``, then installs the backend."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the loader does; then the backend is imported, which imports the module."""
        self.loader.exec_module(module)
        importlib.import_module(BACKEND).install()
