"""Names of places in device memory, from the opaque handle to the region and offset.

Runtime reference §4.1: torch-facing code holds an `AllocationIndex`; only the flex layer resolves
it. The newest interface returns a `CompositeAddress` directly; both name the same allocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from spyre.hw.spec import REGION_BYTES

AllocationIndex = NewType("AllocationIndex", int)
"""An opaque handle of an allocation; 0 is the handle of an empty one."""

NULL_INDEX = AllocationIndex(0)
"""Handle of an allocation of 0 bytes."""


@dataclass(frozen=True, slots=True)
class VirtualAddress:
    """A location in device memory; the size is kept beside it.

    ``region_id``: index of the region in VF mode, its physical base address in PF mode.
    ``offset``: bytes from the start of the region, a multiple of 128.
    """

    region_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.region_id:#x}:{self.offset:#x}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of an allocation: where it starts, its size in bytes, its memory domain."""

    address: VirtualAddress
    size_bytes: int
    domain_id: int = 0


@dataclass(frozen=True, slots=True)
class CompositeAddress:
    """Where an allocation lies: one chunk when it is bound, several when it is interleaved."""

    chunks: tuple[Chunk, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.size_bytes for chunk in self.chunks)


def device_virtual_address(region: int, offset: int) -> int:
    """The address a program carries (DMVA): region · 16 GiB + offset (runtime reference §4.2)."""
    return region * REGION_BYTES + offset
