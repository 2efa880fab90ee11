"""Finds case directories."""

from __future__ import annotations

from pathlib import Path

from spyre.runtime.cases import CASE_FILE


def find_cases(root: Path) -> list[Path]:
    """Case directories at or below ``root``, sorted by name."""
    if (root / CASE_FILE).is_file():
        return [root]
    return sorted(path.parent for path in root.glob(f"*/{CASE_FILE}"))
