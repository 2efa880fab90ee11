"""Recorders, which record operations instead of running them while the compiler decomposes aten.

A recorder is active for the thread that set it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

Recorder = Callable[
    [str, Callable[..., Any], Sequence[Any], tuple[Any, ...], torch.Tensor | None],
    tuple[torch.Tensor, ...],
]
"""(name, lowering, operands, parameters, target) → the results, as tensors of the recorder's kind.

``target``: tensor that the only result would be written to; the result gets its strides.
"""


class NotRecorded(Exception):
    """The call is not a device operation: it runs on the CPU or as other aten operations."""


_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)

current_recorder: Callable[[], Recorder | None] = _recorder.get
"""The recorder of the calling thread. Every eager operation calls it, so it is a C function."""


@contextmanager
def recorded_by(recorder: Recorder | None) -> Iterator[None]:
    """Pass this thread's operations in the block to ``recorder``; with None they run."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)
