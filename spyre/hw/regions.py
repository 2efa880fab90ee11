"""A plain first-fit allocator over the card's regions, for devices driven directly.

Addresses are 128-byte aligned. Segment 7 is kept for programs (runtime reference §4.1).
"""

from __future__ import annotations

import bisect

from spyre.errors import DeviceOutOfMemory, LaunchError
from spyre.hw.spec import REGION_BYTES, REGIONS, STICK_BYTES

TENSOR_REGIONS = REGIONS - 1


class RegionAllocator:
    """Hands out ranges of the seven tensor regions; sizes are rounded up to whole sticks."""

    def __init__(self) -> None:
        self._used: list[list[tuple[int, int]]] = [[] for _ in range(TENSOR_REGIONS)]

    def allocate(self, size_bytes: int, region: int | None = None) -> int:
        """Address of a free range of ``size_bytes``, in ``region`` if given, else the emptiest.

        Raises DeviceOutOfMemory when no region has a gap large enough.
        """
        size = max(-(-size_bytes // STICK_BYTES) * STICK_BYTES, STICK_BYTES)
        regions = [region % TENSOR_REGIONS] if region is not None else []
        regions += sorted(range(TENSOR_REGIONS), key=self._used_bytes)
        for candidate in regions:
            offset = self._find_gap(candidate, size)
            if offset is not None:
                bisect.insort(self._used[candidate], (offset, size))
                return candidate * REGION_BYTES + offset
        raise DeviceOutOfMemory(
            "SPY401",
            f"cannot allocate {size} bytes of device memory",
            expected=f"at most {REGION_BYTES} bytes in one region",
            found=f"used per region: {[self._used_bytes(r) for r in range(TENSOR_REGIONS)]}",
        )

    def free(self, address_bytes: int) -> int:
        """Release the range at ``address_bytes``; returns its size in bytes."""
        region, offset = divmod(address_bytes, REGION_BYTES)
        ranges = self._used[region] if region < TENSOR_REGIONS else []
        at = bisect.bisect_left(ranges, (offset, 0))
        if at == len(ranges) or ranges[at][0] != offset:
            raise LaunchError("SPY360", f"no allocation at {address_bytes:#x} to free")
        return ranges.pop(at)[1]

    def _used_bytes(self, region: int) -> int:
        return sum(size for _, size in self._used[region])

    def _find_gap(self, region: int, size: int) -> int | None:
        at = 0
        for offset, length in self._used[region]:
            if offset - at >= size:
                return at
            at = offset + length
        return at if REGION_BYTES - at >= size else None
