"""What is allocated in the memory regions over time, from allocations and frees as they happen."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from spyre.hw.spec import REGIONS
from spyre.layout import Int64Array


class AllocationHistory:
    """Bytes of each region from when it is made. ``begin_bytes``: what was allocated then.

    The regions' allocator calls `note` under its lock; read it when nothing is noted any more.
    """

    def __init__(self, begin_bytes: Sequence[int] = (0,) * REGIONS) -> None:
        self.begin_bytes = tuple(begin_bytes)
        self._changes: list[tuple[int, int, int]] = []

    def note(self, region: int, change_bytes: int) -> None:
        """So many bytes more (less where negative) are allocated in ``region`` from now on."""
        self._changes.append((time.perf_counter_ns(), region, change_bytes))

    @property
    def times_ns(self) -> Int64Array:
        """Host clock of every change, ascending."""
        times_ns: Int64Array = self._columns[0]
        return times_ns

    @property
    def allocated_bytes(self) -> Int64Array:
        """Bytes in each region at first and behind every change, int64 [changes + 1, REGIONS]."""
        _, region, change_bytes = self._columns
        changes = np.zeros((len(region) + 1, REGIONS), np.int64)
        changes[0] = self.begin_bytes
        changes[np.arange(1, len(region) + 1), region] = change_bytes
        allocated: Int64Array = np.cumsum(changes, axis=0)
        return allocated

    @property
    def _columns(self) -> Int64Array:
        """Time, region and change of every change, int64 [3, changes]."""
        return np.array(self._changes, np.int64).reshape(-1, 3).T
