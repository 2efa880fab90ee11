"""What a command line found out: handed from the commands to the reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyre.cli.options import Options
from spyre.errors import Finding, Severity

if TYPE_CHECKING:
    from spyre.runtime.run_result import RunResult
    from spyre.runtime.verify import Comparison


@dataclass(frozen=True)
class Diagnosis:
    """What ``--check`` and ``--explain`` found. ``explanations``: text per SDSC file."""

    path: str
    findings: tuple[Finding, ...]
    explanations: tuple[tuple[str, str], ...] = ()

    @property
    def exit_code(self) -> int:
        """2 if there is an error."""
        return 2 if any(f.severity is Severity.ERROR for f in self.findings) else 0


@dataclass(frozen=True)
class ComparedRun:
    """A run, and how each output compares (empty without ``-o``)."""

    options: Options
    result: RunResult
    comparisons: tuple[Comparison, ...] = ()
    numerics: str = "dl16"

    @property
    def exit_code(self) -> int:
        """1 if an output differs, or the sanitizer found an error."""
        differs = not all(c.ok for c in self.comparisons)
        errors = any(f.severity is Severity.ERROR for f in self.result.sanitizer)
        return 1 if differs or errors else 0
