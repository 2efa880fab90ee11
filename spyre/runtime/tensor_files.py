"""Host tensors from files and back: what ``spyre-run -i``, ``-o`` and ``--save-output`` use.

The kind is the suffix: .npy, .npz (all arrays in order, or one as ``file.npz:key``), .pt (a
tensor, a list of them, or ``{"tensors": […]}``; needs torch), .bin (raw elements of a tensor whose
shape and dtype a spec gives). Pickled objects are never loaded. Contract: runtime reference §5.
"""

from __future__ import annotations

import importlib
import pickle
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spyre.dtypes import HOST_DTYPES, find_host_dtype
from spyre.errors import LaunchError, UnsupportedError
from spyre.runtime.host_tensor import (
    HostTensor,
    TensorSpec,
    conform_tensor,
    parse_tensor_spec,
    random_tensor,
)

__all__ = [
    "HostTensor",
    "TensorSpec",
    "conform_tensor",
    "load_tensors",
    "parse_tensor_spec",
    "random_tensor",
    "save_tensors",
]


_NUMPY_ERRORS = (OSError, ValueError, EOFError, zipfile.BadZipFile)


def load_tensors(path: Path | str, spec: TensorSpec | None = None) -> tuple[HostTensor, ...]:
    """Every tensor of a file, in its order, named after the file or its keys.

    ``path`` may end in ``.npz:key``. ``spec`` gives shape and dtype of a .bin file; the others
    are checked by `conform_tensor`. LaunchError SPY330 (missing or damaged), SPY331 (suffix),
    SPY332 (no such key, no spec), SPY333 (size of a .bin), SPY334 (dtype), SPY335 (pickles).
    """
    file, key = _split_key(str(path))
    load = _LOADERS.get(file.suffix)
    if load is None:
        raise _unknown_suffix(file, _LOADERS)
    if not file.is_file():
        raise LaunchError("SPY330", f"tensor file {file} does not exist")
    return tuple(load(file, key, spec))


def save_tensors(path: Path | str, tensors: Sequence[HostTensor]) -> None:
    """Save tensors in the kind of file the suffix says; .npy and .bin hold exactly one.

    numpy files hold bfloat16 and float8 as float32 numbers (exact). LaunchError SPY331 for the
    suffix, SPY336 for several tensors in a file of one.
    """
    file = Path(path)
    save = _SAVERS.get(file.suffix)
    if save is None:
        raise _unknown_suffix(file, _SAVERS)
    if file.suffix in (".npy", ".bin") and len(tensors) != 1:
        raise LaunchError(
            "SPY336",
            f"{file} can hold one tensor",
            found=f"{len(tensors)} tensors",
            hint="use .npz or .pt for several",
        )
    save(file, tensors)


def _split_key(path: str) -> tuple[Path, str | None]:
    head, found, key = path.rpartition(".npz:")
    return (Path(head + ".npz"), key) if found else (Path(path), None)


def _unknown_suffix(file: Path, known: dict[str, Any]) -> LaunchError:
    return LaunchError(
        "SPY331",
        f"tensor file {file} is of no known kind",
        expected=f"one of {', '.join(known)}",
        found=file.suffix or "no suffix",
    )


def _load_npy(file: Path, key: str | None, spec: TensorSpec | None) -> list[HostTensor]:
    return [HostTensor.from_array(file.stem, _read_numpy(file))]


def _load_npz(file: Path, key: str | None, spec: TensorSpec | None) -> list[HostTensor]:
    with _read_numpy(file) as archive:
        keys = archive.files if key is None else [key]
        return [HostTensor.from_array(k, _read_member(file, archive, k)) for k in keys]


def _read_numpy(file: Path) -> Any:
    try:
        return np.load(file, allow_pickle=False)
    except _NUMPY_ERRORS as error:
        raise _numpy_error(file, error) from error


def _read_member(file: Path, archive: Any, key: str) -> NDArray[Any]:
    if key not in archive.files:
        raise LaunchError(
            "SPY332",
            f"{file} has no array {key!r}",
            expected=f"one of {', '.join(archive.files)}",
        )
    try:
        return np.asarray(archive[key])
    except _NUMPY_ERRORS as error:
        raise _numpy_error(file, error) from error


def _numpy_error(file: Path, error: Exception) -> LaunchError:
    if "pickle" in str(error):
        return LaunchError("SPY335", f"{file} holds pickled objects or no numpy data")
    return LaunchError("SPY330", f"cannot read tensor file {file}: {error}")


def _load_bin(file: Path, key: str | None, spec: TensorSpec | None) -> list[HostTensor]:
    if spec is None:
        raise LaunchError(
            "SPY332",
            f"{file} is raw: its shape and dtype have to come from a launch spec",
        )
    dtype = find_host_dtype(spec.dtype_name)
    data = file.read_bytes()
    if len(data) != spec.elements * dtype.item_bytes:
        raise LaunchError(
            "SPY333",
            f"{file} does not hold tensor {spec.name}",
            expected=f"{spec.elements * dtype.item_bytes} bytes for {spec}",
            found=f"{len(data)} bytes",
        )
    array = np.frombuffer(data, dtype=dtype.storage_dtype).reshape(spec.shape).copy()
    return [HostTensor.from_array(spec.name, array, dtype.name)]


def _load_pt(file: Path, key: str | None, spec: TensorSpec | None) -> list[HostTensor]:
    torch = _import_torch(file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise LaunchError(
            "SPY335", f"{file} holds objects that are not tensors; they are not loaded"
        ) from error
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise LaunchError("SPY330", f"cannot read tensor file {file}: {error}") from error
    if isinstance(content, dict) and "tensors" in content:
        content = content["tensors"]
    tensors = _checked_tensors(torch, file, content)
    names = [file.stem] if len(tensors) == 1 else [f"{file.stem}[{i}]" for i in range(len(tensors))]
    return [_from_torch(torch, n, t) for n, t in zip(names, tensors, strict=True)]


def _checked_tensors(torch: Any, file: Path, content: Any) -> Sequence[Any]:
    """The dense tensors a .pt file holds, or LaunchError SPY332."""
    tensors = [content] if isinstance(content, torch.Tensor) else content
    if isinstance(tensors, list | tuple) and all(
        isinstance(t, torch.Tensor) and t.layout is torch.strided and not t.is_quantized
        for t in tensors
    ):
        return tensors
    raise LaunchError(
        "SPY332",
        f"{file} does not hold dense tensors",
        expected='a tensor, a list of tensors, or {"tensors": […]}',
        found=type(content).__name__,
    )


def _import_torch(file: Path) -> Any:
    """Torch if it is installed; by name, since nothing below the torch backend depends on it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UnsupportedError(
            "SPY331", f"reading or writing {file} needs torch, which is not installed"
        ) from error


def _from_torch(torch: Any, name: str, tensor: Any) -> HostTensor:
    """A tensor with torch's own shape, strides, offset and whole storage."""
    dtype_name = str(tensor.dtype).removeprefix("torch.")
    row = HOST_DTYPES.get(dtype_name)
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    flat = tensor.detach().as_strided((elements,), (1,), 0)
    if row is not None and row.holds_bits:
        flat = flat.view(getattr(torch, row.storage_dtype))
    storage = flat.numpy().copy()
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return HostTensor(name, dtype_name, shape, strides, tensor.storage_offset(), storage)


def _to_torch(torch: Any, tensor: HostTensor) -> Any:
    array = torch.from_numpy(tensor.to_array())
    row = HOST_DTYPES.get(tensor.dtype_name)
    return array.view(getattr(torch, row.name)) if row is not None and row.holds_bits else array


def _named_numbers(tensor: HostTensor) -> NDArray[Any]:
    """The array numpy files hold: as stored, but numbers instead of bit patterns."""
    row = HOST_DTYPES.get(tensor.dtype_name)
    bits = row is not None and row.holds_bits
    return tensor.to_values() if bits else tensor.to_array()


def _save_npy(file: Path, tensors: Sequence[HostTensor]) -> None:
    np.save(file, _named_numbers(tensors[0]))


def _save_npz(file: Path, tensors: Sequence[HostTensor]) -> None:
    names = [t.name for t in tensors]
    if len(set(names)) < len(names):
        raise LaunchError("SPY336", f"{file} needs distinct tensor names", found=", ".join(names))
    with zipfile.ZipFile(file, "w") as archive:
        for tensor in tensors:
            with archive.open(f"{tensor.name}.npy", "w") as member:
                np.lib.format.write_array(member, _named_numbers(tensor), allow_pickle=False)


def _save_bin(file: Path, tensors: Sequence[HostTensor]) -> None:
    file.write_bytes(tensors[0].to_array().tobytes())


def _save_pt(file: Path, tensors: Sequence[HostTensor]) -> None:
    torch = _import_torch(file)
    saved = [_to_torch(torch, t) for t in tensors]
    torch.save(saved[0] if len(saved) == 1 else {"tensors": saved}, file)


_LOADERS: dict[str, Callable[[Path, str | None, TensorSpec | None], list[HostTensor]]] = {
    ".npy": _load_npy,
    ".npz": _load_npz,
    ".pt": _load_pt,
    ".bin": _load_bin,
}

_SAVERS: dict[str, Callable[[Path, Sequence[HostTensor]], None]] = {
    ".npy": _save_npy,
    ".npz": _save_npz,
    ".pt": _save_pt,
    ".bin": _save_bin,
}
