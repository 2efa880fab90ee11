"""The files a bundle consists of, as bytes: what its digest, its binary and its plan are of.

They are bundle.mlir, every SDSC file beside it, every other file that bundle.mlir names in quotes
(an execute may call its SDSC anything), and launch_spec.json. Nothing is parsed here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

from spyre.mlir.bundle_source import MODULE_FILE, SDSC_PATTERN
from spyre.runtime.launch_spec import LAUNCH_SPEC_FILE

_QUOTED = re.compile(rb'"([^"\n]*)"')


@dataclass(frozen=True)
class BundleFiles:
    """A bundle's files by name, relative to ``directory``, which is spelled as it was given.

    ``module_name``: bundle.mlir, unless another file was given. ``is_complete``: False where a
    name in bundle.mlir is spelled with escapes, so that it is not known which file it means.
    """

    directory: str
    module_name: str
    files: Mapping[str, bytes]
    is_complete: bool = True

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, wherever it lies."""
        return digest_of_files(self.files, self.module_name)


def read_bundle_files(path: str | os.PathLike[str]) -> BundleFiles | None:
    """The files of a bundle directory, or of the module given.

    None when there is no module or a file cannot be read: `load_bundle` says why.
    """
    given = os.fspath(path)
    directory, module_name = (given, MODULE_FILE)
    if not os.path.isdir(given):
        directory, module_name = os.path.split(given)
    try:
        module = _read(os.path.join(directory, module_name))
        quoted = [name for name in set(_QUOTED.findall(module)) if b"\0" not in name]
        names = {n for n in os.listdir(directory or ".") if fnmatch(n, SDSC_PATTERN)}
        names.update(os.fsdecode(name) for name in quoted if b"\\" not in name and name)
        names.add(LAUNCH_SPEC_FILE)
        files = {name: _read(os.path.join(directory, name)) for name in _present(directory, names)}
    except (OSError, ValueError):
        return None
    complete = not any(b"\\" in name for name in quoted)
    return BundleFiles(directory, module_name, {**files, module_name: module}, complete)


def digest_of_files(files: Mapping[str, bytes], module_name: str = MODULE_FILE) -> str:
    """SHA-256 (hexadecimal) over the module's name, then names and contents in order of names."""
    digest = hashlib.sha256(module_name.encode() + b"\0")
    for name in sorted(files):
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        digest.update(hashlib.sha256(files[name]).digest())
    return digest.hexdigest()


def _present(directory: str, names: set[str]) -> list[str]:
    """Names of files inside the directory."""
    inside = (n for n in names if not os.path.isabs(n) and ".." not in n.split("/"))
    return sorted(n for n in inside if os.path.isfile(os.path.join(directory, n)))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
