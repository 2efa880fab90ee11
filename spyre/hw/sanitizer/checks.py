"""What the sanitizer looks for, by the names of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from spyre.errors import LaunchError

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

Choice = bool | str | Iterable[str] | None


def parse_checks(choice: Choice) -> frozenset[Check]:
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
