"""Device memory: one reservation holding HBM (8 regions of 16 GiB) and the LX of 32 cores.

Nothing is committed until touched, and untouched memory reads as zero. Addresses are byte offsets
from the start of the reservation: an HBM address is exactly the number in the files, LX of core
``c`` lies at ``LX_BASE + c * LX_BYTES``.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from spyre.errors import DeviceOutOfMemory
from spyre.hw.spec import ADDRESS_SPACE_BYTES, HBM_BYTES

_MAP_NORESERVE = 0x4000
_GUARD_BYTES = 4096


class DeviceMemory:
    """The card's memory as one lazily committed byte array.

    ``data``: uint8 array of ADDRESS_SPACE_BYTES (128 GiB + 64 MiB), not resident until touched.
    """

    def __init__(self) -> None:
        self._mapping = _reserve(ADDRESS_SPACE_BYTES + _GUARD_BYTES)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._mapping.madvise(mmap.MADV_HUGEPAGE, 0, HBM_BYTES)
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)[
            :ADDRESS_SPACE_BYTES
        ]
        self.pointer: int = self.data.ctypes.data

    def read(self, address_bytes: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """A copy of ``size_bytes`` device bytes from ``address_bytes``."""
        return self.data[address_bytes : address_bytes + size_bytes].copy()

    def write(self, address_bytes: int, content: npt.NDArray[np.uint8]) -> None:
        """Store raw device bytes at ``address_bytes``."""
        self.data[address_bytes : address_bytes + content.size] = content

    def clear(self, address_bytes: int = 0, size_bytes: int = ADDRESS_SPACE_BYTES) -> None:
        """Give whole pages back to the host and zero the rest: the range reads as zero again."""
        end = address_bytes + size_bytes
        first = -(-address_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        last = end // mmap.PAGESIZE * mmap.PAGESIZE
        if first >= last:
            self.data[address_bytes:end] = 0
            return
        self.data[address_bytes:first] = 0
        self._mapping.madvise(mmap.MADV_DONTNEED, first, last - first)
        self.data[last:end] = 0


def _reserve(size_bytes: int) -> mmap.mmap:
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
