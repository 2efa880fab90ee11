"""Arrays in .npy and .npz files, validated before they are read.

The size in a header is compared with the number of bytes that follow before memory is allocated,
and the caller gets the headers of all arrays before the first one is unpacked. Pickled objects are
never loaded. All errors of a file are LaunchErrors.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from spyre.errors import LaunchError, SpyreError


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """The header of an array. ``in_columns``: column-major order."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    in_columns: bool

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


HeaderCheck = Callable[[Sequence[ArrayHeader]], None]
"""Called with the headers of all arrays; raises to prevent that they are read."""

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    SyntaxError,  # a header that is no Python literal
    tokenize.TokenError,
    OverflowError,
    RecursionError,
    TypeError,
    NotImplementedError,  # a method of compression
    RuntimeError,  # encryption
    zipfile.BadZipFile,
    zlib.error,
)
_NPY_SUFFIX = ".npy"


def read_npy(file: Path, check: HeaderCheck | None = None) -> NDArray[Any]:
    """The array of a .npy file.

    Errors of ``check``; LaunchError SPY330 (damaged), SPY335 (pickles), SPY382 (memory).
    """
    with _located(file), file.open("rb") as stream:
        header = _read_header(stream, file.stat().st_size, file, file.stem)
        if check is not None:
            check((header,))
        return _read_elements(stream, header)


def read_npz(
    file: Path,
    key: str | None = None,
    check: HeaderCheck | None = None,
    only: Container[str] | None = None,
) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file in its order: all, the one of ``key``, or those in ``only``.

    Errors as of `read_npy` and ``check``; LaunchError SPY332 without such a key.
    """
    with _located(file), zipfile.ZipFile(file) as archive:
        members = {i.filename.removesuffix(_NPY_SUFFIX): i for i in archive.infolist()}
        if key is not None and key not in members:
            raise LaunchError(
                "SPY332", f"{file} has no array {key!r}", expected=f"one of {', '.join(members)}"
            )
        names = members if key is None else [key]
        if check is not None:
            headers = []
            for name in names:
                with archive.open(members[name]) as stream:
                    headers.append(_read_header(stream, members[name].file_size, file, name))
            check(headers)
        arrays = {}
        for name in names if only is None else [name for name in names if name in only]:
            with archive.open(members[name]) as stream:
                header = _read_header(stream, members[name].file_size, file, name)
                arrays[name] = _read_elements(stream, header)
        return arrays


@contextmanager
def _located(file: Path) -> Iterator[None]:
    """Convert the exceptions of libraries for damaged files into errors that name the file."""
    try:
        yield
    except SpyreError:
        raise
    except MemoryError as error:
        raise LaunchError("SPY382", f"no memory for the tensors of {file}") from error
    except _DAMAGE as error:
        raise LaunchError("SPY330", f"cannot read tensor file {file}: {error}") from error


def _read_header(stream: IO[bytes], size_bytes: int, file: Path, name: str) -> ArrayHeader:
    """Read a header, and check that its array fits ``size_bytes``, the size of both."""
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"format version {version}")
    shape, in_columns, dtype = _HEADERS[version](stream)
    header = ArrayHeader(name, tuple(map(int, shape)), dtype, in_columns)
    if dtype.hasobject:
        raise LaunchError("SPY335", f"{file} holds pickled objects")
    follow = size_bytes - stream.tell()
    if min(header.shape, default=0) < 0 or header.size_bytes > follow:
        announced = f"{header.shape} of {dtype}, {header.size_bytes} bytes"
        raise ValueError(f"the header says {announced}; {follow} bytes follow")
    return header


def _read_elements(stream: IO[bytes], header: ArrayHeader) -> NDArray[Any]:
    content = bytearray(header.size_bytes)
    if stream.readinto(content) != header.size_bytes:  # type: ignore[attr-defined]
        raise EOFError("its end is missing")
    flat = np.frombuffer(content, header.dtype, prod(header.shape))
    return flat.reshape(header.shape, order="F" if header.in_columns else "C")
