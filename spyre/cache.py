"""The cache directory: made where it can be, bounded, and keyed by this package's own sources.

Reading and hashing the sources takes longer than a cache hit may, so their digest is kept in the
cache too, together with the stamps of the files: size, times of change, inode. An edit changes a
stamp, and the sources are read again. Safe for any number of threads and processes. Nothing is read
that another user may have written: there are pickles and machine code (docs/security.md).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from spyre import config
from spyre.files import atomic_write, make_directories, other_writer, read_regular

PACKAGE = Path(__file__).parent
_FOLDER = "sources"
_HEX_DIGITS = 64
_SUFFIXES = (".py", ".lark")
_TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}


def find_directory(name: str = "") -> tuple[Path | None, str]:
    """Return a directory of the first usable cache, None without one, and why others are not."""
    refused: list[str] = []
    for place in config.cache_directories():
        try:
            make_directories(place / name)
            # Links are followed once: who may change one cannot exchange the directory later.
            directory = Path(os.path.realpath(place / name))
            if reason := other_writer(directory):
                raise PermissionError(reason)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(os.strerror(errno.EACCES))
            return directory, f"{'; '.join(refused)}: {place} is used" if refused else ""
        except OSError as error:
            refused.append(f"{place} cannot be used ({error.strerror or error})")
    return None, f"{'; '.join(refused)}: nothing is kept, large programs compile in every process"


def writable_directory(name: str) -> Path | None:
    """Return the directory of `find_directory`; one warning where it is not the one asked for."""
    found, reason = find_directory(name)
    if reason:
        warn_once(f"SPY405: the cache {reason}; set {config.CACHE_DIR.name}")
    return found


def directory() -> Path:
    """Return the cache in use, made if missing; the one asked for where none can be used."""
    return find_directory()[0] or next(config.cache_directories())


def require_trusted(path: str | os.PathLike[str]) -> None:
    """PermissionError, with one warning, where `other_writer` has a reason against ``path``."""
    if reason := other_writer(path):
        warn_uncached(f"SPY405: {reason}")
        raise PermissionError(f"SPY405: {reason}")


def read_kept(path: str | os.PathLike[str]) -> bytes:
    """Read a file of the cache like `read_regular`; PermissionError like `require_trusted`."""
    require_trusted(path)
    return read_regular(path)


@cache
def warn_once(text: str) -> None:
    """Warn of files of the cache, once per process."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def warn_uncached(reason: str) -> None:
    """Warn once per reason that files in the cache cannot be read or written."""
    warn_once(f"compiled kernels cannot be kept in {directory()} ({reason}): they compile again")


# --- size -------------------------------------------------------------------------------------

KERNELS = "kernels-"
"""Beginning of the names of directories of compiled kernels."""
MAX_KERNEL_BYTES = 1 << 30
"""Bytes that compiled kernels of all source states may take."""


def kernel_directory(key: str) -> Path | None:
    """Like `writable_directory`; an empty one replaces the oldest beyond `MAX_KERNEL_BYTES`."""
    found = writable_directory(f"{KERNELS}{key}")
    if found is not None:
        with suppress(OSError):
            os.utime(found)
            if not os.listdir(found):
                _prune(found.parent, MAX_KERNEL_BYTES)
    return found


def _prune(cache: Path, max_bytes: int) -> None:
    """Remove directories of kernels but for those used last, which take ``max_bytes`` at most.

    A process that had some of them in use compiles them again.
    """
    directories = [path for path in cache.iterdir() if path.name.startswith(KERNELS)]
    kept_bytes = 0
    for directory in sorted(directories, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        kept_bytes += _size_bytes(directory)
        if kept_bytes > max_bytes:
            shutil.rmtree(directory, ignore_errors=True)


def _size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


_KINDS = (
    ("compiled kernels, by state of sources", f"{KERNELS}*"),
    ("compiled programs", "plans"),
    ("tables of the parser", "grammar"),
    ("digests of sources", _FOLDER),
)


def kept() -> tuple[tuple[str, int, int], ...]:
    """Return the kinds of files in the cache directory, with their number and bytes."""
    rows = []
    for kind, pattern in _KINDS:
        folders = [path for path in directory().glob(pattern) if path.is_dir()]
        entries = len(folders) if "*" in pattern else sum(len(list(f.iterdir())) for f in folders)
        rows.append((kind, entries, sum(map(_size_bytes, folders))))
    return tuple(rows)


def clear() -> tuple[Path, int]:
    """Remove this package's files from the cache directory; return it and the bytes removed.

    Other files in it stay. OSError if a file cannot be removed.
    """
    cache = directory()
    removed_bytes = 0
    for _, pattern in _KINDS:
        for path in cache.glob(pattern):
            if path.is_dir():
                removed_bytes += _size_bytes(path)
                shutil.rmtree(path)
    return cache, removed_bytes


# --- sources ----------------------------------------------------------------------------------


def package_sources(*names: str) -> tuple[str, ...]:
    """Paths of modules of this package and of all sources in and below folders of it, sorted."""
    paths: list[str] = []
    for name in names:
        path = os.path.join(PACKAGE, name)
        if not os.path.isdir(path):
            paths.append(path)
        for folder, _, files in os.walk(path):
            paths += [os.path.join(folder, file) for file in files if file.endswith(_SUFFIXES)]
    return tuple(sorted(paths))


def digest_of_sources(paths: Iterable[str]) -> str:
    """SHA-256 (hexadecimal) of names and contents of files, from their stamps if those are known.

    OSError when a file cannot be read. Where nothing can be kept, all are read every time.
    """
    sources = tuple(paths)
    stamps = _kept_file("\0".join(sources))
    return _known_digest(_kept_lines(stamps), sources) or _keep(stamps, sources)


def digest_of_found_sources(name: str, find: Callable[[], Iterable[str]]) -> str:
    """Return `digest_of_sources` of the files that ``find`` lists.

    The list is cached under ``name`` and made again only after one of its files was edited, so it
    must depend on the contents of these files alone.
    """
    stamps = _kept_file(f"{PACKAGE}\0{name}")
    lines = _kept_lines(stamps)
    listed = tuple(lines[1:])
    known = listed and all(map(os.path.exists, listed)) and _known_digest(lines, listed)
    return known or _keep(stamps, tuple(find()))


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


def _kept_file(what: str) -> Path | None:
    """One file per list of sources, which another state of them overwrites."""
    name = hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    folder = writable_directory(_FOLDER)
    return None if folder is None else folder / name


def _kept_lines(path: Path | None) -> list[str]:
    """Stamp and digest, then the files; nothing if nothing was kept."""
    try:
        return [] if path is None else read_kept(path).decode(**_TEXT).split("\n")
    except (OSError, ValueError):
        return []


def _known_digest(lines: list[str], sources: tuple[str, ...]) -> str | None:
    """The digest that was kept, in ``lines`` of `_kept_lines`, for the files as they are now."""
    stamp, _, digest = lines[0].partition(" ") if lines else ("", "", "")
    if len(digest) != _HEX_DIGITS or tuple(lines[1:]) != sources:
        return None
    return digest if stamp == _stamp(sources) else None


def _keep(path: Path | None, sources: tuple[str, ...]) -> str:
    """The digest, kept whole or not at all.

    The stamp is taken first: an edit while the files are read makes it one of the past.
    """
    stamp = _stamp(sources)
    digest = _digest(sources)
    if path is None:
        return digest
    with suppress(OSError), atomic_write(path) as place:
        place.write_text("\n".join((f"{stamp} {digest}", *sources)), **_TEXT)
    return digest
