"""Write and read a whole SpyreCode directory; it is never complete before all files are written.

spyrecode.json is the commit record: it holds sizes and SHA-256 of the other files, is written last,
and is removed first when a directory is written again. A process that is killed in between leaves
the old directory, none, or one without spyrecode.json.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from spyre.errors import BundleError, JsonLocation
from spyre.files import read_regular
from spyre.mlir.bundle_source import require_inside
from spyre.runtime.program import (
    LAUNCH_SPEC_FILE,
    SPYRE_CODE_DIRECTORY,
    LaunchSpec,
    parse_launch_spec,
)
from spyre.runtime.spyrecode.commands import FileRecord, InitTransfer, SpyreCode
from spyre.runtime.spyrecode.init_binary import parse_init_text
from spyre.runtime.spyrecode.spyrecode_file import (
    SPYRECODE_FILE,
    format_spyrecode,
    parse_spyrecode,
    spyrecode_path,
)


class CodeDirectory(msgspec.Struct, frozen=True):
    """A SpyreCode directory in memory.

    ``binaries``: bytes of every InitTransfer, in order, of the transfer's length. ``launch_spec``:
    None if there is none.
    """

    directory: Path
    code: SpyreCode
    binaries: tuple[bytes, ...]
    launch_spec: LaunchSpec | None


# --- reading ----------------------------------------------------------------------------------


def read_code_directory(directory: str | os.PathLike[str]) -> CodeDirectory:
    """Read a SpyreCode directory, and compare every file with its record in spyrecode.json.

    Waits for a compiler that is writing the directory. BundleError as of `spyrecode_path` and
    `parse_spyrecode`; SPY844 for a missing or changed file, SPY843 for a malformed init.txt, SPY302
    and SPY303 for launch_spec.json.
    """
    path = Path(directory)
    with _waiting(path.absolute().parent):
        return _read_directory(path, spyrecode_path(path))


def _read_directory(directory: Path, path: Path) -> CodeDirectory:
    code = parse_spyrecode(_read(path, path), str(path))
    recorded = {
        name: _recorded(directory / name, record, path) for name, record in code.files.items()
    }
    binaries = tuple(
        _binary(directory, transfer, recorded, path) for transfer in code.init_transfers
    )
    spec = recorded.get(LAUNCH_SPEC_FILE)
    if spec is None and (directory / LAUNCH_SPEC_FILE).is_file():
        spec = _read(directory / LAUNCH_SPEC_FILE, path)
    parsed = None if spec is None else parse_launch_spec(spec, str(directory / LAUNCH_SPEC_FILE))
    return CodeDirectory(directory, code, binaries, parsed)


def _binary(
    directory: Path, transfer: InitTransfer, recorded: Mapping[str, bytes], record: Path
) -> bytes:
    path = directory / transfer.init_bin_file
    data = recorded.get(transfer.init_bin_file)
    if data is None:
        data = _read(path, record)
    if path.suffix == ".txt":
        data = parse_init_text(data, str(path))
    if len(data) < transfer.size_bytes:
        raise _wrong_file(path, record, f"{transfer.size_bytes} bytes", f"{len(data)} bytes")
    return data[: transfer.size_bytes]


def _recorded(path: Path, expected: FileRecord, record: Path) -> bytes:
    data = _read(path, record)
    actual = file_record(data)
    if actual[0] != expected[0]:
        raise _wrong_file(path, record, f"{expected[0]} bytes", f"{actual[0]} bytes")
    if actual != expected:
        raise _wrong_file(path, record, f"SHA-256 {expected[1]}", actual[1])
    return data


def _read(path: Path, record: Path) -> bytes:
    try:
        return read_regular(path)
    except (OSError, ValueError) as error:
        raise _wrong_file(path, record, path.name, str(error)) from error


def _wrong_file(path: Path, record: Path, expected: str, found: str) -> BundleError:
    """SPY844."""
    message = f"{path} is not the file that was compiled"
    return BundleError("SPY844", message, JsonLocation(str(record)), expected=expected, found=found)


def file_record(data: bytes) -> FileRecord:
    """Return the record of a file in spyrecode.json: its length and SHA-256."""
    return len(data), hashlib.sha256(data).hexdigest()


# --- writing ----------------------------------------------------------------------------------


def write_code_directory(parent: Path, code: SpyreCode, files: Mapping[str, bytes]) -> Path:
    """Write ``parent``/spyreCodeDir with spyrecode.json and ``files``; returns it.

    Files there under other names stay. Compilers of one directory wait for each other.
    BundleError SPY845 when it cannot be written.
    """
    records = {name: file_record(data) for name, data in files.items()}
    record = format_spyrecode(msgspec.structs.replace(code, files=records))
    target = parent / SPYRE_CODE_DIRECTORY
    try:
        require_inside(target, parent)
        with _locked(parent):
            _remove_abandoned(parent)
            if target.is_dir():
                _replace_files(target, files, record)
            else:
                _make_directory(target, files, record)
    except OSError as error:
        raise BundleError(
            "SPY845", f"{target} cannot be written", found=error.strerror or str(error)
        ) from error
    return target


def _make_directory(target: Path, files: Mapping[str, bytes], record: bytes) -> None:
    """All of it under another name, then one rename."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.mkdir()
        for name, data in {**files, SPYRECODE_FILE: record}.items():
            _write(temporary / name, data)
        _sync(temporary)
        os.rename(temporary, target)
        _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace_files(target: Path, files: Mapping[str, bytes], record: bytes) -> None:
    """The record goes first and comes last; in between, which is short, nothing is complete."""
    contents = {**files, SPYRECODE_FILE: record}
    if all(_holds(target / name, data) for name, data in contents.items()):
        return
    written = {name: target / f".{name}.{uuid.uuid4().hex}.tmp" for name in contents}
    try:
        for name, data in contents.items():
            _write(written[name], data)
        (target / SPYRECODE_FILE).unlink(missing_ok=True)
        _sync(target)  # the record is removed on disk before the first file is replaced
        for name in files:
            os.replace(written[name], target / name)
        if LAUNCH_SPEC_FILE not in files:
            (target / LAUNCH_SPEC_FILE).unlink(missing_ok=True)
        _sync(target)
        os.replace(written[SPYRECODE_FILE], target / SPYRECODE_FILE)
        _sync(target)
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and read_regular(path) == data
    except FileNotFoundError:
        return False


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Names on disk, in their order."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One compiler at a time; the lock ends with the process."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _waiting(directory: Path) -> Iterator[None]:
    """No compiler writes meanwhile. Where there are no locks, sizes and SHA-256 have to do."""
    with ExitStack() as stack:
        # A file system without locks, or a parent that cannot be opened, must not keep us from
        # reading: sizes and digests then tell a half-written directory.
        with suppress(OSError):
            handle = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield


def _remove_abandoned(parent: Path) -> None:
    """Remove temporary files of killed compilers; the caller holds the lock."""
    for path in parent.glob(f".{SPYRE_CODE_DIRECTORY}.*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    for path in (parent / SPYRE_CODE_DIRECTORY).glob(".*.tmp"):
        with suppress(OSError):
            path.unlink()
