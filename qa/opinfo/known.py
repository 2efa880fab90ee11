"""What is known to fail, from ``known.toml``: a run is only short of the bar for what is new."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from qa.opinfo.outcome import OpResult

FILE = Path(__file__).with_name("known.toml")


@dataclass(frozen=True)
class KnownFailure:
    """What becomes of an operator, and the reason."""

    outcome: str
    why: str


Known = dict[tuple[str, str], dict[str, KnownFailure]]
"""Failures by operator, for each way and dtype that was run whole."""


def read_known(path: Path = FILE) -> Known:
    """The failures in a file; KeyError where a line lacks the outcome or the reason."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        (way, dtype): {op: KnownFailure(one["outcome"], one["why"]) for op, one in ops.items()}
        for way, dtypes in tables.items()
        for dtype, ops in dtypes.items()
    }


KNOWN = read_known()


def known_failure(result: OpResult, known: Known = KNOWN) -> KnownFailure | None:
    """Why the operator fails, if it is known to and does so in the known way."""
    found = known.get((result.way, result.dtype), {}).get(result.op)
    return found if found is not None and found.outcome == result.outcome else None


def is_new(result: OpResult, known: Known = KNOWN) -> bool:
    """Whether the operator fails where everything that does is known."""
    fails = result.counted and not result.passes and known_failure(result, known) is None
    return fails and (result.way, result.dtype) in known


def passes_after_all(result: OpResult, known: Known = KNOWN) -> bool:
    """Whether the operator is known to fail, but none of the samples that ran does."""
    return result.passes and result.op in known.get((result.way, result.dtype), {})
