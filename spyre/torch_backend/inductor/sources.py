"""The identity of the backend's code: part of every key Inductor caches under."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import spyre


@cache
def source_hash() -> str:
    """A digest of all source files that may change what is generated."""
    root = Path(spyre.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
