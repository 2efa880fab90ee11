"""The commands of a spyrecode.json as structs, and what a whole file holds.

Numbers are integers here and decimal strings in the file; addresses are device virtual addresses.
Runtime reference §4.2, §5.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from spyre.errors import Finding
from spyre.hw.spec import REGION_BYTES, REGIONS, STICK_BYTES
from spyre.runtime.program import SymbolKind

PROGRAM_REGION = REGIONS - 1
PROGRAM_BASE = PROGRAM_REGION * REGION_BYTES
"""Address of the program segment: 0x1C00000000."""
PROGRAM_END = PROGRAM_BASE + REGION_BYTES
ADDRESS_ALIGNMENT = STICK_BYTES
SYMBOL_BYTES = 8
"""One int64 per symbol in a correction tensor."""


class Direction(Enum):
    """Which way a DataTransfer goes; the value is how ``dirn`` spells it."""

    H2D = "false"
    D2H = "true"


class Allocate(msgspec.Struct, frozen=True):
    """Reserve ``size_bytes`` of the program segment."""

    size_bytes: int


class InitTransfer(msgspec.Struct, frozen=True):
    """Copy ``size_bytes`` of a file of the directory to ``dev_ptr``, once, when prepared."""

    init_bin_file: str
    dev_ptr: int
    size_bytes: int


class Hcm(msgspec.Struct, frozen=True):
    """What a ComputeOnHost computes. ``symbols``: one kind per int64 of the correction tensor.

    ``symbols`` is None in files of other compilers. ``others``: keys this package does not know.
    """

    vdci: dict[str, Any]
    sen_constants: tuple[Any, ...] = ()
    symbols: tuple[SymbolKind, ...] | None = None
    others: dict[str, Any] = {}


class ComputeOnHost(msgspec.Struct, frozen=True):
    """Fill the new host buffer ``ohandle`` of ``size_bytes``.

    ``ihandle``: name of the buffer that is read, or "" for the launch's symbols. ``ishape``: shape
    of that input in elements; (0,) stands for none.
    """

    ihandle: str
    ishape: tuple[int, ...]
    ohandle: str
    size_bytes: int
    hcm: Hcm


class DataTransfer(msgspec.Struct, frozen=True):
    """Copy between the host buffer ``host_handle`` and ``dev_ptr``; D2H makes the buffer."""

    direction: Direction
    host_handle: str
    size_bytes: int
    dev_ptr: int


class ComputeOnDevice(msgspec.Struct, frozen=True):
    """Run the program whose bytes begin at ``job_bin_ptr``."""

    job_bin_ptr: int
    name: str | None = None


PreparationCommand = Allocate | InitTransfer
ExecutionCommand = ComputeOnHost | DataTransfer | ComputeOnDevice


class FileRecord(msgspec.Struct, frozen=True):
    """Size and SHA-256 (hexadecimal) of another file of the directory."""

    size_bytes: int
    sha256: str


class SpyreCode(msgspec.Struct, frozen=True):
    """A spyrecode.json. ``files``: what our compiler recorded of the other files, by name;
    ``findings``: warnings about the plans.
    """

    preparation: tuple[PreparationCommand, ...]
    execution: tuple[ExecutionCommand, ...]
    files: dict[str, FileRecord] = {}
    findings: tuple[Finding, ...] = ()

    @property
    def allocation_bytes(self) -> int:
        """Bytes of the program allocation."""
        first = self.preparation[0]
        assert isinstance(first, Allocate)
        return first.size_bytes

    @property
    def init_transfers(self) -> tuple[InitTransfer, ...]:
        """What is copied into the program segment when the directory is prepared."""
        return tuple(c for c in self.preparation if isinstance(c, InitTransfer))
