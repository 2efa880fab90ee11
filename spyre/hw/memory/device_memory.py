"""Device memory: one reservation holding HBM (8 regions of 16 GiB) and the LX of 32 cores.

Nothing is committed until touched, and untouched memory reads as zero. An HBM address is exactly
the number in the files; LX of core ``c`` has the addresses from ``LX_BASE + c * LX_BYTES`` on.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spyre.errors import DeviceOutOfMemory
from spyre.hw.spec import HOST_BYTES, host_offset
from spyre.layout import SpyreTensorLayout

_MAP_NORESERVE = 0x4000
_GUARD_BYTES = 4096
KEEP_BYTES = 64 << 10
"""Ranges up to this size are overwritten with zeros and stay committed: to give their pages back
costs more than the zeros, and the pages are wanted again soon."""
_ZEROS = bytes(KEEP_BYTES)
POISON = 0xAA
"""Byte of fresh memory on a device that poisons it."""


class MemoryObserver(Protocol):
    """Told of every host access that changes memory."""

    def written(self, address_bytes: int, size_bytes: int, name: str = "") -> None:
        """A range got new contents; ``name``: of the tensor, where there is one."""

    def cleared(self, address_bytes: int, size_bytes: int) -> None:
        """A range was cleared."""

    def cleared_all(self) -> None:
        """All of memory was cleared."""


class DeviceMemory:
    """The card's memory as one lazily committed reservation, addressed by device addresses.

    ``pointer``: host address of device address 0, for kernels, which take host offsets.
    ``observer`` sees what `write`, `clear` and `clear_all` do, not what is done through views.
    """

    def __init__(self) -> None:
        self.observer: MemoryObserver | None = None
        self._mapping = reserve(HOST_BYTES + _GUARD_BYTES)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._mapping.madvise(mmap.MADV_HUGEPAGE, 0, HOST_BYTES & -mmap.PAGESIZE)
        self._data = np.frombuffer(self._mapping, np.uint8)
        self.pointer: int = self._data.ctypes.data

    def poison(self, address_bytes: int, size_bytes: int) -> None:
        """Fill a range with POISON: what a program finds there that should not read it."""
        self.view(address_bytes, size_bytes)[:] = POISON

    def view(self, address_bytes: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes of a range that lies within one region or one LX, as a writable view."""
        start = host_offset(address_bytes)
        return self._data[start : start + size_bytes]

    def read(self, address_bytes: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """A copy of ``size_bytes`` device bytes from ``address_bytes``."""
        return self.view(address_bytes, size_bytes).copy()

    def write(self, address_bytes: int, content: npt.NDArray[np.uint8], name: str = "") -> None:
        """Store raw device bytes at ``address_bytes``; ``name`` is for the observer."""
        self.view(address_bytes, content.size)[:] = content
        if self.observer is not None:
            self.observer.written(address_bytes, content.size, name)

    def clear(self, address_bytes: int, size_bytes: int) -> None:
        """Zero a range within one region or LX; the whole pages of large ones go to the host."""
        start = host_offset(address_bytes)
        if size_bytes <= KEEP_BYTES:
            self._zero(start, start + size_bytes)
        else:
            self._clear(start, start + size_bytes)
        if self.observer is not None:
            self.observer.cleared(address_bytes, size_bytes)

    def clear_all(self) -> None:
        """Zero everything, LX included."""
        self._clear(0, HOST_BYTES)
        if self.observer is not None:
            self.observer.cleared_all()

    def _clear(self, start: int, end: int) -> None:
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = end // mmap.PAGESIZE * mmap.PAGESIZE
        if start < first:
            self._zero(start, first)
        self._mapping.madvise(mmap.MADV_DONTNEED, first, last - first)
        if last < end:
            self._zero(last, end)

    def _zero(self, start: int, end: int) -> None:
        """Zero at most KEEP_BYTES; bytes never written are only read, which commits nothing."""
        if self._mapping[start:end] != _ZEROS[: end - start]:
            self._data[start:end] = 0


def reserve(size_bytes: int) -> mmap.mmap:
    """Zeroed address space, committed on touch; DeviceOutOfMemory SPY402 when the host refuses."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        return mmap.mmap(-1, size_bytes, flags=flags)
    except OSError as error:
        raise DeviceOutOfMemory(
            "SPY402",
            "the host refused to reserve the card's address space",
            expected=f"{size_bytes >> 30} GiB of address space, committed only on touch",
            found=str(error),
            hint="raise the address space limit (ulimit -v) or vm.overcommit_memory",
        ) from error


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """A tensor in device memory.

    ``address_bytes``: where its first stick lies in HBM. ``sizes``/``strides`` (elements): the
    host extents its layout was made for. ``dtype``: torch dtype name.
    """

    name: str
    address_bytes: int
    layout: SpyreTensorLayout
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes it occupies on the device."""
        return self.layout.device_bytes


# --- memory that was not cleared ---------------------------------------------------------------

MemoryRange = tuple[int, int]
"""Address and size, bytes."""
LIMIT_BYTES = 1 << 30
"""Of ranges that are not cleared; see `DirtyRanges`."""


class DirtyRanges:
    """Free memory that still has the contents of its last owner, because clearing it was put off.

    Ranges that do not overlap, ``limit_bytes`` of them at most. ``size_bytes``: of all ranges. Not
    locked.
    """

    # To give pages of a large allocation back to the host and to touch them again costs as much as
    # an operation that fills them. So owners that overwrite all of their memory may leave it as it
    # is, for others that do the same; whoever asks for zeros has what is left cleared first.

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
