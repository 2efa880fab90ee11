"""Whoever looks on while a function is compiled: `spyre.explain`.

What is noted goes to the observer of the same thread, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spyre import config
from spyre.torch_backend.thread_value import ThreadValue


@dataclass(frozen=True, slots=True)
class Graph:
    """An FX graph as Inductor lowers it, as text."""

    text: str


@dataclass(frozen=True, slots=True)
class Operations:
    """A graph's ir.Operations as the scheduler gets them, as text."""

    text: str


_found: ThreadValue[list[Any] | None] = ThreadValue(None)


def is_observed() -> bool:
    """Whether anybody looks on in this thread."""
    return _found.value is not None


def wants_notes() -> bool:
    """Whether kernels are to say for people how they came about."""
    return is_observed() or config.keep_directory() is not None


def note(what: Any) -> None:
    """Hand ``what`` (a `Graph`, `Operations`, or a kernel) to the observer; None is nothing."""
    if _found.value is not None and what is not None:
        _found.value.append(what)


@contextmanager
def observing() -> Iterator[list[Any]]:
    """What is noted in this block, in order."""
    found: list[Any] = []
    with _found.set_to(found):
        yield found
