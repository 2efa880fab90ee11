"""Notes on a compilation, for the observer behind `spyre.explain` and for SPYRE_KEEP's files.

An observer gets the notes of the thread that it was set in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from spyre import config

Notes = Mapping[str, str]
"""Text about a kernel by file name."""
NO_NOTES: Notes = MappingProxyType({})
DIVISIONS_FILE = "divisions.txt"
LX_FILE = "lx.txt"
SIZES_FILE = "sizes.txt"
TILING_FILE = "tiling.txt"
LAYOUTS_FILE = "layouts.txt"
TILING_REPORT = "tiling_report"
"""Attribute of an ir.Operation: why automatic tiling chose its loops."""


@dataclass(frozen=True, slots=True)
class ObservedText:
    """The text of a graph at a ``stage`` of compilation."""

    stage: str
    text: str


FX_GRAPH = "FX graph"
"""Stage: the FX graph that Inductor lowers."""
OPERATIONS = "ir.Operations"
"""Stage: the ir.Operations that the scheduler gets."""

_observer: ContextVar[list[Any] | None] = ContextVar("observer", default=None)


def is_observed() -> bool:
    """Whether this thread has an observer."""
    return _observer.get() is not None


def wants_notes() -> bool:
    """Whether kernels need notes, for an observer or for SPYRE_KEEP."""
    return is_observed() or config.keep_directory() is not None


def note(item: Any) -> None:
    """Hand an `ObservedText` or a kernel to this thread's observer, if there is one."""
    observer = _observer.get()
    if observer is not None:
        observer.append(item)


@contextmanager
def observing() -> Iterator[list[Any]]:
    """Collect the notes of this block, in order."""
    notes: list[Any] = []
    token = _observer.set(notes)
    try:
        yield notes
    finally:
        _observer.reset(token)
