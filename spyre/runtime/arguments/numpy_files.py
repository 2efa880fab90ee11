"""Arrays in .npy and .npz files, read with nothing taken on trust.

What a header says is compared with the bytes that follow before memory is taken for them, and with
the tensor that is asked for before an archive's member is unpacked. Pickled objects are never
loaded. A file that is wrong is a LaunchError, however it is wrong.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from spyre.errors import LaunchError

ShapeCheck = Callable[[int, str, tuple[int, ...], str], None]
"""Called with number, name, shape and dtype of an array before its elements are read."""

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


def read_npy(file: Path) -> NDArray[Any]:
    """The array of a .npy file. LaunchError SPY330 (damaged), SPY335 (pickles), SPY382 (memory)."""
    with _located(file), file.open("rb") as stream:
        return _read_array(stream, file.stat().st_size, file, 0, file.stem, None)


def read_npz(
    file: Path, key: str | None = None, check: ShapeCheck | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file in its order, or the one of ``key``.

    Errors as of `read_npy` and ``check``; LaunchError SPY332 without such a key.
    """
    with _located(file), zipfile.ZipFile(file) as archive:
        members = {i.filename.removesuffix(_NPY_SUFFIX): i for i in archive.infolist()}
        if key is not None and key not in members:
            raise LaunchError(
                "SPY332", f"{file} has no array {key!r}", expected=f"one of {', '.join(members)}"
            )
        arrays = {}
        for number, name in enumerate(members if key is None else [key]):
            with archive.open(members[name]) as stream:
                size_bytes = members[name].file_size
                arrays[name] = _read_array(stream, size_bytes, file, number, name, check)
        return arrays


@contextmanager
def _located(file: Path) -> Iterator[None]:
    """What damage makes the libraries raise, as an error that names the file."""
    try:
        yield
    except LaunchError:
        raise
    except MemoryError as error:
        raise LaunchError("SPY382", f"no memory for the tensors of {file}") from error
    except _DAMAGE as error:
        raise LaunchError("SPY330", f"cannot read tensor file {file}: {error}") from error


def _read_array(
    stream: IO[bytes],
    size_bytes: int,
    file: Path,
    number: int,
    name: str,
    check: ShapeCheck | None,
) -> NDArray[Any]:
    """An array of ``size_bytes`` with its header."""
    shape, in_columns, dtype = _read_header(stream)
    if dtype.hasobject:
        raise LaunchError("SPY335", f"{file} holds pickled objects")
    expected_bytes = prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or stream.tell() + expected_bytes > size_bytes:
        found = f"{size_bytes - stream.tell()} bytes follow"
        raise ValueError(f"the header says {shape} of {dtype}, {expected_bytes} bytes; {found}")
    if check is not None:
        check(number, name, shape, dtype.name)
    content = bytearray(expected_bytes)
    if stream.readinto(content) != expected_bytes:  # type: ignore[attr-defined]
        raise EOFError("its end is missing")
    flat = np.frombuffer(content, dtype, prod(shape))
    return flat.reshape(shape, order="F" if in_columns else "C")


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in column-major order, dtype."""
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"format version {version}")
    shape, in_columns, dtype = _HEADERS[version](stream)
    return tuple(map(int, shape)), in_columns, dtype
