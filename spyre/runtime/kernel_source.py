"""What a launch needs of a program, whether it was just read or compiled earlier.

Both :class:`~spyre.mlir.bundle.Bundle` and
:class:`~spyre.runtime.spyrecode.compiled_kernel.CompiledKernel` are such sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from spyre.errors import Finding
from spyre.mlir.operation import Operation
from spyre.mlir.program import LoopProgram


class KernelSource(Protocol):
    """A lowered program with the operations of its SDSC files, by file name.

    ``directory``: where its files are, for messages. Errors as of `Bundle`.
    """

    @property
    def directory(self) -> Path:
        """Where the files are."""

    @property
    def program(self) -> LoopProgram:
        """Parameters, allocations, loops of executes."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """By SDSC file name."""

    def check(self, raise_on_error: bool = False) -> tuple[Finding, ...]:
        """All findings; ``raise_on_error``: ValidationError with all of them if one is an error."""
