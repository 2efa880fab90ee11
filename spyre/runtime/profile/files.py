"""Writing files of a profile: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from spyre.errors import ProfileError
from spyre.whole_file import whole_file


def check_target(path: Path | str) -> Path:
    """Where a file goes, symbolic links followed. ProfileError SPY782 when none can be there."""
    try:
        target = Path(path).resolve()
        exists = os.path.lexists(target)
    except (OSError, RuntimeError) as error:
        raise _refusal(path, str(error)) from error
    if exists and not target.is_file():
        raise _refusal(path, "something other than a file")
    if not target.parent.is_dir():
        raise _refusal(path, "a directory that does not exist")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise _refusal(path, "a directory that may not be written")
    return target


def write_whole(path: Path | str, content: bytes) -> None:
    """Write ``content``. ProfileError SPY782 when it cannot be written."""
    target = check_target(path)
    try:
        with whole_file(target) as place:
            place.write_bytes(content)
    except OSError as error:
        raise _refusal(path, str(error.strerror)) from error


def _refusal(path: Path | str, found: str) -> ProfileError:
    return ProfileError(
        "SPY782",
        f"cannot write {path}",
        expected="a file in a directory that may be written",
        found=found,
    )
