"""Selection of the PrivateUse1 backend: this package's device, or torch-spyre on the simulator.

``import torch`` runs `autoload`, an entry point of group ``torch.backends``. With
SPYRE_FRONTEND=torch-spyre it installs a finder for ``torch_spyre._C`` and lets torch-spyre register
its device; this package's device is then not registered. Only the variable decides, so the order of
entry points does not matter.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from spyre import config
from spyre.errors import LaunchError

TORCH_SPYRE = "torch-spyre"
PACKAGE = "torch_spyre"
EXTENSION = f"{PACKAGE}._C"
_CHOICES = ("spyre", TORCH_SPYRE)


def autoload() -> None:
    """Entry point of ``import torch``: register the device of the frontend in SPYRE_FRONTEND.

    LaunchError SPY990 for another name, SPY991 where torch-spyre cannot be imported, SPY992 where
    another package has registered PrivateUse1.
    """
    chosen = config.FRONTEND.read()
    if chosen not in _CHOICES:
        raise LaunchError(
            "SPY990",
            f"SPYRE_FRONTEND names no frontend: {chosen!r}",
            expected=" or ".join(_CHOICES),
            found=chosen,
        )
    if chosen == TORCH_SPYRE:
        _load()
        return
    from spyre.torch_backend import autoload as load_own

    load_own()


def activate() -> None:
    """Have torch-spyre own the device of this process and of those it starts.

    Before ``import torch``, or after it where no device was registered. Errors as of `autoload`.
    """
    os.environ[config.FRONTEND.name] = TORCH_SPYRE
    if "torch" in sys.modules:
        _load()


def is_active() -> bool:
    """Whether ``torch_spyre._C`` of this process is this package's."""
    spec = getattr(sys.modules.get(EXTENSION), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), _ExtensionImporter)


def _load() -> None:
    if is_active():
        return
    _check_free()
    install_finder()
    package = _imported_package()
    package._autoload()


def _check_free() -> None:
    """SPY992."""
    from spyre.torch_backend import compat

    owner = compat.private_use_name()
    if owner != "privateuseone" or EXTENSION in sys.modules:
        raise LaunchError(
            "SPY992",
            "torch-spyre cannot have the device: PrivateUse1 is taken",
            expected="a process in which no device was registered before",
            found=f"the device {owner!r}"
            + (", and a compiled torch_spyre._C" if EXTENSION in sys.modules else ""),
            hint="set SPYRE_FRONTEND=torch-spyre before torch is imported",
        )


def _imported_package() -> Any:
    """torch-spyre; SPY991."""
    try:
        package = importlib.import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        raise LaunchError(
            "SPY991",
            "torch-spyre is selected but not installed",
            expected=f"a package {PACKAGE}",
            hint="python -m spyre.frontend install PATH, with the path of a checkout",
        ) from None
    if not hasattr(package, "_autoload"):
        raise LaunchError(
            "SPY991",
            "torch-spyre is being imported before torch, and cannot register itself half loaded",
            expected="import torch first",
        )
    return package


def _follow_python_3_12() -> None:
    """torch-spyre warns in the form of Python 3.12; on 3.11 that has to be understood."""
    if sys.version_info >= (3, 12):
        return
    original = warnings.warn

    @functools.wraps(original)
    def warn(
        message: Any,
        category: Any = None,
        stacklevel: int = 1,
        source: Any = None,
        *,
        skip_file_prefixes: tuple[str, ...] = (),
    ) -> None:
        if skip_file_prefixes:
            stacklevel = _level_outside(skip_file_prefixes)
        original(message, category, stacklevel + 1, source)

    warnings.warn = warn
    from spyre.torch_backend import compat

    compat.let_script_call(warn, "aten::warn")


def _level_outside(prefixes: tuple[str, ...]) -> int:
    """How far above the caller of ``warn`` the first frame in none of these files is."""
    frame, level = sys._getframe(2), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(prefixes):
        frame, level = frame.f_back, level + 1
    return level


# --- the finder -----------------------------------------------------------------------------------


def install_finder() -> None:
    """``import torch_spyre._C`` finds this package's module from now on, and no compiled one.

    Where torch-spyre is installed by `spyre.frontend.install`, every process with
    SPYRE_FRONTEND=torch-spyre begins with this: torch-spyre's modules can be imported without
    `autoload` (TORCH_DEVICE_BACKEND_AUTOLOAD=0) too.
    """
    if not any(isinstance(finder, _ExtensionImporter) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ExtensionImporter())


class _ExtensionImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``torch_spyre._C``: an ordinary module, which it fills."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for ``torch_spyre._C``, None for all other names."""
        if fullname != EXTENSION:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin="spyre.frontend")

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from spyre.frontend.extension import populate
        from spyre.frontend.kernels import guard_storage_offsets

        _follow_python_3_12()
        populate(module)
        if config.GUARD_OFFSETS.read() != "0":
            guard_storage_offsets()
