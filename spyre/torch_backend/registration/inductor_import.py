"""Puts the compiler backend into Inductor when that is first imported, and not before.

A finder on ``sys.meta_path`` waits for Inductor's entry module, and for its config, which knows the
options of ``torch.compile``; it is removed when both have come.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

PACKAGE = "spyre.torch_backend.inductor"
INSTALLERS = {
    "torch._inductor.config": f"{PACKAGE}.config",
    "torch._inductor.compile_fx": f"{PACKAGE}.hooks.registration",
}
"""Modules with a function ``install``, by the module of torch they wait for."""


def install_on_use() -> None:
    """Register the backend with Inductor's modules: now with those there are, else on import."""
    if any(isinstance(finder, _InductorFinder) for finder in sys.meta_path):
        return
    awaited = {name for name in INSTALLERS if name not in sys.modules}
    if awaited:
        sys.meta_path.insert(0, _InductorFinder(awaited))
    for name in INSTALLERS:
        if name not in awaited:
            _install(name)


def _install(name: str) -> None:
    importlib.import_module(INSTALLERS[name]).install()


class _InductorFinder(importlib.abc.MetaPathFinder):
    """Finds modules as everybody else does, with a loader that installs what waits for them."""

    def __init__(self, awaited: set[str]) -> None:
        self.awaited = awaited

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec, if it is awaited."""
        if fullname not in self.awaited:
            return None
        self.awaited.remove(fullname)
        if not self.awaited:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _InductorLoader(spec.loader)
        return spec


class _InductorLoader(importlib.abc.Loader):
    """Loads a module with ``loader``, then installs what waits for it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the loader does; then ``install`` runs, which may import the module."""
        self.loader.exec_module(module)
        _install(module.__name__)
