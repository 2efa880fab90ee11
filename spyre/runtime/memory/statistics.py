"""Numbers about device memory at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spyre.hw.regions import TENSOR_REGIONS, RegionUsage


@dataclass(frozen=True, slots=True)
class Counter:
    """A quantity now, its highest value since the last `reset_peak`, and all ever added to it."""

    current: int
    peak: int
    accumulated: int


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """What a FlexAllocator has handed out, and what its device has left.

    ``allocated_bytes`` (rounded to 128) and ``allocations``: through handles, of tensors and
    programs. ``regions``: all of them, with everything allocated on the device. The properties are
    about the regions for tensors.
    """

    allocated_bytes: Counter
    allocations: Counter
    regions: tuple[RegionUsage, ...]

    @property
    def reserved_bytes(self) -> int:
        """Capacity of the tensor regions."""
        return sum(region.capacity_bytes for region in self._tensor_regions)

    @property
    def free_bytes(self) -> int:
        """Bytes of the tensor regions that nobody has."""
        return sum(region.free_bytes for region in self._tensor_regions)

    @property
    def largest_free_bytes(self) -> int:
        """The largest tensor that could be allocated now."""
        return max(region.largest_free_bytes for region in self._tensor_regions)

    @property
    def fragmentation(self) -> float:
        """1 - (sum of each region's largest free block) / (free bytes), 0 when nothing is free.

        0: what is free in a region is one block, as on an empty card; towards 1: many small ones.
        Taken per region, since no allocation reaches from one region into the next.
        """
        free = self.free_bytes
        largest = sum(region.largest_free_bytes for region in self._tensor_regions)
        return 1 - largest / free if free else 0.0

    @property
    def _tensor_regions(self) -> Sequence[RegionUsage]:
        return self.regions[:TENSOR_REGIONS]
