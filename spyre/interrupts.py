"""Ctrl-C at any moment leaves nothing half done.

Python calls its signal handlers between any two lines, in finalizers too. What belongs together is
done with `interrupts` held off; what an object leaves behind when it is collected is noted by
`Departures` without a line of Python.
"""

from __future__ import annotations

# What ``signal`` wraps: making enums of handlers takes longer than all the rest here.
import _signal  # type: ignore[import-not-found]
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from signal import SIGINT
from types import FrameType
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Interrupts:
    """Holds Ctrl-C off: ``with interrupts:``, or `begin` and `end`; they nest.

    What comes meanwhile is noted, and the handler called at the end of the outermost block, by
    `poll`, or in an `allowed` block. Only the main thread gets any; in others nothing is done.
    The handler is exchanged by the outermost block alone: that takes system calls.
    """

    def __init__(self) -> None:
        self._main: int | None = None
        self.find_main_thread()
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._owner: int | None = None  # the main thread, within blocks
        self._held: list[bool] = []  # per block: whether they were held off around it
        self._holds = False
        self._came = False

    def find_main_thread(self) -> None:
        """It is another one in a child that was forked by another."""
        self._main = threading.main_thread().ident

    # Every operation on the card begins and ends a block: there is one call for each.

    def begin(self) -> bool:
        """Hold interrupts off; False where they are ignored or end the process."""
        thread = threading.get_ident()
        if self._owner is None:
            return thread == self._main and self._take_place(thread)
        if self._owner != thread:
            return False
        self._held.append(self._holds)
        self._holds = True
        return True

    __enter__ = begin

    def _take_place(self, thread: int) -> bool:
        handler = _signal.getsignal(SIGINT)
        if not callable(handler):
            return False
        # Before the exchange: what comes right after it is noted.
        self._holds, self._came = True, False
        _signal.signal(SIGINT, self._note)
        self._held.append(False)
        self._handler, self._owner = handler, thread
        return True

    def end(self, *_: object) -> None:
        """End the innermost block, if it has begun; that of the outermost one calls the handler if
        need be.
        """
        if self._owner != threading.get_ident():
            return
        handler, held = self._handler, self._held.pop()
        if self._held:
            self._holds = held
        else:
            self._handler, self._owner = None, None
            if _signal.getsignal(SIGINT) == self._note:  # else somebody installed one, which stays
                _signal.signal(SIGINT, handler)
        if self._came and not held:
            self._deliver(handler)

    __exit__ = end

    def poll(self) -> None:
        """Call the handler for what has come: here it does no harm."""
        if self._came and self._owner == threading.get_ident():
            self._deliver(self._handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """A block that may be interrupted at any line, whatever holds interrupts off around it."""
        held = self._holds and self._owner == threading.get_ident()
        if held:
            self._holds = False
            self._deliver(self._handler)
        try:
            yield
        finally:
            if held:
                self._holds = True

    def _deliver(self, handler: Callable[[int, FrameType | None], Any] | None) -> None:
        if self._came and handler is not None:
            self._came = False
            handler(SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._holds or self._handler is None:
            self._came = True
        else:
            self._handler(number, frame)


interrupts = Interrupts()
os.register_at_fork(after_in_child=interrupts.find_main_thread)


class _Departure(weakref.ref[Any], Generic[V]):
    """Of one object: what is to be done about ``value`` when it is gone. ``key``: its number."""

    __slots__ = ("key", "value")
    key: int
    value: V


class Departures(Generic[V]):
    """Values of objects that have been collected. Any thread; collection takes no lock."""

    # A finalizer in Python may be hit by Ctrl-C before its first line, and is not called again.
    def __init__(self) -> None:
        self.gone: deque[_Departure[V]] = deque()
        """Empty where `taken` has nothing to give."""
        self._awaited: dict[int, _Departure[V]] = {}
        self._keys = count(1)

    def watch(self, owner: object, value: V) -> int:
        """Have `taken` give ``value`` once ``owner`` is gone; a number for `cancel`."""
        departure: _Departure[V] = _Departure(owner, self.gone.append)
        departure.value = value
        departure.key = key = next(self._keys)
        self._awaited[key] = departure
        return key

    def cancel(self, key: int) -> V | None:
        """The value that `taken` will not give now; None if it has, or was cancelled before."""
        departure = self._awaited.pop(key, None)
        return None if departure is None else departure.value

    def taken(self) -> Iterator[V]:
        """The values of objects that are gone, each once."""
        while self.gone:
            try:
                departure = self.gone.popleft()
            except IndexError:  # another thread was faster
                return
            if self._awaited.pop(departure.key, None) is not None:
                yield departure.value
