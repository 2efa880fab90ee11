"""Compiled bundles: files with their digest, read, lowered and checked; pickled as plans, which are
kept on disk, found by the content of a bundle, and shared by all processes of a user.

A launch then only binds arguments and links. A plan contains no directory: loading it inserts the
directory that the bundle is used from, for messages. Nothing here imports the parser until
something has to be parsed.

An entry is a header and a pickle (docs/decisions/012-program-cache.md). It is used only if its
length and SHA-256 are those of the header and the header is that of this bundle and this version of
the package; anything else is replaced. Files are written under another name and renamed.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, Union, cast

import msgspec
from msgspec.structs import replace

from spyre import config
from spyre.cache import (
    digest_of_sources,
    package_sources,
    read_kept,
    warn_uncached,
    writable_directory,
)
from spyre.errors import BundleError, Finding, SpyreError, UnsupportedError
from spyre.files import atomic_write
from spyre.mlir.bundle_source import MODULE_FILE, BundleFiles, is_sdsc_file, read_inside
from spyre.mlir.operation import Operation
from spyre.mlir.program import LinkableProgram, LoopProgram
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    LaunchSpec,
    SymbolKind,
    find_launch_spec,
    is_derived_spec,
    parse_launch_spec,
    spec_text,
    symbol_kind,
)

if TYPE_CHECKING:
    from spyre.mlir.builder import BuiltBundle
    from spyre.mlir.bundle import Bundle


# --- compiled bundles ----------------------------------------------------------------------------


class LoweredProgram(Protocol):
    """A program of any kind, ready to be linked and launched.

    ``directory``: its location, for messages. ``operations``: by the name its executes use.
    """

    @property
    def directory(self) -> Path:
        """Location of its files."""

    @property
    def program(self) -> LinkableProgram:
        """Parameters, allocations and executes."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """Operations by name."""

    def check(self, raise_on_error: bool = False) -> tuple[Finding, ...]:
        """All findings; ``raise_on_error``: ValidationError with all of them if one is an error."""


LoweredBundle = Union["Bundle", "BuiltBundle", "CompiledBundle"]
"""A bundle as a `LoweredProgram`, its operations named by SDSC file: just read, built, or compiled.
Errors as of `Bundle`."""


def require_bundle(program: LoweredProgram, feature: str) -> LoweredBundle:
    """``program`` as a bundle, for a feature that reads its loops.

    UnsupportedError SPY889, which names the feature, for other kinds of programs.
    """
    if isinstance(program.program, LoopProgram):
        return cast(LoweredBundle, program)
    message = f"{feature} of this kind of program is not simulated"
    expected = "a program of loops and executes, as in bundle.mlir"
    found = f"{type(program.program).__name__} {program.directory.name}"
    raise UnsupportedError("SPY889", message, expected=expected, found=found)


def digest_of(program: LoweredProgram) -> str:
    """Return the digest of a program on a card: of its files, or of its executes."""
    if isinstance(program, CompiledBundle):
        return program.digest
    if isinstance(program.program, LoopProgram):
        return files_of_bundle(cast("Bundle", program)).digest
    return hashlib.sha256(f"{program.directory}\n{program.program}".encode()).hexdigest()


_QUOTED = re.compile(rb'"([^"\n]*)"')


def read_bundle_files(
    path: str | os.PathLike[str], executed: Iterable[str] = ()
) -> BundleFiles | None:
    """The files of a bundle directory, or of the module given.

    ``executed``: names of SDSC files that are known to be part of it, if the module was parsed.
    None when there is no module or a file cannot be read; `load_bundle` then raises the reason.
    """
    text = os.fspath(path)
    directory, module_name = text, MODULE_FILE
    if not os.path.isdir(text):
        directory, module_name = os.path.split(text)
    try:
        module = read_inside(os.path.join(directory, module_name), directory)
        quoted = set(_QUOTED.findall(module))
        sdscs = set(filter(is_sdsc_file, os.listdir(directory or ".")))
        known = set(executed)
        names = _files_among(directory, sdscs.union(known, map(os.fsdecode, quoted)))
        files = {name: read_inside(os.path.join(directory, name), directory) for name in names}
        files |= read_given_launch_spec(directory)
    except (OSError, ValueError, BundleError):
        return None
    # Names are looked for without parsing. A name spelled with escapes could be any file's.
    certain = bool(known) or not any(b"\\" in name for name in quoted)
    complete = certain and sdscs <= files.keys()
    return BundleFiles(Path(directory), module_name, {**files, module_name: module}, complete)


def _files_among(directory: str, names: set[str]) -> list[str]:
    """Those of ``names`` that are files inside the directory, spelled plainly."""
    pure = {PurePosixPath(name) for name in names if name and "\0" not in name}
    inside = (str(p) for p in pure if not p.is_absolute() and ".." not in p.parts)
    return sorted(n for n in inside if os.path.isfile(os.path.join(directory, n)))


def read_given_launch_spec(directory: str | os.PathLike[str]) -> dict[str, bytes]:
    """The launch_spec.json a launch would read, by name, unless spyre-compile has derived it.

    BundleError SPY301 when it cannot be read.
    """
    path = find_launch_spec(os.fspath(directory))
    if path is None or is_derived_spec(data := spec_text(path)):
        return {}
    return {LAUNCH_SPEC_FILE: data}


PLACEHOLDER = "\0bundle directory\0"
"""Stands for the bundle's directory while a plan is made."""


class CompiledBundle(msgspec.Struct, frozen=True):
    """A bundle that was read, lowered and checked. Immutable: any number of threads may share it.

    ``digest``: of the bundle's files. ``directory``: of these files, for messages. ``operations``:
    by SDSC file name. ``launch_spec``: launch_spec.json of the bundle with its runtime sizes
    unbound; None without one. ``symbols``: one kind per parameter.
    ``findings``: warnings of the checker.
    """

    digest: str
    directory: Path
    program: LoopProgram
    operations: Mapping[str, Operation]
    findings: tuple[Finding, ...]
    launch_spec: LaunchSpec | None
    symbols: tuple[SymbolKind, ...]

    @property
    def name(self) -> str:
        """The kernel's name: the launch spec's, else the directory's."""
        if self.launch_spec is not None:
            return self.launch_spec.kernel_name
        return self.directory.resolve().name

    def check(self, raise_on_error: bool = False) -> tuple[Finding, ...]:
        """The findings, none of which is an error: such bundles do not compile."""
        return self.findings


def compile_bundle(bundle: Bundle | str | os.PathLike[str]) -> CompiledBundle:
    """A bundle, or a bundle directory, compiled; the cache is neither read nor written.

    SpyreErrors of reading, ValidationError with all findings when the check finds an error,
    BundleError SPY301-SPY303 for its launch_spec.json.
    """
    from spyre.mlir.bundle import Bundle, load_bundle

    if isinstance(bundle, Bundle):
        return _compiled(bundle, files_of_bundle(bundle))
    loaded = load_bundle(bundle)
    read = read_bundle_files(bundle)
    return _compiled(loaded, read if read is not None else files_of_bundle(loaded))


def compile_files(files: BundleFiles) -> CompiledBundle:
    """As `compile_bundle`, for files in memory; messages name ``files.directory``."""
    from spyre.mlir.bundle import read_bundle

    return _compiled(read_bundle(files), files)


def files_of_bundle(bundle: Bundle) -> BundleFiles:
    """The files a bundle in memory would be written as, and the launch spec of its directory."""
    from spyre.mlir.sdsc import encode_sdsc
    from spyre.mlir.text import print_module

    files = {name: encode_sdsc(sdsc) for name, sdsc in bundle.sdscs.items()}
    files |= read_given_launch_spec(bundle.directory)
    files[MODULE_FILE] = print_module(bundle.module).encode()
    return BundleFiles(bundle.directory, MODULE_FILE, files)


def _compiled(bundle: Bundle, files: BundleFiles) -> CompiledBundle:
    program, operations = bundle.program, dict(bundle.operations)
    findings = bundle.check(raise_on_error=True)
    spec = None
    if (data := files.files.get(LAUNCH_SPEC_FILE)) is not None:
        spec = parse_launch_spec(data, bundle.path_of(LAUNCH_SPEC_FILE))
    return CompiledBundle(
        files.digest,
        bundle.directory,
        program,
        operations,
        findings,
        spec,
        tuple(map(symbol_kind, program.parameters)),
    )


# --- plans ------------------------------------------------------------------------------------


def dump_plan(kernel: CompiledBundle) -> bytes:
    """The plan of a kernel whose ``directory`` is :data:`PLACEHOLDER`."""
    assert str(kernel.directory) == PLACEHOLDER
    state = (kernel.program, kernel.operations, kernel.findings, kernel.launch_spec, kernel.symbols)
    file = io.BytesIO()
    _PlanPickler(file, pickle.HIGHEST_PROTOCOL).dump(state)
    return file.getvalue()


def load_plan(data: bytes, digest: str, directory: Path) -> CompiledBundle:
    """The kernel of a plan, its places in ``directory``. ``data`` has to be trusted: a pickle."""
    return CompiledBundle(digest, directory, *_PlanUnpickler(io.BytesIO(data), directory).load())


class _PlanPickler(pickle.Pickler):
    """Every text with the placeholder is stored as a reference, which the loader fills in."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self._texts: dict[str, str] = {}

    def persistent_id(self, obj: Any) -> str | None:
        """The text itself where it names the directory."""
        if type(obj) is str and PLACEHOLDER in obj:
            return self._texts.setdefault(obj, obj)
        return None


class _PlanUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, directory: Path) -> None:
        super().__init__(file)
        self._directory = directory
        self._texts: dict[str, str] = {}

    def persistent_load(self, pid: str) -> str:
        """The text with the real directory, spelled as `pathlib` does."""
        text = self._texts.get(pid)
        if text is None:
            inside = str(self._directory / "x")[:-1]
            text = pid.replace(f"{PLACEHOLDER}/", inside).replace(PLACEHOLDER, str(self._directory))
            self._texts[pid] = text
        return text


# --- the cache -----------------------------------------------------------------------------------

MAGIC = b"SPYREPLN"
_HEADER = struct.Struct("<8s32s32s32sQ")
"""magic, version key, digest of the bundle's files, SHA-256 of the payload, its bytes"""
MAX_ENTRIES = 512
MAX_BYTES = 1 << 30
_SUFFIX = ".plan"
_SOURCES = (
    "mlir",
    "layout",
    "dtypes",
    "errors.py",
    "records.py",
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
        try:
            with atomic_write(self.path_of(digest)) as temporary:
                temporary.write_bytes(format_entry(payload, digest))
        except OSError as error:
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
        """Remove the least recently used files beyond the limits, those of killed writers too."""
        with suppress(OSError):
            newest_first = sorted(_entries(self.directory), reverse=True)
            kept_bytes = 0
            for count, (_, size_bytes, path) in enumerate(newest_first, 1):
                kept_bytes += size_bytes
                if count > self.max_entries or kept_bytes > self.max_bytes:
                    Path(path).unlink(missing_ok=True)
                    self._count("evicted")


def _entries(directory: Path) -> Iterator[tuple[int, int, str]]:
    """Time of use in nanoseconds, bytes and path of all files of plans."""
    with os.scandir(directory) as files:
        for file in files:
            with suppress(FileNotFoundError):
                if file.name.endswith(_SUFFIX):
                    status = file.stat()
                    yield status.st_mtime_ns, status.st_size, file.path


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
    import numpy as np  # late: SpyreCode is compiled without it

    parts = (
        digest_of_sources(package_sources(*_SOURCES)),
        sys.version,
        msgspec.__version__,
        np.__version__,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# --- finding and making -----------------------------------------------------------------------


_cache_in = cache(PlanCache)


def default_cache() -> PlanCache | None:
    """The user's cache; None where SPYRE_PLAN_CACHE is off or nothing can be kept."""
    directory = writable_directory("plans") if config.PLAN_CACHE.is_on else None
    return None if directory is None else _cache_in(directory)


def load_compiled(
    path: str | os.PathLike[str], plans: PlanCache | None = None, files: BundleFiles | None = None
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
