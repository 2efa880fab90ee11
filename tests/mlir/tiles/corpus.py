"""Programs of KTIR for the tests: our examples, and a collection beside the repository."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.conftest import SHARED

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "ktir"
COLLECTION = SHARED / "ktir"
"""Programs with values, wrong programs, texts: not part of the repository."""
needs_collection = pytest.mark.skipif(
    not COLLECTION.is_dir(), reason=f"the collection of KTIR programs is not in {COLLECTION}"
)


def examples() -> list[Path]:
    """The texts of the repository."""
    return sorted(EXAMPLES.glob("*.ktir"))


def collected(kind: str) -> list[Path]:
    """Programs of one folder of the collection; none where it is absent."""
    return sorted((COLLECTION / kind).glob("*/kernel.ktir"))


def rows(name: str) -> list[dict[str, str]]:
    """A table of the collection; empty where it is absent."""
    path = COLLECTION / name
    if not path.is_file():
        return []
    return list(csv.DictReader(path.read_text().splitlines(), delimiter="\t"))
