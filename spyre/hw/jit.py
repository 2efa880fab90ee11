"""How kernels are compiled: numba options, an own cache directory, the entry signature.

numba's disk cache does not notice edits in other modules, so the cache directory is keyed by a
hash of all sources below ``spyre/hw``. The directory is set only while our functions are
decorated; a user's own numba functions keep theirs.
"""

from __future__ import annotations

import hashlib
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
def cache_directory() -> str:
    """Cache directory of this exact set of kernel sources and numba version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    digest.update(config.VECTOR_WIDTH.read().encode())
    return str(config.cache_directory() / f"kernels-{digest.hexdigest()[:16]}")


def _cached(decorate: Callable[[], Any]) -> Any:
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = cache_directory()
    try:
        return decorate()
    finally:
        numba.config.CACHE_DIR = previous


def kernel(function: F) -> F:
    """Compile a kernel body (arrays and integers only), cached on disk."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
    result: F = _cached(lambda: numba.njit(cache=True, fastmath=FASTMATH, **options)(function))
    return result


def inline(function: F) -> F:
    """Compile a small function that is inlined into the kernels calling it."""
    result: F = numba.njit(inline="always", fastmath=FASTMATH, error_model="numpy")(function)
    return result


def entry(function: F) -> Any:
    """Compile a kernel's C entry point with :data:`ENTRY_SIGNATURE`, cached on disk."""
    return _cached(lambda: numba.cfunc(ENTRY_SIGNATURE, nopython=True, cache=True)(function))
