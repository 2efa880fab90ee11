"""What a launch was made for: lines of the user's program, by executes.

Compilers give it with a launch; command streams, traces and profiles show it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A line of the user's program. ``module``: path of the torch module that ran it, as in
    ``self.layers.0.fc``, "" outside of any. ``is_backward``: its gradient is meant.
    """

    module: str
    file: str
    line: int
    is_backward: bool = False

    @property
    def module_text(self) -> str:
        """The module, of its backward pass with this word."""
        return " ".join(filter(None, (self.module, "(backward)" if self.is_backward else "")))

    @property
    def line_text(self) -> str:
        """``model.py:12``: the path from the working folder on, of others the last two parts."""
        path = os.path.relpath(self.file)
        if path.startswith(os.pardir):
            path = os.sep.join(self.file.split(os.sep)[-2:])
        return f"{path}:{self.line}"

    def __str__(self) -> str:
        within = f" in {self.module}" if self.module else ""
        return self.line_text + within + (" (backward)" if self.is_backward else "")


class LaunchOrigin(Protocol):
    """What a launch was made for."""

    def places_of(self, execute: int) -> tuple[SourcePlace, ...]:
        """Lines that execute number ``execute`` of the kernel stands for."""
