"""Device memory: one reservation holding HBM (8 regions of 16 GiB) and the LX of 32 cores.

Nothing is committed until touched, and untouched memory reads as zero. An HBM address is exactly
the number in the files; LX of core ``c`` has the addresses from ``LX_BASE + c * LX_BYTES`` on.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, insort
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.errors import DeviceOutOfMemory, LaunchError
from spyre.hw.spec import CORES, HBM_BYTES, HOST_BYTES, LX_BYTES, REGION_BYTES, host_offset
from spyre.layout import SpyreTensorLayout

if TYPE_CHECKING:
    from spyre.hw.sanitizer import Sanitizer

_MAP_NORESERVE = 0x4000
_GUARD_BYTES = 4096
KEEP_BYTES = 64 << 10
"""Ranges up to this size are overwritten with zeros and stay committed: returning their pages to
the host costs more, as they are soon used again."""
_ZEROS = bytes(KEEP_BYTES)
_ZEROS_VIEW = memoryview(_ZEROS)
_LOOK_BYTES = 256
POISON = 0xAA
"""Byte of fresh memory on a device that poisons it."""
DEVICE_BYTES = HBM_BYTES + CORES * LX_BYTES
"""End of the addresses, scratchpads included."""


class DeviceMemory:
    """The card's memory as one lazily committed reservation, addressed by device addresses.

    ``pointer``: host address of device address 0, for kernels, which take host offsets.
    ``observer``: is called by `write`, `clear` and `clear_all`; writes through views bypass it.
    """

    def __init__(self) -> None:
        self.observer: Sanitizer | None = None
        self._mapping = reserve(HOST_BYTES + _GUARD_BYTES)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._mapping.madvise(mmap.MADV_HUGEPAGE, 0, HOST_BYTES & -mmap.PAGESIZE)
        self._data = np.frombuffer(self._mapping, np.uint8)
        self.pointer: int = self._data.ctypes.data

    def poison(self, address_bytes: int, size_bytes: int) -> None:
        """Fill a range with POISON, to make reads of uninitialised memory visible."""
        self.view(address_bytes, size_bytes)[:] = POISON

    def view(self, address_bytes: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes of a range within one region or one LX, as a writable view."""
        start = host_offset(address_bytes)
        return self._data[start : start + size_bytes]

    def read(self, address_bytes: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """A copy of ``size_bytes`` device bytes from ``address_bytes``; errors as of `write`."""
        require_range(address_bytes, size_bytes)
        return self.view(address_bytes, size_bytes).copy()

    def write(self, address_bytes: int, content: npt.NDArray[np.uint8], name: str = "") -> None:
        """Store raw device bytes at ``address_bytes``; ``name`` is for the observer.

        LaunchError SPY403 if they are not within one region or the scratchpads.
        """
        require_range(address_bytes, content.size)
        self.view(address_bytes, content.size)[:] = content
        if self.observer is not None:
            self.observer.written(address_bytes, content.size, name)

    def clear(self, address_bytes: int, size_bytes: int) -> None:
        """Zero a range within one region or LX; whole pages of large ranges return to the host."""
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
        """Zero at most KEEP_BYTES; ranges that are zero are only read, which commits no pages."""
        # memory that was written usually differs in its first bytes, which are looked at first
        first = min(start + _LOOK_BYTES, end)
        if self._mapping[start:first] != _ZEROS[: first - start] or (
            first < end and self._mapping[first:end] != _ZEROS[: end - first]
        ):
            self._mapping[start:end] = _ZEROS_VIEW[: end - start]  # faster than numpy's fill


def require_range(address_bytes: int, size_bytes: int, end_bytes: int = DEVICE_BYTES) -> None:
    """Raise LaunchError SPY403 unless a range is below an end, in a region or the scratchpads."""
    try:
        piece = REGION_BYTES if address_bytes < HBM_BYTES else CORES * LX_BYTES
        inside = 0 <= address_bytes < end_bytes and size_bytes >= 0
        if inside and (address_bytes & piece - 1) + (size_bytes | 0) <= piece:  # no fractions
            return
        found = f"addresses {address_bytes:#x} to {address_bytes + size_bytes:#x}"
    except (TypeError, ValueError):
        found = f"{address_bytes!r} and {size_bytes!r}"
    expected = f"addresses below {HBM_BYTES:#x}, in one region of {REGION_BYTES:#x} bytes"
    message = "raw bytes are not within one memory region"
    raise LaunchError("SPY403", message, expected=expected, found=found)


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


class DeviceTensor(msgspec.Struct, frozen=True):
    """A tensor in device memory.

    ``address_bytes``: of its first stick in HBM. ``sizes``/``strides`` (elements): the host tensor
    that its layout was made for. ``dtype``: torch dtype name.
    """

    name: str
    address_bytes: int
    layout: SpyreTensorLayout
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return self.layout.device_bytes


# --- memory that was not cleared ---------------------------------------------------------------

MemoryRange = tuple[int, int]
"""Address and size, bytes."""
LIMIT_BYTES = 1 << 30
"""Default limit of `DirtyRanges`."""


class DirtyRanges:
    """Free ranges whose contents were not cleared; they do not overlap. Not locked.

    ``limit_bytes``: largest total size. ``size_bytes``: total size now.
    """

    # Returning the pages of a large allocation to the host and touching them again costs as much as
    # an operation that fills them. Owners that overwrite all of their memory may therefore leave it
    # uncleared for other such owners; ranges are cleared before other owners get them.

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
        """Add a free range; returns the oldest ranges beyond the limit, which must be cleared."""
        self._keep(address_bytes, size_bytes)
        dropped: list[MemoryRange] = []
        while self.size_bytes > self.limit_bytes:
            dropped.append(self._remove(next(iter(self._sizes))))
        return dropped

    def take(self, address_bytes: int, size_bytes: int) -> list[MemoryRange]:
        """Remove and return the uncleared parts of a range."""
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
        """Remove and return all ranges."""
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
