"""The free memory of one region, in blocks of 128 bytes: best fit, neighbours joined at once.

Sizes of free ranges are kept in a set of integers that finds "the smallest one not below x" at a
fixed small cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

_WORD_BITS = 9
_MASK = (1 << _WORD_BITS) - 1
_BIT = tuple(1 << k for k in range(1 << _WORD_BITS))


class IntegerSet:
    """Integers from 0 on; meant for values below 2**27 and right for larger ones. Not locked."""

    __slots__ = ("_low", "_middle", "_top")

    def __init__(self) -> None:
        self._low: dict[int, int] = {}
        self._middle: dict[int, int] = {}
        self._top = 0

    def add(self, value: int) -> None:
        """Put ``value`` in; it may be there already."""
        low, bit = value >> _WORD_BITS, _BIT[value & _MASK]
        if low in self._low:
            self._low[low] |= bit
            return
        self._low[low] = bit
        middle, bit = low >> _WORD_BITS, _BIT[low & _MASK]
        if middle in self._middle:
            self._middle[middle] |= bit
            return
        self._middle[middle] = bit
        self._top |= 1 << middle

    def remove(self, value: int) -> None:
        """Take ``value`` out, which must be there (KeyError or a wrong set otherwise)."""
        low = value >> _WORD_BITS
        word = self._low[low] ^ _BIT[value & _MASK]
        if word:
            self._low[low] = word
            return
        del self._low[low]
        middle = low >> _WORD_BITS
        word = self._middle[middle] ^ _BIT[low & _MASK]
        if word:
            self._middle[middle] = word
            return
        del self._middle[middle]
        self._top ^= 1 << middle

    def at_least(self, value: int) -> int | None:
        """The smallest member that is not below ``value``, None when there is none."""
        low = value >> _WORD_BITS
        word = self._low.get(low, 0) >> (value & _MASK)
        if word:
            return value + (word & -word).bit_length() - 1
        middle = low >> _WORD_BITS
        # words after this one: the bits above the word's own, hence one shift more
        word = self._middle.get(middle, 0) >> (low & _MASK) >> 1
        if word:
            low += 1 + _lowest(word)
        else:
            word = self._top >> middle >> 1
            if not word:
                return None
            middle += 1 + _lowest(word)
            low = middle << _WORD_BITS | _lowest(self._middle[middle])
        return low << _WORD_BITS | _lowest(self._low[low])

    def largest(self) -> int | None:
        """The largest member, None of an empty set."""
        if not self._top:
            return None
        middle = self._top.bit_length() - 1
        low = middle << _WORD_BITS | self._middle[middle].bit_length() - 1
        return low << _WORD_BITS | self._low[low].bit_length() - 1


def _lowest(word: int) -> int:
    """Position of the lowest bit that is set."""
    return (word & -word).bit_length() - 1


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
        # an exact fit needs no search; otherwise the smallest size that is large enough
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
        # its entry is somewhere in the heap: it stays, dead, until it comes up or a rebuild
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
