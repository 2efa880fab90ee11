"""Writing files of a profile: whole or not at all."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from spyre.errors import ProfileError
from spyre.whole_file import whole_file, writable_target


def check_target(path: Path | str) -> Path:
    """Where a file goes, symbolic links followed. ProfileError SPY782 when none can be there."""
    return writable_target(path, partial(_refusal, path))


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
