"""Tensors on the host, in memory and in files.

A `HostTensor` is a 1-D storage with shape, strides and offset in elements, as in torch. A
`TensorSpec` is the required shape and dtype, from a launch spec or ``--shape 10x512@fp16``. Files:
.npy, .npz (all arrays in order, or one as ``file.npz:key``), .pt (a tensor, a list of them, or
``{"tensors": […]}``; needs torch), .bin (raw elements of a tensor whose shape and dtype a spec
gives). Pickled objects are never loaded. Rules: runtime reference §2-3, §5.

The size in the header of an array is compared with the number of bytes that follow before memory is
allocated, and the caller gets the headers of all arrays before the first one is unpacked. All
errors of an array file are LaunchErrors.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from spyre.dtypes import (
    HOST_DTYPES,
    NumericRules,
    decode_dl16,
    decode_host,
    encode_dl16,
    encode_host,
    find_host_dtype,
)
from spyre.errors import LaunchError, SpyreError, UnsupportedError
from spyre.files import replaced_file
from spyre.layout import contiguous_strides

# --- .npy and .npz files -------------------------------------------------------------------------


class ArrayHeader(msgspec.Struct, frozen=True):
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


# --- tensors -------------------------------------------------------------------------------------

_HOST_ONLY_DTYPES = ("float64", "uint16", "uint32", "uint64")
_SCALAR = "scalar"
_MOST_ELEMENTS = 1 << 40
"""More elements than fit into any host's memory."""
_HOST_ROUNDING = NumericRules(bfloat16_rounding="even")


class TensorSpec(msgspec.Struct, frozen=True):
    """Shape (elements) and torch dtype name a tensor has to have."""

    name: str
    shape: tuple[int, ...]
    dtype_name: str

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or _SCALAR}@{self.dtype_name}"


class HostTensor(msgspec.Struct, frozen=True, eq=False):
    """A host tensor: element (i0, i1, …) is ``storage[storage_offset + Σ i·strides]``.

    ``strides`` and ``storage_offset`` in elements. ``storage`` is 1-D with the numpy dtype of
    `spyre.dtypes.HostDtype`: bfloat16 and float8 hold bit patterns. LaunchError SPY334 when the
    storage's dtype is not one a tensor can have, or not the one of ``dtype_name``.
    """

    name: str
    dtype_name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int
    storage: NDArray[Any]

    def __post_init__(self) -> None:
        _check_storage_dtype(self.name, self.storage.dtype, self.dtype_name)

    @classmethod
    def from_array(
        cls, name: str, array: NDArray[Any], dtype_name: str | None = None
    ) -> HostTensor:
        """A contiguous tensor of the elements of ``array``, shared with it if that is contiguous.

        ``dtype_name`` is needed where the array holds bit patterns.
        """
        if dtype_name is None:
            dtype_name = array.dtype.name
        flat = np.ascontiguousarray(array).reshape(-1)
        return cls(name, dtype_name, array.shape, contiguous_strides(array.shape), 0, flat)

    @classmethod
    def from_values(cls, name: str, values: NDArray[Any], dtype_name: str) -> HostTensor:
        """A contiguous tensor of torch dtype ``dtype_name`` holding ``values`` rounded to it."""
        dtype = find_host_dtype(dtype_name)
        return cls.from_array(name, encode_host(values, dtype.name, _HOST_ROUNDING), dtype.name)

    def to_array(self) -> NDArray[Any]:
        """Return the stored elements in the tensor's shape; bit patterns are not decoded."""
        view = np.lib.stride_tricks.as_strided(
            self.storage[self.storage_offset :],
            self.shape,
            tuple(s * self.storage.itemsize for s in self.strides),
        )
        return view.copy()

    def to_values(self) -> NDArray[Any]:
        """Return the numbers in the tensor's shape, as float32, float64, int64 or bool."""
        array = self.to_array()
        if self.dtype_name not in HOST_DTYPES:
            return array
        return decode_host(array, self.dtype_name)

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.shape, self.dtype_name)


def conform_tensor(tensor: HostTensor, spec: TensorSpec) -> HostTensor:
    """Return ``tensor`` with the name of ``spec``, checked against it.

    float32 numbers are accepted for bfloat16 and float8, which .npy cannot name, when they are
    all representable. LaunchError SPY333 for the shape, SPY334 for the dtype.
    """
    require_shape(tensor.spec, spec)
    if tensor.dtype_name == spec.dtype_name:
        fields = (tensor.shape, tensor.strides, tensor.storage_offset, tensor.storage)
        return HostTensor(spec.name, spec.dtype_name, *fields)
    narrowed = _narrow(tensor, spec)
    if narrowed is None:
        message = f"tensor {spec.name} has the wrong dtype"
        raise LaunchError("SPY334", message, expected=str(spec), found=str(tensor.spec))
    return narrowed


def require_shape(found: TensorSpec, spec: TensorSpec) -> None:
    """Raise LaunchError SPY333 if the shapes differ."""
    if found.shape != spec.shape:
        message = f"tensor {spec.name} has the wrong shape"
        raise LaunchError("SPY333", message, expected=str(spec), found=str(found))


def random_tensor(
    shape: tuple[int, ...], dtype_name: str, seed: int, name: str = "random"
) -> HostTensor:
    """A tensor of reproducible test numbers.

    Floats: standard normal, rounded to numbers both the dtype and DL16 can represent, so that
    the transfer to the card is exact. Integers: 0 to 7. Booleans: fair coins. LaunchError SPY382
    for more elements than the host has memory for.
    """
    spec = TensorSpec(name, shape, dtype_name)
    try:
        if spec.elements > _MOST_ELEMENTS:
            raise MemoryError
        return _random_tensor(shape, dtype_name, seed, name)
    except MemoryError as error:
        raise LaunchError(
            "SPY382", f"no memory for random numbers for {name}", found=str(spec)
        ) from error


def _random_tensor(shape: tuple[int, ...], dtype_name: str, seed: int, name: str) -> HostTensor:
    dtype = find_host_dtype(dtype_name)
    if seed < 0:
        raise LaunchError("SPY338", "a seed is negative", expected="0 or more", found=str(seed))
    generator = np.random.default_rng(seed)
    if dtype.name == "bool":
        return HostTensor.from_values(name, generator.integers(0, 2, shape), dtype.name)
    if "float" not in dtype.name:
        return HostTensor.from_values(name, generator.integers(0, 8, shape), dtype.name)
    # Rounded to DL16 first: what both formats represent survives the transfer to the card exactly.
    normal = generator.standard_normal(shape, dtype=np.float32)
    return HostTensor.from_values(name, decode_dl16(encode_dl16(normal)), dtype.name)


def parse_tensor_spec(text: str, name: str = "") -> TensorSpec:
    """``10x512@fp16`` → shape (10, 512), dtype float16; ``scalar@fp32`` → shape ().

    Without ``@`` the dtype is float16; its aliases are those of `canonical_dtype_name`.
    LaunchError SPY337 when the text is not of this form, UnsupportedError SPY311 for the dtype.
    """
    shape_text, _, dtype_text = text.strip().partition("@")
    dtype_name = find_host_dtype(dtype_text or "float16").name
    if shape_text == _SCALAR:
        return TensorSpec(name, (), dtype_name)
    if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", shape_text):
        expected = "extents joined by x, then @dtype, such as 10x512@fp16 or scalar@fp32"
        raise LaunchError("SPY337", f"cannot read the shape {text!r}", expected=expected)
    return TensorSpec(name, tuple(int(n) for n in shape_text.split("x")), dtype_name)


def _check_storage_dtype(name: str, storage_dtype: np.dtype[Any], dtype_name: str) -> None:
    row = HOST_DTYPES.get(dtype_name)
    known = row is not None or dtype_name in _HOST_ONLY_DTYPES
    expected = row.storage_dtype if row is not None else dtype_name
    if not known or storage_dtype != np.dtype(expected):
        raise LaunchError(
            "SPY334",
            f"tensor {name} cannot hold {storage_dtype} as {dtype_name}",
            expected=f"{expected} storage" if known else "a torch dtype",
        )


def _narrow(tensor: HostTensor, spec: TensorSpec) -> HostTensor | None:
    """float32 numbers as bits of bfloat16 or float8, or None if some number would change."""
    row = HOST_DTYPES.get(spec.dtype_name)
    if tensor.dtype_name != "float32" or row is None or not row.holds_bits:
        return None
    values = tensor.to_values()
    narrowed = HostTensor.from_values(spec.name, values, spec.dtype_name)
    return narrowed if np.array_equal(narrowed.to_values(), values, equal_nan=True) else None


SpecCheck = Callable[[Sequence[TensorSpec]], None]
"""Called with the shapes and dtypes in a file; raises to prevent that the file is unpacked."""


def load_tensors(
    path: Path | str, specs: Sequence[TensorSpec] = (), check: SpecCheck | None = None
) -> tuple[HostTensor, ...]:
    """Load all tensors of a file in its order, named after the file or its keys.

    ``path`` may end in ``.npz:key``. ``specs``: required shapes and dtypes; the first one is the
    shape and dtype of a .bin file. Errors of ``check``; LaunchError SPY330 (missing or damaged),
    SPY331 (suffix), SPY332 (no such key, no spec), SPY333 (size of a .bin), SPY334 (dtype), SPY335
    (pickles), SPY382 (no memory).
    """
    head, has_key, named = str(path).rpartition(".npz:")
    file, key = (Path(head + ".npz"), named) if has_key else (Path(path), None)
    if file.suffix not in _SAVERS:
        raise _unknown_suffix(file)
    if not os.path.isfile(file):
        raise LaunchError("SPY330", f"tensor file {file} does not exist")
    if file.suffix == ".bin":
        return (_load_bin(file, specs),)
    if file.suffix == ".pt":
        return tuple(_load_pt(file, check))

    def check_headers(headers: Sequence[ArrayHeader]) -> None:
        if check is not None:
            check([TensorSpec(h.name, h.shape, h.dtype.name) for h in headers])

    if file.suffix == ".npy":
        arrays = {file.stem: read_npy(file, check_headers)}
    else:
        arrays = read_npz(file, key, check_headers)
    return tuple(HostTensor.from_array(name, array) for name, array in arrays.items())


def save_tensors(path: Path | str, tensors: Sequence[HostTensor]) -> None:
    """Save tensors in the format of the suffix; .npy and .bin files contain exactly one.

    numpy files contain bfloat16 and float8 as float32 numbers (exact). The file is written
    completely or not at all. LaunchError SPY331 for the suffix, SPY336 for several tensors in a
    file of one, SPY370 if it cannot be written.
    """
    file = Path(path)
    save = _SAVERS.get(file.suffix)
    if save is None:
        raise _unknown_suffix(file)
    if file.suffix in (".npy", ".bin") and len(tensors) != 1:
        message = f"{file} can hold one tensor"
        hint = "use .npz or .pt for several"
        raise LaunchError("SPY336", message, found=f"{len(tensors)} tensors", hint=hint)

    def refusal(found: str) -> LaunchError:
        return LaunchError("SPY370", f"cannot write {file}", found=found)

    with replaced_file(file, refusal) as temporary:
        try:
            save(temporary, tensors)
        except RuntimeError as error:  # torch, if it cannot write
            raise refusal(str(error)) from error


def _unknown_suffix(file: Path) -> LaunchError:
    message = f"tensor file {file} is of no known kind"
    expected = f"one of {', '.join(_SAVERS)}"
    return LaunchError("SPY331", message, expected=expected, found=file.suffix or "no suffix")


def _load_bin(file: Path, specs: Sequence[TensorSpec]) -> HostTensor:
    if not specs:
        raise LaunchError(
            "SPY332", f"{file} is raw: its shape and dtype have to come from a launch spec"
        )
    spec = specs[0]
    dtype = find_host_dtype(spec.dtype_name)
    size_bytes = file.stat().st_size
    if size_bytes != spec.elements * dtype.item_bytes:
        message = f"{file} does not hold tensor {spec.name}"
        expected = f"{spec.elements * dtype.item_bytes} bytes for {spec}"
        raise LaunchError("SPY333", message, expected=expected, found=f"{size_bytes} bytes")
    with _located(file):
        array = np.fromfile(file, dtype.storage_dtype).reshape(spec.shape)
    return HostTensor.from_array(spec.name, array, dtype.name)


def _load_pt(file: Path, check: SpecCheck | None) -> list[HostTensor]:
    torch = _import_torch(file)
    try:
        _refuse_packed(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError as error:
        raise LaunchError("SPY382", f"no memory for the tensors of {file}") from error
    except pickle.UnpicklingError as error:
        raise LaunchError(
            "SPY335", f"{file} holds objects that are not tensors; they are not loaded"
        ) from error
    except Exception as error:  # a damaged pickle can raise anything
        raise LaunchError("SPY330", f"cannot read tensor file {file}: {error}") from error
    if isinstance(content, dict) and "tensors" in content:
        content = content["tensors"]
    tensors = _checked_tensors(torch, file, content)
    names = [file.stem] if len(tensors) == 1 else [f"{file.stem}[{i}]" for i in range(len(tensors))]
    named = list(zip(names, tensors, strict=True))
    if check is not None:
        check([TensorSpec(n, tuple(t.shape), _dtype_name(t)) for n, t in named])
    return [_from_torch(torch, name, tensor) for name, tensor in named]


def _refuse_packed(file: Path) -> None:
    """ValueError for an archive that torch would unpack to more than its own size.

    Torch itself compresses nothing, and reads no shape before it has unpacked everything.
    """
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.file_size > member.compress_size:
                raise ValueError(f"{member.filename} is compressed")


def _is_dense(torch: Any, tensor: Any) -> bool:
    """Whether ``tensor`` is strided, on the CPU, not a subclass and without a lazy sign."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    strided = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)
    return strided and tensor.device.type == "cpu" and not (tensor.is_conj() or tensor.is_neg())


def _checked_tensors(torch: Any, file: Path, content: Any) -> Sequence[Any]:
    """Return the dense tensors of a .pt file. LaunchError SPY332 for other content."""
    tensors = [content] if isinstance(content, torch.Tensor) else content
    if isinstance(tensors, list | tuple) and all(_is_dense(torch, t) for t in tensors):
        return tensors
    message = f"{file} does not hold dense tensors"
    expected = 'a tensor, a list of tensors, or {"tensors": […]}'
    raise LaunchError("SPY332", message, expected=expected, found=type(content).__name__)


def _import_torch(file: Path) -> Any:
    """Import torch, if installed, by name: nothing below the torch backend depends on it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UnsupportedError(
            "SPY331", f"reading or writing {file} needs torch, which is not installed"
        ) from error


def _dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _from_torch(torch: Any, name: str, tensor: Any) -> HostTensor:
    """Return a tensor with the shape, strides, offset and whole storage of torch's tensor."""
    dtype_name = _dtype_name(tensor)
    row = HOST_DTYPES.get(dtype_name)
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    flat = tensor.detach().as_strided((elements,), (1,), 0)
    if row is not None and row.holds_bits:
        flat = flat.view(getattr(torch, row.storage_dtype))
    elif row is None and dtype_name not in _HOST_ONLY_DTYPES:
        raise LaunchError("SPY334", f"tensor {name} is of a dtype that is not read: {dtype_name}")
    # The whole storage, not the view: strides and offset then mean what they mean in torch.
    storage = flat.numpy().copy()
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return HostTensor(name, dtype_name, shape, strides, tensor.storage_offset(), storage)


def _to_torch(torch: Any, tensor: HostTensor) -> Any:
    array = torch.from_numpy(tensor.to_array())
    row = HOST_DTYPES.get(tensor.dtype_name)
    return array.view(getattr(torch, row.name)) if row is not None and row.holds_bits else array


def _named_numbers(tensor: HostTensor) -> NDArray[Any]:
    """Return the array for a numpy file: stored elements, but numbers for bit patterns."""
    row = HOST_DTYPES.get(tensor.dtype_name)
    bits = row is not None and row.holds_bits
    return tensor.to_values() if bits else tensor.to_array()


def _save_npz(file: Path, tensors: Sequence[HostTensor]) -> None:
    names = [t.name for t in tensors]
    if len(set(names)) < len(names):
        raise LaunchError("SPY336", f"{file} needs distinct tensor names", found=", ".join(names))
    with zipfile.ZipFile(file, "w") as archive:
        for tensor in tensors:
            with archive.open(f"{tensor.name}.npy", "w") as member:
                np.lib.format.write_array(member, _named_numbers(tensor), allow_pickle=False)


def _save_pt(file: Path, tensors: Sequence[HostTensor]) -> None:
    torch = _import_torch(file)
    saved = [_to_torch(torch, t) for t in tensors]
    torch.save(saved[0] if len(saved) == 1 else {"tensors": saved}, file)


_SAVERS: dict[str, Callable[[Path, Sequence[HostTensor]], None]] = {
    ".npy": lambda file, tensors: np.save(file, _named_numbers(tensors[0])),
    ".npz": _save_npz,
    ".pt": _save_pt,
    ".bin": lambda file, tensors: tensors[0].to_array().tofile(file),
}
