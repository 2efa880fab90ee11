"""How the executes of a launch are numbered and named in findings and reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchLabel:
    """How a launch's executes are numbered and named in findings.

    ``first_execute``: number of its first execute statement; ``directory``: before SDSC files.
    """

    first_execute: int = 0
    directory: str = ""

    def sdsc(self, file: str) -> str:
        """Name of an SDSC file in findings."""
        return f"{self.directory}/{file}" if self.directory not in ("", ".") else file
