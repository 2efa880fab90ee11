"""Sources of a bundle's files: a directory, or memory (read ahead, or a program binary).

Separate from :mod:`.bundle`, which imports the parser: a launch whose plan is cached needs only
the names of the files.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from spyre import config
from spyre.errors import BundleError
from spyre.files import read_regular

MODULE_FILE = "bundle.mlir"


def is_sdsc_file(name: str) -> bool:
    """True for sdsc_*.json. (`fnmatch` compiles a regular expression in every process.)"""
    return name.startswith("sdsc_") and name.endswith(".json")


def require_inside(path: str | os.PathLike[str], directory: str | os.PathLike[str]) -> None:
    """PermissionError for a path that leaves ``directory``, by its name or by links, unless
    SPYRE_ALLOW_OUTSIDE permits it. ValueError for a name with NUL.
    """
    text, above = os.fspath(path), os.fspath(directory)
    is_plain = os.path.dirname(text) == above and os.path.basename(text) != ".."
    if (is_plain and not os.path.islink(text)) or config.allows_outside():
        return
    above, real = os.path.realpath(above), os.path.realpath(text)
    if os.path.commonpath((above, real)) != above:
        reason = f"outside of its directory, and {config.ALLOW_OUTSIDE.name} is not 1"
        raise PermissionError(errno.EPERM, reason, real)


def read_inside(path: str | os.PathLike[str], directory: str | os.PathLike[str]) -> bytes:
    """`read_regular` of a file that may not leave ``directory``; errors as of `require_inside`."""
    require_inside(path, directory)
    return read_regular(path)


class DirectorySource(msgspec.Struct, frozen=True):
    """The files of a directory."""

    directory: Path
    module_name: str = MODULE_FILE

    def read(self, name: str) -> bytes:
        """Contents of a file. BundleError SPY274 when it cannot be read."""
        path = self.directory / name
        try:
            return read_inside(path, self.directory)
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
        return sorted(filter(is_sdsc_file, (p.name for p in self.directory.glob("*"))))


class BundleFiles(msgspec.Struct, frozen=True, dict=True):
    """A bundle's files in memory, by name relative to ``directory``.

    ``module_name``: bundle.mlir, unless the caller named another file. ``is_complete``: False if
    some files of the bundle may be missing, because bundle.mlir spells a name with escapes or an
    SDSC is not a regular file.
    """

    directory: Path
    module_name: str
    files: Mapping[str, bytes]
    is_complete: bool = True

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of all files; it does not depend on ``directory``."""
        return digest_of_files(self.files, self.module_name)

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
        return sorted(filter(is_sdsc_file, self.files))


BundleSource = DirectorySource | BundleFiles


def digest_of_files(files: Mapping[str, bytes], module_name: str = MODULE_FILE) -> str:
    """SHA-256 (hexadecimal) over the module's name, then names and contents in order of names."""
    digest = hashlib.sha256(module_name.encode("utf-8", "surrogateescape") + b"\0")
    for name in sorted(files):
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        digest.update(hashlib.sha256(files[name]).digest())
    return digest.hexdigest()
