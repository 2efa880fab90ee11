"""Where a bundle's files come from: a directory, or memory (a program binary).

Apart from :mod:`.bundle`, which loads the parser: a launch whose plan is kept needs names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

from spyre.errors import BundleError

MODULE_FILE = "bundle.mlir"
SDSC_PATTERN = "sdsc_*.json"


class BundleSource(Protocol):
    """Where a bundle's files come from: a directory, or memory."""

    @property
    def directory(self) -> Path:
        """Where messages say the files are."""

    def read(self, name: str) -> bytes:
        """Contents of a file. BundleError SPY274 when it cannot be read."""

    def holds(self, name: str) -> bool:
        """True if there is such a file."""

    def sdsc_names(self) -> list[str]:
        """Names of all SDSC files, sorted."""


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """The files of a directory."""

    directory: Path

    def read(self, name: str) -> bytes:
        """Contents of a file. BundleError SPY274 when it cannot be read."""
        path = self.directory / name
        try:
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise BundleError("SPY274", f"{path} cannot be read", found="no regular file")
            return path.read_bytes()
        except OSError as error:
            message = f"{path} cannot be read"
            raise BundleError("SPY274", message, found=str(error.strerror)) from None

    def holds(self, name: str) -> bool:
        """False also where the host cannot have such a file, its name being too long."""
        try:
            return (self.directory / name).is_file()
        except OSError:
            return False

    def sdsc_names(self) -> list[str]:
        """Names of all SDSC files, sorted."""
        return sorted(p.name for p in self.directory.glob(SDSC_PATTERN))


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Files by name; ``directory`` is where messages say they are."""

    directory: Path
    files: Mapping[str, bytes]

    def read(self, name: str) -> bytes:
        """Contents of a file. BundleError SPY274 when there is none."""
        if name not in self.files:
            raise BundleError("SPY274", f"{self.directory / name} cannot be read", found="no file")
        return self.files[name]

    def holds(self, name: str) -> bool:
        """True if there is such a file."""
        return name in self.files

    def sdsc_names(self) -> list[str]:
        """Names of all SDSC files, sorted."""
        return sorted(name for name in self.files if fnmatch(name, SDSC_PATTERN))
