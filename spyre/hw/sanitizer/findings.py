"""The checks of the sanitizer, their texts, and its findings: one per cause, for all its sticks."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from spyre.errors import DeviceLocation, Finding, LaunchError, Severity, SourceLocation
from spyre.hw.spec import LX_BASE, LX_BYTES


class Check(StrEnum):
    """One kind of check; docs/sanitizer.md describes each."""

    MEMORY = "memory"
    INIT = "init"
    RACE = "race"
    COVER = "cover"
    LX = "lx"
    ALIGN = "align"


ALL_CHECKS = frozenset(Check)

CheckChoice = bool | str | Iterable[str] | None


def parse_checks(choice: CheckChoice) -> frozenset[Check]:
    """The checks of ``choice``: True or "" for all, False or None for none, else their names.

    Names are separated by commas.

    LaunchError SPY739 for an unknown name.
    """
    if choice is None or choice is False:
        return frozenset()
    if choice is True or choice == "":
        return ALL_CHECKS
    names = choice.split(",") if isinstance(choice, str) else list(choice)
    known = {check.value: check for check in Check}
    for name in names:
        if name.strip() not in known:
            message = "there is no such sanitizer check"
            expected = f"some of {', '.join(known)}"
            found = name.strip() or "an empty name"
            raise LaunchError("SPY739", message, expected=expected, found=found)
    return frozenset(known[name.strip()] for name in names)


# --- texts ------------------------------------------------------------------------------------


class FindingText(msgspec.Struct, frozen=True):
    """Code and words of one kind of finding, with ``{op}`` and ``{tensor}`` to be filled in."""

    check: Check
    code: str
    message: str
    expected: str

    def of(self, op: str, tensor: str) -> FindingText:
        """The text for an operand of an operation."""
        return replace(self, message=self.message.format(op=op, tensor=tensor))

    def finding(self, severity: Severity, location: DeviceLocation, found: str) -> Finding:
        return Finding(self.code, severity, self.message, location, self.expected, found)


UNWRITTEN_READ = FindingText(
    Check.INIT,
    "SPY710",
    "{op} reads sticks of {tensor} that have not been written",
    "every stick that is read uploaded or written before",
)
SHARED_WRITE = FindingText(
    Check.RACE,
    "SPY711",
    "{op}: several cores write the same sticks of {tensor}",
    "every stick written by one core",
)
READ_WRITE_RACE = FindingText(
    Check.RACE,
    "SPY712",
    "{op}: a core reads sticks of {tensor} that another core writes",
    "inputs separate from the sticks that other cores write in the same execute",
)
OVERWRITTEN_LX = FindingText(
    Check.LX,
    "SPY731",
    "{op} reads {tensor} in LX, part of which another tensor has overwritten",
    "sticks last written through a range that contains the range read, or is contained in it",
)


def uncovered_output(name: str, sticks: int) -> FindingText:
    """The text for output ``name``, ``sticks`` of which hold elements."""
    return FindingText(
        Check.COVER,
        "SPY720",
        f"output {name} is not written completely",
        f"all {count_of(sticks, 'stick')} with elements written by an execute",
    )


# --- findings ---------------------------------------------------------------------------------

MAX_LISTED = 6
"""Further executes that a finding lists."""
Coordinate = tuple[tuple[str, int], ...]
"""Dim names with element coordinates, in the order of the operation's dims."""


class SanitizerFinding(msgspec.Struct, frozen=True):
    """One cause, located at its first occurrence.

    ``source``: the execute statement in bundle.mlir. ``execute``: its number. ``coordinate``: of
    the first stick, in the execute's iteration space; for an output that is not covered, host
    coordinates. ``address_bytes``: of that stick (in LX: in the core's scratchpad). ``sticks``:
    total over all ``executions`` affected. ``last_writer``: the execute or upload that wrote the
    stick before, "" if that is irrelevant. ``also_in``: further executes with the same finding.
    """

    check: Check
    code: str
    severity: Severity
    message: str
    sdsc: str
    expected: str
    found: str
    source: SourceLocation | None = None
    execute: int | None = None
    loop_indices: tuple[int, ...] = ()
    core: int | None = None
    tensor: str | None = None
    coordinate: Coordinate = ()
    address_bytes: int | None = None
    sticks: int = 0
    executions: int = 0
    last_writer: str = ""
    hint: str = ""
    also_in: tuple[int, ...] = ()

    def __str__(self) -> str:
        return str(self.to_finding())

    def to_finding(self) -> Finding:
        """The finding in the form that reports take."""
        location = DeviceLocation(
            self.sdsc,
            self.execute,
            self.core,
            self.tensor,
            self.address_bytes,
            self.loop_indices,
            self.source,
        )
        found = self._found_text()
        return Finding(
            self.code, self.severity, self.message, location, self.expected, found, self.hint
        )

    def _place(self) -> str:
        if self.check is Check.COVER:
            return f"host element {[value for _, value in self.coordinate]}"
        return ", ".join(f"{dim} {value}" for dim, value in self.coordinate)

    def _found_text(self) -> str:
        parts = [self.found]
        if self.coordinate:
            parts.append(f"first at {self._place()}")
        if self.last_writer:
            parts.append(f"last written by {self.last_writer}")
        if self.also_in:
            parts.append(f"also in {_list_executes(self.also_in)}")
        return "; ".join(part for part in parts if part)


def _list_executes(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(str(number) for number in numbers[:MAX_LISTED])
    unlisted = len(numbers) - MAX_LISTED
    noun = "execute" if len(numbers) == 1 else "executes"
    return f"{noun} {shown}" + (f" and {unlisted} more" if unlisted > 0 else "")


def grouped(findings: Iterable[SanitizerFinding]) -> list[SanitizerFinding]:
    """Findings that differ in their location only, joined into the first of them.

    Unrolled loops would otherwise repeat every finding per iteration.
    """
    groups: dict[tuple[str, ...], list[SanitizerFinding]] = {}
    for finding in findings:
        key = (finding.code, finding.message, finding.expected, finding.found)
        groups.setdefault(key, []).append(finding)
    return [_joined(members) for members in groups.values()]


def _joined(members: list[SanitizerFinding]) -> SanitizerFinding:
    first = members[0]
    executes = dict.fromkeys(m.execute for m in members[1:] if m.execute is not None)
    executes.pop(first.execute or 0, None)
    return replace(
        first,
        sticks=sum(m.sticks for m in members),
        executions=sum(m.executions for m in members),
        also_in=tuple(executes),
    )


def count_of(number: int, noun: str) -> str:
    """``1 stick``, ``2,000 sticks``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shown_address(address_bytes: int) -> int:
    """The address in SDSC files: in LX, from the start of the core's scratchpad."""
    return address_bytes if address_bytes < LX_BASE else (address_bytes - LX_BASE) % LX_BYTES
