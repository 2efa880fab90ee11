"""Ctrl-C at a chosen moment: at a line of this package's Python, whichever it is."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec


class Moment(msgspec.Struct):
    """``number``: of the line that is interrupted, of those that run. ``lines``: so far."""

    number: int
    lines: int = 0

    @property
    def came(self) -> bool:
        return 0 < self.number <= self.lines


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt; processes in the background are started deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupted_at(number: int, package: str = "spyre.") -> Iterator[Moment]:
    """A block with Ctrl-C at line ``number`` that runs of modules of ``package``; 0: never."""
    moment = Moment(number)

    def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not frame.f_globals.get("__name__", "").startswith(package):
            return None
        moment.lines += 1
        if moment.lines == moment.number:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        yield moment
    finally:
        sys.settrace(None)
