"""Results of commands, which the text and JSON reports print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyre.errors import Finding, Severity, has_errors

if TYPE_CHECKING:
    from spyre.cli.debugging import Debugging
    from spyre.cli.options import ExecuteOptions
    from spyre.runtime.run import Run, RunResult


@dataclass(frozen=True)
class Diagnosis:
    """Findings of ``check`` and ``explain``. ``explanations``: text per SDSC file; ``pictures``:
    files that were drawn.
    """

    path: str
    findings: tuple[Finding, ...]
    explanations: tuple[tuple[str, str], ...] = ()
    pictures: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """2 if there is an error."""
        return 2 if has_errors(self.findings) else 0


@dataclass(frozen=True)
class ComparedRun:
    """A run that has ended. ``result.comparisons`` is empty without expected outputs.

    ``numerics``: number mode of the device. ``causes``: findings that may explain why outputs
    differ, the likeliest first; without expected outputs, suspicious addresses.
    """

    options: ExecuteOptions
    run: Run
    result: RunResult
    numerics: str
    debugging: Debugging
    causes: Sequence[Finding] = ()

    @property
    def exit_code(self) -> int:
        """1 if an output differs, or the sanitizer found an error."""
        errors = any(f.severity is Severity.ERROR for f in self.result.sanitizer)
        return 1 if self.differs or errors else 0

    @property
    def differs(self) -> bool:
        """True if an output is not as expected."""
        return not self.result.ok
