"""Control blocks as command streams show them, and the source lines they were compiled from.

Compilers pass a `SourceLines` with a launch; command streams, traces and profiles show it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

import msgspec

from spyre.runtime.memory import VirtualAddress


class SourcePlace(msgspec.Struct, frozen=True):
    """A line of the user's program.

    ``module``: path of the torch module that ran it, such as ``self.layers.0.fc``, "" outside
    modules. ``is_backward``: the launch computes the gradient of this line.
    """

    module: str
    file: str
    line: int
    is_backward: bool = False

    @property
    def module_text(self) -> str:
        """The module path, followed by "(backward)" for gradients."""
        return " ".join(filter(None, (self.module, "(backward)" if self.is_backward else "")))

    @property
    def line_text(self) -> str:
        """``model.py:12``: relative to the working directory; the last two path parts elsewhere."""
        path = os.path.relpath(self.file)
        if path.startswith(os.pardir):
            path = os.sep.join(self.file.split(os.sep)[-2:])
        return f"{path}:{self.line}"

    def __str__(self) -> str:
        within = f" in {self.module}" if self.module else ""
        return self.line_text + within + (" (backward)" if self.is_backward else "")


class SourceLines(Protocol):
    """The source lines of a compiled kernel."""

    def places_of(self, execute: int) -> tuple[SourcePlace, ...]:
        """Source lines that execute number ``execute`` of the kernel was compiled from."""


class MemoryRange(msgspec.Struct, frozen=True):
    """A named range of device memory."""

    name: str
    address: VirtualAddress

    def __str__(self) -> str:
        return f"{self.name} {self.address}"


class ControlBlock(msgspec.Struct, frozen=True):
    """One operation of the card, or of the host on the card's behalf.

    ``kind``: "dma to device", "dma from device", "compute", or "host" (run by the CPU, not a
    control block of the card). ``places``: device memory it uses. ``size_bytes``: bytes it moves.
    ``origin``: source lines of a kernel launch, if known.
    """

    kind: str
    name: str
    places: tuple[MemoryRange, ...] = ()
    size_bytes: int = 0
    origin: SourceLines | None = None

    def __str__(self) -> str:
        size = f", {self.size_bytes} bytes" if self.size_bytes else ""
        places = f": {', '.join(map(str, self.places))}" if self.places else ""
        return f"{self.kind} {self.name}{size}{places}"


class RecordedBlock(msgspec.Struct, frozen=True):
    """A DMA operation that ran outside the scheduler, such as one round of a collective.

    ``place_bytes``: bytes of each of the block's memory ranges. ``begin_ns``/``end_ns``: host
    clock. ``channel``: resource that runs one operation at a time, such as a group of cards.
    ``detail``: description for profiles; ``shown``: values that traces show.
    """

    block: ControlBlock
    place_bytes: tuple[int, ...]
    begin_ns: int
    end_ns: int
    channel: str
    detail: object
    shown: Mapping[str, object]
