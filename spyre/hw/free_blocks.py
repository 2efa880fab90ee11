"""The free memory of one region, in blocks of 128 bytes: best fit, neighbours joined at once.

A *range* is a run of free blocks between two that are in use. Ranges are known by where they start
and where they end, so a freed range finds its free neighbours at once; by size they are found
through the set of sizes there are, and per size through a heap of starts. A range that disappears
by being joined leaves its entry in the heap, unless that is the first, until it comes to the top
or dead entries outnumber the ranges. So every operation is O(log n) for n ranges, amortised over
the rebuilding of the heaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from spyre.hw.integer_set import IntegerSet

_DEAD_ALLOWED = 256


class FreeBlocks:
    """Free ranges of ``capacity`` blocks, numbered from 0. Not locked.

    ``free``: number of blocks that are free.
    """

    __slots__ = ("_dead", "_ends", "_heaps", "_sizes", "_starts", "capacity", "free")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self._starts: dict[int, int] = {}
        """start → size of each free range."""
        self._ends: dict[int, int] = {}
        """end → size of each free range."""
        self._heaps: dict[int, list[int]] = {}
        """size → heap of starts; the first one is that of a range of this size."""
        self._sizes = IntegerSet()
        self._dead = 0
        if capacity:
            self._insert(0, capacity)

    def take(self, count: int) -> int | None:
        """Start of ``count`` blocks, now in use; None when no range is long enough.

        They are the first blocks of the shortest range that is long enough, of several such ranges
        the lowest.
        """
        size = count if count in self._heaps else self._sizes.at_least(count)
        if size is None:
            return None
        start = self._heaps[size][0]
        del self._starts[start]
        self._pop(size)
        self.free -= count
        if size == count:
            del self._ends[start + count]
        else:
            self._insert(start + count, size - count)
        return start

    def give(self, start: int, count: int) -> None:
        """Return blocks that `take` gave; they join the free ranges beside them."""
        self.free += count
        end = start + count
        following = self._starts.pop(end, 0)
        if following:
            self._remove(end, following)
            count += following
        before = self._ends.pop(start, 0)
        if before:
            start -= before
            count += before
            del self._starts[start]
            self._remove(start, before)
        self._insert(start, count)

    def largest(self) -> int:
        """Blocks of the longest free range, 0 when nothing is free."""
        return self._sizes.largest() or 0

    def ranges(self) -> Iterator[tuple[int, int]]:
        """(start, size) of every free range, lowest first."""
        return iter(sorted(self._starts.items()))

    def _insert(self, start: int, size: int) -> None:
        self._starts[start] = self._ends[start + size] = size
        heap = self._heaps.get(size)
        if heap is None:
            self._heaps[size] = [start]
            self._sizes.add(size)
        else:
            heappush(heap, start)

    def _remove(self, start: int, size: int) -> None:
        """Forget a range that is in no table of ranges any more."""
        if self._heaps[size][0] == start:
            self._pop(size)
            return
        self._dead += 1
        if self._dead > len(self._starts) + _DEAD_ALLOWED:
            self._rebuild()

    def _pop(self, size: int) -> None:
        """Drop the first entry of a size, and dead ones that come up."""
        heap = self._heaps[size]
        if len(heap) == 1:
            del self._heaps[size]
            self._sizes.remove(size)
            return
        heappop(heap)
        starts = self._starts
        while heap and starts.get(heap[0]) != size:
            heappop(heap)
            self._dead -= 1
        if not heap:
            del self._heaps[size]
            self._sizes.remove(size)

    def _rebuild(self) -> None:
        heaps: dict[int, list[int]] = {}
        for start, size in self._starts.items():
            heaps.setdefault(size, []).append(start)
        for heap in heaps.values():
            heapify(heap)
        for size in self._heaps.keys() - heaps.keys():
            self._sizes.remove(size)
        self._heaps = heaps
        self._dead = 0
