"""Free memory that still has the contents of its last owner, because clearing it was put off.

To give pages of a large allocation back to the host and to touch them again costs as much as an
operation that fills them. So owners that overwrite all of their memory may leave it as it is, for
others that do the same; whoever asks for zeros has what is left in the range cleared first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

MemoryRange = tuple[int, int]
"""Address and size, bytes."""
LIMIT_BYTES = 1 << 30


class DirtyRanges:
    """Ranges that do not overlap, ``limit_bytes`` of them at most. Not locked.

    ``size_bytes``: of all ranges.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._sizes: OrderedDict[int, int] = OrderedDict()
        """address → size, the oldest first."""
        self._addresses: list[int] = []
        """The same addresses, sorted."""

    def __bool__(self) -> bool:
        return bool(self._addresses)

    def add(self, address_bytes: int, size_bytes: int) -> list[MemoryRange]:
        """Note a range that is free and not cleared; returns ranges to clear instead: the oldest
        that are too many.
        """
        self._keep(address_bytes, size_bytes)
        dropped: list[MemoryRange] = []
        while self.size_bytes > self.limit_bytes:
            dropped.append(self._remove(next(iter(self._sizes))))
        return dropped

    def take(self, address_bytes: int, size_bytes: int) -> list[MemoryRange]:
        """The parts of a range that are not clear; they are no leftovers any more."""
        end = address_bytes + size_bytes
        dirty = []
        index = max(bisect_left(self._addresses, address_bytes) - 1, 0)
        while index < len(self._addresses) and self._addresses[index] < end:
            start = self._addresses[index]
            stop = start + self._sizes[start]
            if stop <= address_bytes:
                index += 1
                continue
            self._remove(start)
            for first, last in ((start, address_bytes), (end, stop)):
                if first < last:
                    self._keep(first, last - first)
            first, last = max(start, address_bytes), min(stop, end)
            dirty.append((first, last - first))
            index = bisect_left(self._addresses, last)
        return dirty

    def take_all(self) -> list[MemoryRange]:
        """All ranges; none is left."""
        ranges = list(self._sizes.items())
        self._sizes.clear()
        self._addresses.clear()
        self.size_bytes = 0
        return ranges

    def _keep(self, address_bytes: int, size_bytes: int) -> None:
        insort(self._addresses, address_bytes)
        self._sizes[address_bytes] = size_bytes
        self.size_bytes += size_bytes

    def _remove(self, address_bytes: int) -> MemoryRange:
        size_bytes = self._sizes.pop(address_bytes)
        del self._addresses[bisect_left(self._addresses, address_bytes)]
        self.size_bytes -= size_bytes
        return address_bytes, size_bytes
