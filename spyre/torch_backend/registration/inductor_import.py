"""Installs the compiler backend when Inductor is first imported.

A finder on ``sys.meta_path`` intercepts the imports of Inductor's entry module and of its config,
which defines the options of ``torch.compile``; after both it is removed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

PACKAGE = "spyre.torch_backend.inductor"
INSTALLERS = {
    "torch._inductor.config": f"{PACKAGE}.config",
    "torch._inductor.compile_fx": f"{PACKAGE}.hooks.registration",
}
"""Modules whose ``install`` runs after the import of a module of torch, by its name."""


def install_on_use() -> None:
    """Install the backend in Inductor's modules: now in loaded ones, in others at their import."""
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
    """Finds awaited modules through the other finders; their installers run after their import."""

    def __init__(self, awaited: set[str]) -> None:
        self.awaited = awaited

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's spec if it is awaited."""
        if fullname not in self.awaited:
            return None
        self.awaited.remove(fullname)
        if not self.awaited:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = _then_install(spec.loader.exec_module)
        return spec


def _then_install(execute: Callable[[ModuleType], object]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        _install(module.__name__)  # which may import the module

    return exec_module
