"""`RecentlyUsed`: a dict of bounded size whose hits cost what a dict's do."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """Keeps at least the ``limit`` / 2 entries used last, and at most ``limit``. Any thread.

    Two generations: what is used is in the young one, and when that is full it becomes the old one,
    whose unused entries go. Values are never None.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._lock = threading.RLock()
        """Reentrant: what goes may be the last owner of something whose finalizer comes back."""

    def get(self, key: K) -> V | None:
        """The value of ``key``, now used last; None if it is not there."""
        found = self._young.get(key)
        return found if found is not None else self._promoted(key)

    def put(self, key: K, value: V) -> None:
        """Keep ``value``, used last."""
        gone: dict[K, V] = {}
        with self._lock:
            self._old.pop(key, None)
            self._young[key] = value
            if len(self._young) >= max(self.limit // 2, 1):
                gone, self._old, self._young = self._old, self._young, {}
        gone.clear()

    def _promoted(self, key: K) -> V | None:
        with self._lock:
            found = self._young.get(key)
            if found is None:
                found = self._old.get(key)
                if found is not None:
                    self.put(key, found)
            return found

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._young, self._old = {}, {}

    def values(self) -> Iterator[V]:
        """All values; what was put last comes last."""
        with self._lock:
            return iter([*self._old.values(), *self._young.values()])

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
