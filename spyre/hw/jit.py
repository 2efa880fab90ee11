"""How kernels are compiled: numba options, an own cache directory, the entry signature.

numba's disk cache does not notice edits in other modules, so every module's functions are cached in
a directory keyed by a hash of that module and all modules of this package it imports, directly or
not. The directory is set only while our functions are decorated; a user's own numba functions keep
theirs.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import types

from spyre import config

F = TypeVar("F", bound=Callable[..., Any])

FASTMATH = {"contract", "nsz", "arcp"}
"""No 'nnan'/'ninf': infinities are values of the device."""

ENTRY_SIGNATURE = types.int64(*([types.int64] * 6))
"""entry(table, bases, memory, scratch: pointers; first, last: units) -> 0 or fault word."""


_numba_config = threading.RLock()
"""Held while numba's process-wide configuration differs: threads may import kernels at once."""
_IMPORT = re.compile(r"^from (spyre[\w.]*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


@cache
def _imports(module: str) -> tuple[str, ...]:
    """Modules of this package that the source of ``module`` names in its import statements."""
    found: list[str] = []
    for name, in_brackets, on_line in _IMPORT.findall(_source(module).read_text()):
        members = re.findall(r"\w+(?= as |,|$|\s)", in_brackets or on_line)
        inner = (f"{name}.{member}" for member in members)
        found += [name, *(m for m in inner if _source(m).exists())]
    return tuple(dict.fromkeys(found))


def _source(module: str) -> Path:
    base = Path(__file__).parents[2].joinpath(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def imported_sources(module: str) -> tuple[Path, ...]:
    """Source of ``module`` and of everything it imports from this package, sorted."""
    seen, rest = {module}, [module]
    while rest:
        new = [name for name in _imports(rest.pop()) if name not in seen]
        seen.update(new)
        rest += new
    return tuple(sorted(_source(name) for name in seen))


@cache
def cache_directory(module: str) -> str | None:
    """Cache directory of ``module`` with its sources and this numba version, made if missing.

    None, with one warning, where it cannot be made: kernels then compile anew in every process.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for path in imported_sources(module):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    digest.update(config.VECTOR_WIDTH.read().encode())
    try:
        directory = config.cache_directory() / f"kernels-{digest.hexdigest()[:16]}"
        directory.mkdir(parents=True, exist_ok=True)
        usable = os.access(directory, os.W_OK | os.X_OK)
        reason = "not writable"
    except (OSError, RuntimeError) as error:  # no home directory is a RuntimeError
        usable, reason = False, str(error)
    if usable:
        return str(directory)
    _warn_uncached(reason)
    return None


@cache
def _warn_uncached(reason: str) -> None:
    """Once per reason, not once per module."""
    warnings.warn(
        f"compiled kernels cannot be kept ({reason}): every process compiles them again; "
        f"set {config.CACHE_DIR.name} to a writable directory",
        RuntimeWarning,
        stacklevel=2,
    )


def _cached(function: Callable[..., Any], decorate: Callable[[bool], Any]) -> Any:
    """``decorate(cache)`` with numba's cache in the directory of ``function``, if there is one."""
    inside = function.__module__.partition(".")[0] == __package__.partition(".")[0]
    directory = cache_directory(function.__module__) if inside else None
    if directory is None:
        return decorate(False)
    with _numba_config:
        previous = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = directory
        try:
            return decorate(True)
        finally:
            numba.config.CACHE_DIR = previous


def kernel(function: F) -> F:
    """Compile a kernel body (arrays and integers only), cached on disk."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
    result: F = _cached(
        function, lambda cache: numba.njit(cache=cache, fastmath=FASTMATH, **options)(function)
    )
    return result


def inline(function: F) -> F:
    """Compile a small function that is inlined into the kernels calling it."""
    result: F = numba.njit(inline="always", fastmath=FASTMATH, error_model="numpy")(function)
    return result


def entry(function: F) -> Any:
    """Compile a kernel's C entry point with :data:`ENTRY_SIGNATURE`, cached on disk."""
    return _cached(
        function,
        lambda cache: numba.cfunc(ENTRY_SIGNATURE, nopython=True, cache=cache)(function),
    )
