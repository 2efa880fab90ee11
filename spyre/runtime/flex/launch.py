"""Launch plans, and the source lines a launch was compiled from.

A `LaunchPlan` is computed once for all launches of a kernel over tensors of one signature: the
kernel to run (retargeted to tiles if the tensors are larger) and the offset of every tile.
Compilers pass a `SourceLines` with a launch; command streams, traces and profiles show it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from spyre.layout import Int64Array
from spyre.runtime.kernel import Kernel, Launch, LaunchSignature

if TYPE_CHECKING:
    from spyre.runtime.tiling.tile_plan import TilePlan

LARGE_BYTES = 1 << 21
"""Tensor bytes from which a job is worth a second thread."""
CHUNK_BYTES = 1 << 26
"""Tensor bytes of the tiles that run in one unit: some milliseconds."""


@dataclass(frozen=True, slots=True)
class SourcePlace:
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


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """How a kernel runs over tensors of one signature. Immutable; any thread may use it.

    ``kernel`` runs once per iteration. ``offsets_bytes``: int64 [iteration, address], the corner of
    each tile relative to its tensor; None for a single pass. ``tiles``: None for a single pass of
    the unchanged kernel. ``names``: name of the memory at each address, for messages.
    """

    kernel: Kernel
    signature: LaunchSignature
    names: tuple[str, ...]
    size_bytes: int
    offsets_bytes: Int64Array | None = None
    tiles: TilePlan | None = None

    @classmethod
    def one_pass(cls, kernel: Kernel, launch: Launch) -> LaunchPlan:
        """A single pass of ``kernel`` over tensors that were already checked."""
        return cls(kernel, kernel.signature_of(launch), launch.names, launch.size_bytes)

    # Cached attributes, since every launch reads these three.

    @cached_property
    def is_large(self) -> bool:
        """True if a launch is worth a second thread."""
        return self.size_bytes > LARGE_BYTES or self.iterations > 1

    @cached_property
    def chunk(self) -> int:
        """Iterations that run in one unit at most."""
        return min(max(CHUNK_BYTES * self.iterations // max(self.size_bytes, 1), 1), 4096)

    @cached_property
    def iterations(self) -> int:
        return 1 if self.offsets_bytes is None else len(self.offsets_bytes)

    def addresses(self, bases: Sequence[int], first: int, last: int) -> Int64Array:
        """Addresses (bytes) of iterations ``first`` to ``last`` (excluded), [iteration, address].

        ``bases``: start address of each tensor, bytes.
        """
        row = np.array(bases, np.int64)[None]
        if self.offsets_bytes is None:
            return row[first:last]
        addresses: Int64Array = row + self.offsets_bytes[first:last]
        return addresses
