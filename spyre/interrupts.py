"""Deferred Ctrl-C, and finalizers that Ctrl-C cannot interrupt.

Python calls signal handlers between any two bytecodes, also within finalizers. `interrupts` defers
Ctrl-C around operations that must not stop halfway. `FinalizerQueue` queues the work of a finalizer
without running Python code.
"""

from __future__ import annotations

# Not ``signal``, which wraps it: its enums of handlers cost more time than everything else here.
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


class DeferredSigint:
    """Defers Ctrl-C in blocks: ``with interrupts:``, or `begin` and `end`; blocks nest.

    A signal that arrives meanwhile is remembered; its handler is called at the end of the outermost
    block, by `poll`, or in an `allowed` block. Only the main thread receives signals; in other
    threads nothing is done. Only the outermost block exchanges the handler, since that takes system
    calls.
    """

    def __init__(self) -> None:
        self._main: int | None = None
        self.find_main_thread()
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._owner: int | None = None  # the main thread, within blocks
        self._outer: list[bool] = []  # per block: whether signals were deferred around it
        self._defers = False
        self._pending = False
        self._receiver = self._receive  # every access makes another bound method

    def find_main_thread(self) -> None:
        """Update the main thread: in a forked child it is the thread that forked."""
        self._main = threading.main_thread().ident

    # Every operation on the card begins and ends a block, so each takes a single call.

    def begin(self) -> bool:
        """Defer signals; returns False if there is no Python handler, or on other threads."""
        thread = threading.get_ident()
        if self._owner is None:
            if thread != self._main:
                return False
            handler = _signal.getsignal(SIGINT)
            if not callable(handler):
                return False
            # Before the exchange, so that a signal right after it is remembered.
            self._defers, self._pending = True, False
            _signal.signal(SIGINT, self._receiver)
            self._outer.append(False)
            self._handler, self._owner = handler, thread
            return True
        if self._owner != thread:
            return False
        self._outer.append(self._defers)
        self._defers = True
        return True

    __enter__ = begin

    def end(self, *_: object) -> None:
        """End the innermost block, if any. The outermost one delivers a pending signal."""
        if self._owner != threading.get_ident():
            return
        handler, deferred_around = self._handler, self._outer.pop()
        if self._outer:
            self._defers = deferred_around
        else:
            self._handler, self._owner = None, None
            # A handler that was installed within the block stays.
            if _signal.getsignal(SIGINT) is self._receiver:
                _signal.signal(SIGINT, handler)
        if self._pending and not deferred_around:
            self._deliver(handler)

    __exit__ = end

    def poll(self) -> None:
        """Call the handler of a pending signal, at a point where interrupting is safe."""
        if self._pending and self._owner == threading.get_ident():
            self._deliver(self._handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """A block that may be interrupted anywhere, even if signals are deferred around it."""
        defers = self._defers and self._owner == threading.get_ident()
        if defers:
            self._defers = False
            self._deliver(self._handler)
        try:
            yield
        finally:
            if defers:
                self._defers = True

    def _deliver(self, handler: Callable[[int, FrameType | None], Any] | None) -> None:
        if self._pending and handler is not None:
            self._pending = False
            handler(SIGINT, None)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._defers or self._handler is None:
            self._pending = True
        else:
            self._handler(number, frame)


interrupts = DeferredSigint()
os.register_at_fork(after_in_child=interrupts.find_main_thread)


class _Finalizer(weakref.ref[Any], Generic[V]):
    """Weak reference to an object, with the value to queue when the object is collected."""

    __slots__ = ("key", "value")
    key: int
    value: V


class FinalizerQueue(Generic[V]):
    """Values registered for objects that have been collected. Any thread; takes no lock."""

    # A Python finalizer could be interrupted by Ctrl-C before its first line, and is not repeated.
    # The callback here is a method in C.
    def __init__(self) -> None:
        self.pending: deque[_Finalizer[V]] = deque()
        """Finalizers of collected objects; if empty, `drain` yields nothing."""
        self._registered: dict[int, _Finalizer[V]] = {}
        self._keys = count(1)

    def register(self, owner: object, value: V) -> int:
        """Let `drain` yield ``value`` once ``owner`` is collected; returns a key for `cancel`."""
        finalizer: _Finalizer[V] = _Finalizer(owner, self.pending.append)
        finalizer.value = value
        finalizer.key = key = next(self._keys)
        self._registered[key] = finalizer
        return key

    def cancel(self, key: int) -> V | None:
        """Unregister; returns the value, or None if it was drained or cancelled before."""
        finalizer = self._registered.pop(key, None)
        return None if finalizer is None else finalizer.value

    def drain(self) -> Iterator[V]:
        """The values of collected objects, each once."""
        while self.pending:
            try:
                finalizer = self.pending.popleft()
            except IndexError:  # another thread took it
                return
            if self._registered.pop(finalizer.key, None) is not None:
                yield finalizer.value
