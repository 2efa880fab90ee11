"""The cache directory: made where it can be, and keyed by this package's own sources.

Reading and hashing the sources takes longer than a cache hit may, so their digest is kept in the
cache too, together with the stamps of the files: size, times of change, inode. An edit changes a
stamp, and the sources are read again. Safe for any number of threads and processes.
"""

from __future__ import annotations

import hashlib
import os
import uuid
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from spyre import config

PACKAGE = Path(__file__).parent
_FOLDER = "sources"
_HEX_DIGITS = 64


def writable_directory(name: str) -> Path | None:
    """A directory of the cache, made if missing; None, with one warning, where it cannot be."""
    try:
        directory = config.cache_directory() / name
        directory.mkdir(parents=True, exist_ok=True)
        usable = os.access(directory, os.W_OK | os.X_OK)
        reason = "not writable"
    except (OSError, RuntimeError) as error:  # no home directory is a RuntimeError
        usable, reason = False, str(error)
    if usable:
        return directory
    warn_uncached(reason)
    return None


@cache
def warn_uncached(reason: str) -> None:
    """Once per reason, not once per use."""
    warnings.warn(
        f"compiled kernels cannot be kept ({reason}): every process compiles them again; "
        f"set {config.CACHE_DIR.name} to a writable directory",
        RuntimeWarning,
        stacklevel=2,
    )


# --- sources ----------------------------------------------------------------------------------


def package_sources(*names: str) -> tuple[str, ...]:
    """Paths of modules of this package and of all sources in folders of it, sorted."""
    found: list[str] = []
    for name in names:
        path = os.path.join(PACKAGE, name)
        if not os.path.isdir(path):
            found.append(path)
            continue
        with os.scandir(path) as entries:
            found += [entry.path for entry in entries if entry.name.endswith((".py", ".lark"))]
    return tuple(sorted(found))


def digest_of_sources(paths: Iterable[str]) -> str:
    """SHA-256 (hexadecimal) of names and contents of files, from their stamps if those are known.

    OSError when a file cannot be read. Where nothing can be kept, all are read every time.
    """
    given = tuple(paths)
    stamp, kept = _stamp(given), _kept_file(given)
    if kept is None:
        return _digest(given)
    digest = _read_kept(kept, stamp)
    if digest is None:
        digest = _digest(given)
        _keep(kept, f"{stamp} {digest}")
    return digest


def _digest(paths: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(os.path.basename(path).encode() + b"\0")
        with open(path, "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def _stamp(paths: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        s = os.stat(path)
        digest.update(b"%d %d %d %d " % (s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino))
    return digest.hexdigest()


def _kept_file(paths: tuple[str, ...]) -> Path | None:
    """One file per list of sources, which another state of them overwrites."""
    name = hashlib.sha256("\0".join(paths).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    try:
        return config.cache_directory() / _FOLDER / name
    except RuntimeError:  # no home directory
        return None


def _read_kept(path: Path, stamp: str) -> str | None:
    """The digest of ``stamp``, if that is what was kept last."""
    try:
        text = path.read_text("ascii")
    except (OSError, ValueError):
        return None
    known, _, digest = text.partition(" ")
    return digest if known == stamp and len(digest) == _HEX_DIGITS else None


def _keep(path: Path, text: str) -> None:
    """Written whole or not at all; who cannot write learns so from `writable_directory`."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, "ascii")
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
