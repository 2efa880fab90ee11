"""Which operating system threads run this thread's parallel regions."""

from __future__ import annotations

from typing import Any

from numba import prange, types

from spyre.hw.jit import parallel

_gettid = types.ExternalFunction("gettid", types.int32())


@parallel
def record_thread_ids(ids: Any) -> None:
    """ids[t] = kernel thread id of the thread that runs share t."""
    for t in prange(ids.size):
        ids[t] = _gettid()
