"""Control blocks: what the scheduler hands to the DMA engine and the cores, as one can see it."""

from __future__ import annotations

from dataclasses import dataclass

from spyre.runtime.memory.address import VirtualAddress


@dataclass(frozen=True, slots=True)
class Place:
    """A named range of device memory a block uses."""

    name: str
    address: VirtualAddress

    def __str__(self) -> str:
        return f"{self.name} {self.address}"


@dataclass(frozen=True, slots=True)
class ControlBlock:
    """One operation on the card, or on the host for it.

    ``kind``: "dma to device", "dma from device", "compute", or "host" (run by the CPU, no control
    block of the card). ``places``: device memory it names. ``size_bytes``: bytes it moves.
    """

    kind: str
    name: str
    places: tuple[Place, ...] = ()
    size_bytes: int = 0

    def __str__(self) -> str:
        size = f", {self.size_bytes} bytes" if self.size_bytes else ""
        places = f": {', '.join(map(str, self.places))}" if self.places else ""
        return f"{self.kind} {self.name}{size}{places}"
