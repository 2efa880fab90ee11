"""What the sanitizer looks for, by the names of the command line, and what it reports: one
finding per cause, however many sticks it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from spyre.errors import DeviceLocation, Finding, LaunchError, Severity, SourceLocation

PLANNER_LX_BYTES = 1_677_721
"""LX the compiler's planner hands out: 80 % of 2 MiB (hardware reference §2)."""
MAX_SPAN_BYTES = 256 << 20
"""What one core may touch of one tensor in one execute (SDSC reference §5)."""


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
    """The checks of ``choice``: True or "" all, False or None none, else names (comma-separated).

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
            raise LaunchError(
                "SPY739",
                "there is no such sanitizer check",
                expected=f"some of {', '.join(known)}",
                found=name.strip() or "an empty name",
            )
    return frozenset(known[name.strip()] for name in names)


MAX_LISTED = 6
"""Further executes a finding names."""
Coordinate = tuple[tuple[str, int], ...]
"""Dim names with element coordinates, in the order of the operation's dims."""


@dataclass(frozen=True, slots=True)
class SanitizerFinding:
    """One cause, shown at its first occurrence.

    ``source``: the execute statement in bundle.mlir. ``execute``: its number. ``coordinate``: of
    the first stick, in the execute's iteration space; of an output that stays uncovered, host
    coordinates. ``address_bytes``: of that stick (in LX: in the core's scratchpad). ``sticks``
    over all ``executions`` that show it. ``last_writer``: who wrote the stick before, "" where
    that does not matter. ``also_in``: further executes that show the same in the same words.
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

    def to_finding(self) -> Finding:
        """The finding as reports take it."""
        location = DeviceLocation(
            self.sdsc,
            self.execute,
            self.core,
            self.tensor,
            self.address_bytes,
            self.loop_indices,
            self.source,
        )
        return Finding(
            self.code,
            self.severity,
            self.message,
            location,
            self.expected,
            self._found_text(),
            self.hint,
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
    """Findings that differ in nothing but their execute and place become one, the first.

    Unrolled loops would otherwise repeat everything per iteration.
    """
    # Texts, not places: what differs between equal executes is where, never what is wrong.
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
    """``1 stick``, ``2 sticks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
