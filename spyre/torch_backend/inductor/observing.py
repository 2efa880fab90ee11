"""Whoever looks on while a function is compiled: `spyre.explain`.

What is noted goes to the observer of the same thread, if there is one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spyre import config


@dataclass(frozen=True, slots=True)
class Graph:
    """An FX graph as Inductor lowers it, as text."""

    text: str


@dataclass(frozen=True, slots=True)
class Operations:
    """A graph's ir.Operations as the scheduler gets them, as text."""

    text: str


class _Current(threading.local):
    found: list[Any] | None = None


_current = _Current()


def is_observed() -> bool:
    """Whether anybody looks on in this thread."""
    return _current.found is not None


def wants_notes() -> bool:
    """Whether kernels are to say for people how they came about."""
    return is_observed() or config.keep_directory() is not None


def note(what: Any) -> None:
    """Hand ``what`` (a `Graph`, `Operations`, or a kernel) to the observer; None is nothing."""
    if _current.found is not None and what is not None:
        _current.found.append(what)


@contextmanager
def observing() -> Iterator[list[Any]]:
    """What is noted in this block, in order."""
    before, _current.found = _current.found, []
    try:
        yield _current.found
    finally:
        _current.found = before
