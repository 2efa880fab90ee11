"""A recorder looks at operations instead of running them: the compiler, while it decomposes aten.

A recorder belongs to the thread that set it.
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
"""(name, lowering, operands, parameters, target) → the results, of whatever kind of tensor.

``target``: what the one result would be written to, whose strides it takes.
"""


class NotRecorded(Exception):
    """What would run now, on the CPU or by other aten operations, is no device operation."""


_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)

current_recorder: Callable[[], Recorder | None] = _recorder.get
"""The recorder of the calling thread; asked on every eager operation, so without a frame in Python.
"""


@contextmanager
def recorded_by(recorder: Recorder | None) -> Iterator[None]:
    """A block in which operations of this thread are given to ``recorder``, and none runs; with
    None they do.
    """
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)
