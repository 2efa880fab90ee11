"""Known failures, from ``known.toml``; they do not count against a run."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from qa.opinfo.outcome import OpResult

FILE = Path(__file__).with_name("known.toml")


@dataclass(frozen=True)
class KnownFailure:
    """The known outcome of an operator, and the reason."""

    outcome: str
    why: str


Known = dict[tuple[str, str], dict[str, KnownFailure]]
"""Failures by operator, for each way and dtype whose whole database was run."""


def read_known(path: Path = FILE) -> Known:
    """Read the failures of a file. KeyError if a line lacks the outcome or the reason."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        (way, dtype): {op: KnownFailure(one["outcome"], one["why"]) for op, one in ops.items()}
        for way, dtypes in tables.items()
        for dtype, ops in dtypes.items()
    }


KNOWN = read_known()


def known_failure(result: OpResult, known: Known = KNOWN) -> KnownFailure | None:
    """Return the known failure of an operator if its outcome is the known one, else None."""
    found = known.get((result.way, result.dtype), {}).get(result.op)
    return found if found is not None and found.outcome == result.outcome else None


def is_new(result: OpResult, known: Known = KNOWN) -> bool:
    """Return True if the operator fails, is not known to, and the way and dtype have a table."""
    fails = result.counted and not result.passes and known_failure(result, known) is None
    return fails and (result.way, result.dtype) in known


def passes_after_all(result: OpResult, known: Known = KNOWN) -> bool:
    """Return True if the operator is known to fail, but all samples that ran pass."""
    return result.passes and result.op in known.get((result.way, result.dtype), {})
