"""The exceptions of spyre. Each names the fault, its location, the expected and the found value.

Every error carries a stable code (``SPY…``, listed with cause and fix in ``codes/codes.toml``).
This module imports no other module of the package, so every layer may raise from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str, is_json: bool = False) -> str:
    r"""Return ``text`` with control characters as escapes: ``\x1b``, in JSON ``\u001b``.

    Names may hold commands to terminals, or marks that reverse text. Tabs and line ends stay.
    """

    def escape(found: re.Match[str]) -> str:
        code = ord(found[0])
        return f"\\x{code:02x}" if code < 256 and not is_json else f"\\u{code:04x}"

    return _CONTROLS.sub(escape, text)


EXCERPT_WIDTH = 70
"""Characters of a source line that an excerpt shows."""


class Severity(StrEnum):
    """How bad a finding is: an error stops the program, a warning is only reported."""

    ERROR = "error"
    WARNING = "warning"


class SourceLocation(msgspec.Struct, frozen=True):
    """A place in a text file; line and column count from 1. ``source_line`` allows an excerpt."""

    file: str
    line: int
    column: int
    source_line: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def excerpt(self) -> str:
        """The numbered source line, the word at the column underlined ('' for an unknown line)."""
        if not self.source_line:
            return ""
        text = self.source_line.replace("\t", " ")
        start = max(0, self.column - 1 - EXCERPT_WIDTH // 2)
        before, rest = text[start : self.column - 1], text[self.column - 1 : start + EXCERPT_WIDTH]
        word = re.match(r"[\w.%@#$]+", rest)
        marks = "^" * len(word[0] if word else "^")
        margin = " " * len(str(self.line))
        shown = printable(before + rest)
        return f"{self.line} | {shown}\n{margin} | {' ' * len(printable(before))}{marks}"


class JsonLocation(msgspec.Struct, frozen=True):
    """A place in a JSON file, as a path from the root, e.g. ``$.dscs_[0].add.N_``."""

    file: str
    path: str = "$"

    def __str__(self) -> str:
        return f"{self.file} at {self.path}"


class DeviceLocation(msgspec.Struct, frozen=True):
    """A place in an execution: which execute, core, tensor, loop indices, address (bytes)."""

    sdsc: str
    execute: int | None = None
    core: int | None = None
    tensor: str | None = None
    address_bytes: int | None = None
    loop_indices: tuple[int, ...] = ()
    source: SourceLocation | None = None

    @property
    def in_program(self) -> str:
        """The place without the line of the source."""
        parts = [self.sdsc]
        if self.execute is not None:
            parts.append(f"execute {self.execute}")
        if self.loop_indices:
            parts.append(f"loop indices {self.loop_indices}")
        if self.core is not None:
            parts.append(f"core {self.core}")
        if self.tensor is not None:
            parts.append(f"tensor {self.tensor}")
        if self.address_bytes is not None:
            parts.append(f"address {self.address_bytes:#x}")
        return ", ".join(parts)

    def __str__(self) -> str:
        return self.in_program if self.source is None else f"{self.source}: {self.in_program}"


Location = SourceLocation | JsonLocation | DeviceLocation


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis: a code of `spyre.codes.diagnostic_codes`, its location and its message."""

    code: str
    severity: Severity
    message: str
    location: Location | None = None
    expected: str = ""
    found: str = ""
    hint: str = ""

    def __str__(self) -> str:
        """Severity, code and message; then the place with its excerpt, and details."""
        source = self.location
        within = ""
        if isinstance(self.location, DeviceLocation) and self.location.source is not None:
            source, within = self.location.source, self.location.in_program
        lines = [f"{self.severity.value}[{self.code}]: {self.message}"]
        lines += [f" --> {source}"] if source is not None else []
        places = len(lines)
        lines += [f" ::: {within}"] if within else []
        details = {"expected": self.expected, "found": self.found, "help": self.hint}
        lines.extend(f"  = {label}: {value}" for label, value in details.items() if value)
        # A line end in a name must not begin what looks like another finding.
        lines = [printable(line).replace("\n", "\n    ") for line in lines]
        if isinstance(source, SourceLocation) and (excerpt := source.excerpt()):
            lines.insert(places, excerpt)
        return "\n".join(lines)

    @property
    def as_warning(self) -> Finding:
        """The same finding as a warning."""
        return replace(self, severity=Severity.WARNING)

    @property
    def in_one_line(self) -> str:
        """The first line, and the place."""
        where = f" ({self.location})" if self.location is not None else ""
        return f"{self.severity.value}[{self.code}]: {self.message}{where}"


def has_errors(findings: Iterable[Finding]) -> bool:
    """True if one of them is an error."""
    return any(finding.severity is Severity.ERROR for finding in findings)


class SpyreError(RuntimeError):
    """Base of every error this package raises on purpose.

    ``finding`` holds the diagnosis, ``code`` its stable code, ``exit_code`` the exit code of
    ``spyre-run``: 2 when the program could not run, 1 when the device would have faulted or
    numbers are wrong. ``observed``: the sanitizer's findings before the error.
    """

    exit_code = 2
    observed: tuple[Finding, ...] = ()

    def __init__(
        self,
        code: str,
        message: str,
        location: Location | None = None,
        *,
        expected: str = "",
        found: str = "",
        hint: str = "",
    ) -> None:
        self.finding = Finding(code, Severity.ERROR, message, location, expected, found, hint)
        super().__init__(str(self.finding))

    @property
    def code(self) -> str:
        """The stable code, e.g. ``SPY101``."""
        return self.finding.code

    @property
    def location(self) -> Location | None:
        """Where the error is, if it has a place."""
        return self.finding.location


class BundleError(SpyreError):
    """The bundle itself is wrong."""


class MlirSyntaxError(BundleError):
    """bundle.mlir does not follow the grammar."""


class SdscError(BundleError):
    """An SDSC file violates the format; the location is a JSON path."""


class ValidationError(BundleError):
    """A check found errors; ``findings`` holds them all, the first one is the message."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        errors = [f for f in findings if f.severity is Severity.ERROR]
        first = errors[0]
        super().__init__(
            first.code,
            first.message,
            first.location,
            expected=first.expected,
            found=first.found,
            hint=first.hint,
        )
        if len(errors) > 1:
            self.args = (f"{self.args[0]}\n  (and {len(errors) - 1} more)",)


class UnsupportedError(SpyreError, NotImplementedError):
    """Valid, but not simulated; the message names the operation, format or feature."""


class LaunchError(SpyreError):
    """The tensors given do not fit the kernel."""


class TilingError(LaunchError):
    """The tensors of a launch cannot be divided into tiles of the kernel's compiled shapes."""


class StreamError(SpyreError):
    """A stream refuses work because earlier work in it failed."""

    exit_code = 1


class DeviceOutOfMemory(SpyreError, MemoryError):
    """Device memory is exhausted; the message names request, free bytes and largest block."""


class DeviceFault(SpyreError):
    """The card would have done harm: an address out of bounds, an index out of range."""

    exit_code = 1


class MachineError(SpyreError):
    """A machine file lacks constants of the cost models, or has invalid ones."""


class EstimateError(SpyreError):
    """A file of kernels cannot be read, or the model has no time for one of its rows."""


class ProfileError(SpyreError):
    """A profile cannot be shown or compared."""


class SweepError(SpyreError):
    """The definition of a design-space sweep, or one of its points, is invalid."""


class MismatchError(SpyreError):
    """Outputs differ from the expected values by more than the tolerance."""

    exit_code = 1
