"""Coverage of the specification's list of operations: ``python -m tools.op_table``.

A name is implemented when it has a row in the op table, refused when `spyre.hw.ops.REFUSED` gives a
reason, and otherwise missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from spyre.hw.ops import OPS, REFUSED, SPEC_NAMES, Category, OpDefinition, find_op


class Status(StrEnum):
    """Status of a name of the specification."""

    IMPLEMENTED = "implemented"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Coverage:
    """A name of the specification with its status; ``detail``: definition, or reason of refusal."""

    name: str
    category: Category
    status: Status
    detail: str


def coverage(
    names: Mapping[str, Category] = SPEC_NAMES,
    ops: Mapping[str, OpDefinition] = OPS,
    refused: Mapping[str, tuple[Category, str]] = REFUSED,
) -> tuple[Coverage, ...]:
    """Return one line per name of the specification, in its order."""
    lines = []
    for name, category in names.items():
        row = find_op(name, ops)
        if row is not None:
            lines.append(Coverage(name, category, Status.IMPLEMENTED, row.definition))
        elif name in refused:
            lines.append(Coverage(name, category, Status.REFUSED, refused[name][1]))
        else:
            lines.append(Coverage(name, category, Status.MISSING, "not simulated yet"))
    return tuple(lines)


def count_line(lines: tuple[Coverage, ...]) -> str:
    """Return ``N of N covered: I implemented, R refused by name``."""
    counts = {status: sum(line.status is status for line in lines) for status in Status}
    covered = len(lines) - counts[Status.MISSING]
    return (
        f"{covered} of {len(lines)} covered: {counts[Status.IMPLEMENTED]} implemented, "
        f"{counts[Status.REFUSED]} refused by name"
    )


def format_table(lines: tuple[Coverage, ...]) -> str:
    """Return the lines in columns, and the count."""
    width = max(len(line.name) for line in lines)
    room = max(len(line.category) for line in lines)
    status = max(len(kind) for kind in Status)
    rows = [
        f"{line.name:<{width}}  {line.category:<{room}}  {line.status:<{status}}  {line.detail}"
        for line in lines
    ]
    return "\n".join((*rows, count_line(lines)))


def main() -> int:
    """Print every name of the specification and its status."""
    print(format_table(coverage()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
