"""`LruCache`: a cache of bounded size whose hits are as fast as those of a dict."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Keeps at least the ``limit`` / 2 entries used last, and at most ``limit``. Any thread.

    Values are never None. ``evicted`` is called with every value that goes for want of room.
    """

    # An exact order of use would need a write to shared state at every hit. Two generations do not:
    # used values move to the young one; when it is full it becomes the old one, and the values left
    # in the former old one are dropped.

    def __init__(self, limit: int, evicted: Callable[[V], object] | None = None) -> None:
        self.limit = limit
        self._evicted = evicted
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        # Reentrant: evicting a value may run a finalizer that uses this cache.
        self._lock = threading.RLock()

    def get(self, key: K) -> V | None:
        """Return the value of ``key``, now used last; None if it is missing."""
        value = self._young.get(key)
        return value if value is not None else self._promoted(key)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of ``key``, making it if it is missing.

        No lock is held meanwhile: several threads may make it, and all get the first one's.
        """
        value = self.get(key)
        if value is not None:
            return value
        made = make()
        with self._lock:
            value = self.get(key)
            if value is None:
                self.put(key, made)
        return made if value is None else value

    def put(self, key: K, value: V) -> None:
        """Keep ``value``, used last."""
        evicted: dict[K, V] = {}
        with self._lock:
            self._old.pop(key, None)
            self._young[key] = value
            if len(self._young) >= max(self.limit // 2, 1):
                evicted, self._old, self._young = self._old, self._young, {}
        if self._evicted is not None:
            for old_value in evicted.values():
                self._evicted(old_value)
        evicted.clear()

    def _promoted(self, key: K) -> V | None:
        with self._lock:
            value = self._young.get(key)  # another thread may have promoted it meanwhile
            if value is None:
                value = self._old.get(key)
                if value is not None:
                    self.put(key, value)
            return value

    def clear(self) -> None:
        """Forget everything; nothing counts as evicted."""
        with self._lock:
            self._young, self._old = {}, {}

    def values(self) -> Iterator[V]:
        """All values, in the order in which they were put."""
        with self._lock:
            return iter([*self._old.values(), *self._young.values()])

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
