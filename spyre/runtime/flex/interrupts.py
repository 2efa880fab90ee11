"""Ctrl-C waits while the scheduler keeps its books.

An interrupt between two lines that belong together would leave engines taken that nobody gives
back. `scheduler` holds interrupts off there, and lets them in while a unit runs or a thread waits.
"""

from __future__ import annotations

# What ``signal`` wraps: making enums of handlers takes longer than all the rest here.
import _signal  # type: ignore[import-not-found]
import threading
from collections.abc import Callable
from signal import SIGINT
from types import FrameType
from typing import Any


class Interrupts:
    """Those of the process. Only the main thread gets any; in others the methods do nothing."""

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._came = False

    def hold_off(self) -> None:
        """Note interrupts from now on. Nothing where they are ignored or end the process."""
        if self._handler is not None or not _in_main_thread():
            return
        handler = _signal.getsignal(SIGINT)
        if callable(handler):
            _signal.signal(SIGINT, self._note)
            self._handler = handler

    def let_in(self) -> None:
        """Call the handler for what came meanwhile, and from now on at once."""
        handler = self._handler
        if handler is None or not _in_main_thread():
            return
        self._handler = None
        _signal.signal(SIGINT, handler)
        if self._came:
            self._came = False
            handler(SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


interrupts = Interrupts()
