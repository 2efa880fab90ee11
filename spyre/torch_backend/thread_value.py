"""`ThreadValue`: what a thread has set for the code it calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadValue(threading.local, Generic[T]):
    """A value per thread, ``value`` until a thread sets another for a block. For any thread."""

    def __init__(self, value: T) -> None:
        self.value = value

    @contextmanager
    def set_to(self, value: T) -> Iterator[None]:
        """This thread has ``value`` within the block."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before
