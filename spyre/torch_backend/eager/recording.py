"""Whoever looks at operations instead of running them: the compiler, while it decomposes aten.

A recorder belongs to the thread that set it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from spyre.torch_backend.eager.operands import Operand

Recorder = Callable[
    [str, Callable[..., Any], Sequence[Operand], tuple[Any, ...], torch.Tensor | None],
    tuple[torch.Tensor, ...],
]
"""(name, lowering, operands, parameters, target) → the results, of whatever kind of tensor.

``target``: what the one result would be written to, whose strides it takes.
"""


class NotRecorded(Exception):
    """What would run now, on the CPU or by other aten operations, is no device operation."""


class _Current(threading.local):
    recorder: Recorder | None = None


_current = _Current()


def current_recorder() -> Recorder | None:
    """The recorder of the calling thread."""
    return _current.recorder


@contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    """Operations of this thread are given to ``recorder``, and none runs."""
    before, _current.recorder = _current.recorder, recorder
    try:
        yield
    finally:
        _current.recorder = before
