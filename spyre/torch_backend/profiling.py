"""Ranges of ``torch.profiler`` around launches and copies.

A range is on the thread that enqueues; what the card does is in :mod:`.traces`. Any thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

from spyre.torch_backend.compat import ProfilerRange, profiler_is_on

P = ParamSpec("P")
R = TypeVar("R")

TO_CARD = "spyre::copy to card"
TO_HOST = "spyre::copy to host"
ON_CARD = "spyre::copy on card"
_NOTHING = nullcontext()


def launch_range(name: str) -> str:
    """What the range of a program is called."""
    return f"spyre::{name}"


def profiled(name: str) -> AbstractContextManager[Any]:
    """A range ``name`` of the profiler, if one runs."""
    if profiler_is_on():
        found: AbstractContextManager[Any] = ProfilerRange(name)
        return found
    return _NOTHING


def in_range(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The function with a range around every call."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not profiler_is_on():
                return function(*args, **kwargs)
            with ProfilerRange(name):
                return function(*args, **kwargs)

        return call

    return decorate
