"""Compiled plans on disk: found by the content of a bundle, shared by all processes of a user.

An entry is a header and a pickle (docs/decisions/012-program-cache.md). It is used only if its
length and SHA-256 are those of the header and the header is that of this bundle and this version of
the package; anything else is replaced. Files are written under another name and renamed.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock

import msgspec
import numpy as np

from spyre import config
from spyre.cache import (
    digest_of_sources,
    package_sources,
    read_kept,
    warn_uncached,
    writable_directory,
)
from spyre.errors import SpyreError
from spyre.mlir.bundle_source import BundleFiles
from spyre.runtime.program.compiled import (
    PLACEHOLDER,
    CompiledBundle,
    LoweredBundle,
    compile_bundle,
    compile_files,
    dump_plan,
    load_plan,
    read_bundle_files,
)

MAGIC = b"SPYREPLN"
_HEADER = struct.Struct("<8s32s32s32sQ")
"""magic, version key, digest of the bundle's files, SHA-256 of the payload, its bytes"""
MAX_ENTRIES = 512
MAX_BYTES = 1 << 30
_SUFFIX = ".plan"
_TEMPORARY = ".tmp"
_ABANDONED_SECONDS = 3600
_SOURCES = (
    "mlir",
    "layout",
    "dtypes",
    "errors.py",
    "rules.py",
    "runtime/program",
    "runtime/spyrecode",
)
"""Of this package: what makes a plan, or is unpickled with it."""


class PlanCache:
    """Plans in a directory. Any number of threads and processes may use it at once.

    Holds at most about ``max_entries`` entries of ``max_bytes`` bytes; the oldest go first.
    ``counts``, of this object: hits, misses, damaged (wrong size or digest), stored, evicted.
    """

    def __init__(
        self, directory: Path, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES
    ) -> None:
        self.directory = directory
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.counts: Counter[str] = Counter()
        self._lock = Lock()

    def get(self, digest: str, directory: Path) -> CompiledBundle | None:
        """The plan of the files with ``digest``, its places in ``directory``; None without one.

        An entry that is not whole, or not this one, is none: `put` replaces it.
        """
        path = self.path_of(digest)
        try:
            data = read_kept(path)
        except OSError:
            self._count("misses")
            return None
        payload = entry_payload(data, digest)
        if payload is None:
            self._count("misses", "damaged")
            return None
        with suppress(OSError):
            os.utime(path)  # the entries used longest ago go first
        self._count("hits")
        return load_plan(payload, digest, directory)

    def put(self, digest: str, payload: bytes) -> bool:
        """Keep a plan; False, with one warning, where it cannot be written."""
        path = self.path_of(digest)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_TEMPORARY}")
        try:
            temporary.write_bytes(format_entry(payload, digest))
            os.replace(temporary, path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            warn_uncached(str(error.strerror))
            return False
        self._count("stored")
        self._evict()
        return True

    def path_of(self, digest: str) -> Path:
        """The file of an entry, which another version of the package does not look for."""
        return self.directory / f"{digest[:32]}-{version_key()[:16]}{_SUFFIX}"

    def _count(self, *names: str) -> None:
        with self._lock:
            self.counts.update(names)

    def _evict(self) -> None:
        """Remove the least recently used entries beyond the limits, and files of killed writers."""
        with suppress(OSError):
            entries = _entries(self.directory)
            kept_bytes = 0
            for count, (_, size_bytes, path) in enumerate(sorted(entries, reverse=True), 1):
                kept_bytes += size_bytes
                if count > self.max_entries or kept_bytes > self.max_bytes:
                    Path(path).unlink(missing_ok=True)
                    self._count("evicted")


def _entries(directory: Path) -> list[tuple[int, int, str]]:
    """Time of use in nanoseconds, bytes and path of all entries; abandoned files are removed."""
    entries = []
    oldest = time.time() - _ABANDONED_SECONDS
    with os.scandir(directory) as files:
        for file in files:
            with suppress(FileNotFoundError):
                status = file.stat()
                if file.name.endswith(_SUFFIX):
                    entries.append((status.st_mtime_ns, status.st_size, file.path))
                elif file.name.endswith(_TEMPORARY) and status.st_mtime < oldest:
                    os.unlink(file.path)
    return entries


# --- entries ----------------------------------------------------------------------------------


def format_entry(payload: bytes, digest: str) -> bytes:
    check = hashlib.sha256(payload).digest()
    key, files = bytes.fromhex(version_key()), bytes.fromhex(digest)
    return _HEADER.pack(MAGIC, key, files, check, len(payload)) + payload


def entry_payload(data: bytes, digest: str) -> bytes | None:
    """The payload of a whole entry of this version for ``digest``, else None."""
    if len(data) < _HEADER.size:
        return None
    magic, key, files, check, size_bytes = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    expected = (MAGIC, version_key(), digest, size_bytes)
    if (magic, key.hex(), files.hex(), len(payload)) != expected:
        return None
    return payload if hashlib.sha256(payload).digest() == check else None


@cache
def version_key() -> str:
    """SHA-256 of the sources and versions that the content of a plan depends on."""
    parts = (
        digest_of_sources(package_sources(*_SOURCES)),
        sys.version,
        msgspec.__version__,
        np.__version__,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# --- finding and making -----------------------------------------------------------------------


@cache
def _cache_in(directory: Path) -> PlanCache:
    return PlanCache(directory)


def default_cache() -> PlanCache | None:
    """The user's cache; None where SPYRE_PLAN_CACHE is off or nothing can be kept."""
    directory = writable_directory("plans") if config.PLAN_CACHE.is_on else None
    return None if directory is None else _cache_in(directory)


def load_compiled(
    path: str | os.PathLike[str],
    plans: PlanCache | None = None,
    files: BundleFiles | None = None,
) -> CompiledBundle:
    """The compiled bundle of a directory (or bundle.mlir), from the cache if possible.

    ``plans``: default `default_cache`. ``files``: those at ``path``, if they were read already.
    Errors as of `compile_bundle`; wrong bundles are not cached.
    """
    files = read_bundle_files(path) if files is None else files
    if files is None or not files.is_complete:
        return compile_bundle(path)
    return load_compiled_files(files, plans)


def load_compiled_files(files: BundleFiles, plans: PlanCache | None = None) -> CompiledBundle:
    """As `load_compiled`, for files in memory."""
    used = plans if plans is not None else default_cache()
    if used is None:
        return compile_files(files)
    return used.get(files.digest, files.directory) or _build(files, used)


def _build(files: BundleFiles, plans: PlanCache) -> CompiledBundle:
    """Compile, store the plan, and return the bundle that a later process will load."""
    try:
        kernel = compile_files(replace(files, directory=Path(PLACEHOLDER)))
    except SpyreError:
        return compile_files(files)  # raises again, with real places
    # A miss goes through the pickle too, so that it gives what the next process will be given.
    payload = dump_plan(kernel)
    plans.put(files.digest, payload)
    return load_plan(payload, files.digest, files.directory)


def load_source(path: str | os.PathLike[str], files: BundleFiles | None = None) -> LoweredBundle:
    """The compiled bundle of a directory; if the check finds errors, the `Bundle` as read.

    A wrong bundle can thus be diagnosed, or run unchecked. ``files`` as of `load_compiled`.
    Errors as of `load_bundle`.
    """
    try:
        return load_compiled(path, files=files)
    except SpyreError:
        from spyre.mlir.bundle import load_bundle

        return load_bundle(path)
