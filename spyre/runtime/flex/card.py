"""What jobs and streams need of the card they run on: `FlexDevice` is one."""

from __future__ import annotations

from typing import Protocol

from spyre.hw.device import Device
from spyre.runtime.dma import DmaEngine
from spyre.runtime.flex.program_memory import ProgramMemory
from spyre.runtime.flex.runner import Runner
from spyre.runtime.flex.scheduler import Scheduler
from spyre.runtime.memory.flex_allocator import FlexAllocator
from spyre.runtime.memory.storage import DeviceStorage


class Card(Protocol):
    """A card. The attributes are those of `FlexDevice`."""

    device: Device
    index: int
    allocator: FlexAllocator
    dma: DmaEngine
    scheduler: Scheduler
    is_blocking: bool
    runner: Runner | None

    def allocate(self, size_bytes: int, region: int | None = None) -> DeviceStorage:
        """Fresh device memory that is freed with its last reference."""

    def allocate_program(self, size_bytes: int) -> ProgramMemory:
        """Fresh program memory (segment 7)."""
