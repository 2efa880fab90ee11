"""What torch tensors hold of a card's memory: the numbers of ``torch.spyre.memory_stats``.

Programs, constants and scratch memory of eager kernels are not counted: they belong to the
backend, and `FlexAllocator.statistics` shows them with everything else.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from spyre.hw.spec import STICK_BYTES

if TYPE_CHECKING:
    from spyre.runtime.flex.flex_device import FlexDevice


class TensorMemory:
    """Counters of one card. Any thread; `give_back` may be called by finalizers at any moment."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._given_back: deque[int] = deque()
        self._out_of_memory = 0
        self._bytes = self._peak_bytes = self._total_bytes = 0
        self._count = self._peak_count = self._total_count = 0

    def replace(self, before_bytes: int, after_bytes: int) -> None:
        """Memory of a storage was ``before_bytes`` (0: it is new) and is ``after_bytes`` now."""
        with self._lock:
            self._settle()
            if before_bytes:
                self._bytes -= _rounded(before_bytes)
                self._count -= 1
            if after_bytes:
                self._bytes += _rounded(after_bytes)
                self._count += 1
                self._total_bytes += _rounded(after_bytes)
                self._total_count += 1
            self._peak_bytes = max(self._peak_bytes, self._bytes)
            self._peak_count = max(self._peak_count, self._count)

    def give_back(self, size_bytes: int) -> None:
        """A storage is gone."""
        self._given_back.append(size_bytes)

    def note_out_of_memory(self) -> None:
        """An allocation was refused."""
        with self._lock:
            self._out_of_memory += 1

    def _settle(self) -> None:
        while self._given_back:
            self._bytes -= _rounded(self._given_back.popleft())
            self._count -= 1

    def counters(self) -> dict[str, int]:
        """Current, peak and accumulated bytes and allocations, under torch's names."""
        with self._lock:
            self._settle()
            freed_bytes = self._total_bytes - self._bytes
            return {
                "allocated_bytes.all.current": self._bytes,
                "allocated_bytes.all.peak": self._peak_bytes,
                "allocated_bytes.all.allocated": self._total_bytes,
                "allocated_bytes.all.freed": freed_bytes,
                "allocation.all.current": self._count,
                "allocation.all.peak": self._peak_count,
                "allocation.all.allocated": self._total_count,
                "allocation.all.freed": self._total_count - self._count,
                "num_ooms": self._out_of_memory,
            }

    def reset_peak(self) -> None:
        """Peaks start again at the current values."""
        with self._lock:
            self._settle()
            self._peak_bytes, self._peak_count = self._bytes, self._count

    def reset_accumulated(self) -> None:
        """Accumulated values start again: what is held now counts as allocated once."""
        with self._lock:
            self._settle()
            self._total_bytes, self._total_count = self._bytes, self._count


_memories: dict[int, TensorMemory] = {}


def tensor_memory(card: FlexDevice) -> TensorMemory:
    """The counters of ``card``."""
    found = _memories.get(card.index)
    return found if found is not None else _memories.setdefault(card.index, TensorMemory())


def _rounded(size_bytes: int) -> int:
    return size_bytes + STICK_BYTES - 1 & -STICK_BYTES
