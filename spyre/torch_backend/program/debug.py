"""Output of compiled programs: the log of TORCH_SPYRE_DEBUG, the bundles of SPYRE_KEEP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from spyre import config
from spyre.errors import LaunchError
from spyre.mlir.builder import BuiltBundle
from spyre.mlir.bundle import write_bundle
from spyre.torch_backend.registration import log_program

LISTING_FILE = "operations.txt"


def shows_programs() -> bool:
    """True if the environment enables the log or SPYRE_KEEP."""
    return config.logs_torch_operations() or config.keep_directory() is not None


def show_program(name: str, listing: str, parts: BuiltBundle) -> None:
    """Log and write a program that is about to be compiled, if the environment enables it.

    ``listing``: its operations, one per line. LaunchError SPY951 if SPYRE_KEEP cannot be written.
    """
    if config.logs_torch_operations():
        log_program(name, listing)
    directory = config.keep_directory()
    if directory is not None:
        keep_program(directory, name, listing, parts)


def keep_program(directory: Path, name: str, listing: str, parts: BuiltBundle) -> Path:
    """Write a program to a new directory in ``directory``, numbered and named after ``name``."""
    files = {**parts.extra_files, LISTING_FILE: f"{listing}\n".encode()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return write_bundle(
            replace(parts, extra_files=files), new_numbered_directory(directory, name)
        )
    except OSError as error:
        raise LaunchError(
            "SPY951",
            f"the program {name} cannot be written to {directory}",
            expected="SPYRE_KEEP to name a directory that may be written",
            found=error.strerror or type(error).__name__,
        ) from error


def new_numbered_directory(directory: Path, name: str) -> Path:
    """Create a directory with the next free number; safe for several processes."""
    text = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
    while True:
        number = max(_numbers(directory), default=0) + 1
        directory_made = directory / f"{number:04d}-{text}"
        try:
            directory_made.mkdir()
        except FileExistsError:  # another process took the number
            continue
        return directory_made


def _numbers(directory: Path) -> Iterator[int]:
    """Numbers of the existing programs."""
    for entry in directory.iterdir():
        head = entry.name.split("-", 1)[0]
        if head.isdecimal():
            yield int(head)
