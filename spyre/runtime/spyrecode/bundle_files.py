"""The files a bundle consists of, as bytes: what its digest, its binary and its plan are of.

They are bundle.mlir, every SDSC file beside it, every other file that bundle.mlir names in quotes
(an execute may call its SDSC anything), and launch_spec.json. Nothing is parsed here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PurePosixPath

from spyre.mlir.bundle_source import MODULE_FILE, SDSC_PATTERN, MemorySource
from spyre.runtime.launch_spec import LAUNCH_SPEC_FILE, find_launch_spec, is_derived_spec

_QUOTED = re.compile(rb'"([^"\n]*)"')


@dataclass(frozen=True)
class BundleFiles:
    """A bundle's files by name, relative to ``directory``.

    ``module_name``: bundle.mlir, unless another file was given. ``is_complete``: False where it is
    not known which files belong to the bundle: a name in bundle.mlir is spelled with escapes, or
    an SDSC is no plain file.
    """

    directory: Path
    module_name: str
    files: Mapping[str, bytes]
    is_complete: bool = True

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of all of it, wherever it lies."""
        return digest_of_files(self.files, self.module_name)

    def to_source(self, directory: Path | None = None) -> MemorySource:
        """The files for `read_bundle`, as if they lay in ``directory``."""
        return MemorySource(self.directory if directory is None else directory, self.files)


def read_bundle_files(
    path: str | os.PathLike[str], executed: Iterable[str] = ()
) -> BundleFiles | None:
    """The files of a bundle directory, or of the module given.

    ``executed``: names of SDSC files that are known to be part of it, if the module was parsed.
    None when there is no module or a file cannot be read: `load_bundle` says why.
    """
    given = os.fspath(path)
    directory, module_name = given, MODULE_FILE
    if not os.path.isdir(given):
        directory, module_name = os.path.split(given)
    try:
        module = _read(os.path.join(directory, module_name))
        quoted = set(_QUOTED.findall(module))
        sdscs = {n for n in os.listdir(directory or ".") if fnmatch(n, SDSC_PATTERN)}
        known = set(executed)
        names = _files_among(directory, sdscs.union(known, map(os.fsdecode, quoted)))
        files = {name: _read(os.path.join(directory, name)) for name in names}
        files |= read_given_launch_spec(directory)
    except (OSError, ValueError):
        return None
    certain = bool(known) or not any(b"\\" in name for name in quoted)
    complete = certain and sdscs <= files.keys()
    return BundleFiles(Path(directory), module_name, {**files, module_name: module}, complete)


def digest_of_files(files: Mapping[str, bytes], module_name: str = MODULE_FILE) -> str:
    """SHA-256 (hexadecimal) over the module's name, then names and contents in order of names."""
    digest = hashlib.sha256(module_name.encode("utf-8", "surrogateescape") + b"\0")
    for name in sorted(files):
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        digest.update(hashlib.sha256(files[name]).digest())
    return digest.hexdigest()


def _files_among(directory: str, names: set[str]) -> list[str]:
    """Those of ``names`` that are files inside the directory, spelled plainly."""
    pure = {PurePosixPath(name) for name in names if name and "\0" not in name}
    inside = (str(p) for p in pure if not p.is_absolute() and ".." not in p.parts)
    return sorted(n for n in inside if os.path.isfile(os.path.join(directory, n)))


def read_given_launch_spec(directory: str | os.PathLike[str]) -> dict[str, bytes]:
    """The launch_spec.json a launch would read, by name, unless spyre-compile has derived it."""
    path = find_launch_spec(os.fspath(directory))
    if path is None or is_derived_spec(data := _read(os.fspath(path))):
        return {}
    return {LAUNCH_SPEC_FILE: data}


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
