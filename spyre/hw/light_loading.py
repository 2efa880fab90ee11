"""Loading our compiled kernels without numba's whole library of implementations.

Before it loads anything from its disk cache, numba imports and installs every implementation it
could compile with: 0.2 seconds that a kernel which is already machine code has no use for. Ours
refer to arrays, integers and the reference-counting runtime only. What a kernel needs is fixed by
its code and numba's version, so this is done for the versions it was tested with (a missing symbol
would end the process). Whatever has to be compiled is compiled as always.
"""

from __future__ import annotations

from typing import Any

import numba
from numba.core.runtime import rtsys

TESTED_VERSIONS = ("0.68.1",)


def load_lightly(cache: Any) -> None:
    """Let the disk cache of one function load without the implementations, where that is safe.

    ``cache``: the function's `numba.core.caching.FunctionCache`.
    """
    if numba.__version__ not in TESTED_VERSIONS:
        return

    def load_overload(signature: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        with cache._guard_against_spurious_io_errors():
            found = cache._load_overload(signature, target_context)
        if found is None:
            target_context.refresh()
        return found

    cache.load_overload = load_overload
