"""Ctrl-C at any moment leaves nothing half done.

Python calls its signal handlers between any two lines, in finalizers too. What belongs together is
done with `interrupts` held off; what an object leaves behind when it is collected is noted by
`Departures` without a line of Python.
"""

from __future__ import annotations

# What ``signal`` wraps: making enums of handlers takes longer than all the rest here.
import _signal  # type: ignore[import-not-found]
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
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._owner: int | None = None  # the main thread, within blocks
        self._held: list[bool] = []  # per block: whether they were held off around it
        self._holds = False
        self._came = False

    def begin(self) -> bool:
        """Hold interrupts off; True if `end` is to be called. False where they are ignored or end
        the process.
        """
        if self._owner is None:
            return _in_main_thread() and self._take_place()
        if self._owner != threading.get_ident():
            return False
        self._held.append(self._holds)
        self._holds = True
        return True

    def _take_place(self) -> bool:
        handler = _signal.getsignal(SIGINT)
        if not callable(handler):
            return False
        # Before the exchange: what comes right after it is noted.
        self._holds, self._came = True, False
        _signal.signal(SIGINT, self._note)
        self._held.append(False)
        self._handler, self._owner = handler, threading.get_ident()
        return True

    def end(self) -> None:
        """End the innermost block; that of the outermost one calls the handler if need be."""
        handler, held = self._handler, self._held.pop()
        if self._held:
            self._holds = held
        else:
            self._handler, self._owner = None, None
            if _signal.getsignal(SIGINT) == self._note:  # else somebody installed one, which stays
                _signal.signal(SIGINT, handler)
        if not held:
            self._deliver(handler)

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

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        if self._owner == threading.get_ident():
            self.end()

    def _deliver(self, handler: Callable[[int, FrameType | None], Any] | None) -> None:
        if self._came and handler is not None:
            self._came = False
            handler(SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._holds or self._handler is None:
            self._came = True
        else:
            self._handler(number, frame)


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


interrupts = Interrupts()


class _Departure(weakref.ref[Any], Generic[V]):
    """Of one object: what is to be done about ``value`` when it is gone. ``key``: its number."""

    __slots__ = ("key", "value")
    key: int
    value: V


class Departures(Generic[V]):
    """Values of objects that have been collected. Any thread; collection takes no lock."""

    # A finalizer in Python may be hit by Ctrl-C before its first line, and is not called again.
    def __init__(self) -> None:
        self._gone: deque[_Departure[V]] = deque()
        self._awaited: dict[int, _Departure[V]] = {}
        self._keys = count(1)

    def watch(self, owner: object, value: V) -> int:
        """Have `taken` give ``value`` once ``owner`` is gone; a number for `cancel`."""
        departure: _Departure[V] = _Departure(owner, self._gone.append)
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
        while self._gone:
            try:
                departure = self._gone.popleft()
            except IndexError:  # another thread was faster
                return
            if self._awaited.pop(departure.key, None) is not None:
                yield departure.value

    def __bool__(self) -> bool:
        """True if objects are gone whose values nobody has taken."""
        return bool(self._gone)
