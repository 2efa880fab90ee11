"""Whoever looks at operations instead of running them: the compiler, while it decomposes aten.

A recorder belongs to the thread that set it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from spyre.torch_backend.thread_value import ThreadValue

Recorder = Callable[
    [str, Callable[..., Any], Sequence[Any], tuple[Any, ...], torch.Tensor | None],
    tuple[torch.Tensor, ...],
]
"""(name, lowering, operands, parameters, target) → the results, of whatever kind of tensor.

``target``: what the one result would be written to, whose strides it takes.
"""


class NotRecorded(Exception):
    """What would run now, on the CPU or by other aten operations, is no device operation."""


_current: ThreadValue[Recorder | None] = ThreadValue(None)


def current_recorder() -> Recorder | None:
    """The recorder of the calling thread."""
    return _current.value


def recorded_by(recorder: Recorder) -> AbstractContextManager[None]:
    """A block in which operations of this thread are given to ``recorder``, and none runs."""
    return _current.set_to(recorder)
