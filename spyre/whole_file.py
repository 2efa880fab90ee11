"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A path beside ``target`` to write to, which takes its place when the block ends well.

    Nothing is left behind when it does not. OSErrors are the caller's to explain. Any thread or
    process may do so at the same time: the last one wins.
    """
    temporary = target.with_name(f".{uuid.uuid4().hex}{target.suffix}")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
