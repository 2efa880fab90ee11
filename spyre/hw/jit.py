"""How kernels are compiled: numba options, an own cache directory, the entry signature.

numba's disk cache does not notice edits in other modules, so the cache directory is keyed by a
hash of all sources below ``spyre/hw`` but the slow twin's. The directory is set only while our
functions are decorated; a user's own numba functions keep theirs.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from functools import lru_cache
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


@lru_cache(maxsize=1)
def cache_directory() -> str | None:
    """Cache directory of this exact set of kernel sources and numba version, made if missing.

    None, with one warning, where it cannot be made: kernels then compile anew in every process.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    here = Path(__file__).parent
    sources = (p for p in here.rglob("*.py") if here / "reference" not in p.parents)
    for path in sorted(sources):
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
    warnings.warn(
        f"compiled kernels cannot be kept ({reason}): every process compiles them again; "
        f"set {config.CACHE_DIR.name} to a writable directory",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _cached(decorate: Callable[[bool], Any]) -> Any:
    """``decorate(cache)`` with numba's cache in our directory, if there is one."""
    directory = cache_directory()
    if directory is None:
        return decorate(False)
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
        lambda cache: numba.njit(cache=cache, fastmath=FASTMATH, **options)(function)
    )
    return result


def inline(function: F) -> F:
    """Compile a small function that is inlined into the kernels calling it."""
    result: F = numba.njit(inline="always", fastmath=FASTMATH, error_model="numpy")(function)
    return result


def entry(function: F) -> Any:
    """Compile a kernel's C entry point with :data:`ENTRY_SIGNATURE`, cached on disk."""
    return _cached(lambda cache: numba.cfunc(ENTRY_SIGNATURE, nopython=True, cache=cache)(function))
