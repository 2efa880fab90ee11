"""Reading and writing case directories: kernels in launch order, buffers, expected outputs.

A case is ``case.json`` with ``values.npz`` (host data and expected outputs) and, if buffers start
with raw device bytes, ``device_images.npz``. It records the kernels of a compiled function, which
share buffers, a pool and LX. ``spyre-run`` replays a case; the conformance runner runs many. A dump
of ``spyre-run`` is a case with ``findings.json``, the report of the recorded run.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.errors import JsonLocation, LaunchError
from spyre.files import read_regular
from spyre.layout import SpyreTensorLayout
from spyre.mlir.bundle_source import MODULE_FILE, read_inside, require_inside
from spyre.runtime.arguments import ArrayHeader, read_npz
from spyre.runtime.compare import Tolerance
from spyre.runtime.program import find_launch_spec

CASE_FILE = "case.json"
VALUES_FILE = "values.npz"
IMAGES_FILE = "device_images.npz"
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding damaged JSON."""


class HostExtents(msgspec.Struct, frozen=True, omit_defaults=True):
    """Shape, strides and offset (elements) of a host tensor where they differ from the buffer's."""

    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    storage_offset: int = 0
    dtype: str | None = None


class CaseBuffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Device memory of a case: a tensor (``layout`` given) or the pool of ``nbytes``.

    ``shape``, ``stride``, ``storage_offset`` (elements) and ``dtype``: of the framework's tensor.
    ``dma_sizes``/``dma_strides``: the host extents the layout was made for. ``value``: key of host
    data to transfer before the first launch; ``device_image``: key of raw device bytes. ``region``:
    the memory region to allocate it in, if free. ``alias_of``: buffer whose memory it shares.
    """

    kind: str
    nbytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    storage_offset: int = 0
    layout: SpyreTensorLayout | None = None
    dma_sizes: tuple[int, ...] = ()
    dma_strides: tuple[int, ...] = ()
    value: str | None = None
    device_image: str | None = None
    host: HostExtents = HostExtents()
    region: int | None = None
    alias_of: str | None = None

    @property
    def host_view(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Shape, strides and offset of the host data."""
        shape = self.shape if self.host.shape is None else self.host.shape
        strides = self.stride if self.host.stride is None else self.host.stride
        return shape, strides, self.host.storage_offset


class CaseLaunch(msgspec.Struct, frozen=True, omit_defaults=True):
    """One kernel: its bundle's directory, buffers in order, and the argument index of each.

    ``values``: of `index` parameters and runtime sizes, by name.
    """

    bundle: str
    args: tuple[str, ...]
    arg_index: tuple[int, ...]
    values: dict[str, int] = {}


class CaseOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output: a view (elements) of a buffer, and the key of the numbers expected, if any are.

    ``read_as``: dtype it is transferred to (default: float32 for floats). ``tolerance``: its own,
    in place of the case's.
    """

    buffer: str
    value: str | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    dtype: str
    read_as: str = ""
    tolerance: Tolerance | None = None


class CaseFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """``case.json``. ``run``: options of the command line that a replay uses, by name."""

    name: str
    tolerance: Tolerance
    buffers: dict[str, CaseBuffer]
    launches: tuple[CaseLaunch, ...]
    outputs: tuple[CaseOutput, ...]
    run: dict[str, Any] = {}


class Case(msgspec.Struct, frozen=True):
    """A case directory, read. ``values`` and ``images``: arrays by the keys of ``spec``."""

    directory: Path
    spec: CaseFile
    values: Mapping[str, npt.NDArray[Any]]
    images: Mapping[str, npt.NDArray[Any]]

    def value(self, key: str) -> npt.NDArray[Any]:
        """Host data or expected output ``key``; LaunchError SPY371 when the file lacks it."""
        return self._get(VALUES_FILE, self.values, key)

    def image(self, key: str) -> npt.NDArray[Any]:
        """Device bytes ``key``; LaunchError SPY371 when the file lacks them."""
        return self._get(IMAGES_FILE, self.images, key)

    def _get(self, name: str, arrays: Mapping[str, npt.NDArray[Any]], key: str) -> npt.NDArray[Any]:
        if key not in arrays:
            _refuse_missing(self.directory / name, key, arrays)
        return arrays[key]


def case_directory(path: str | os.PathLike[str]) -> Path | None:
    """The directory of the case that ``path`` (directory or case.json) names, if it is one."""
    named = Path(path)
    if named.name == CASE_FILE and os.path.isfile(named):  # False also for names too long
        return named.parent
    return named if os.path.isfile(named / CASE_FILE) else None


def read_case(directory: Path) -> Case:
    """Read a case directory. LaunchError SPY371 names the file and the error in it."""
    file = directory / CASE_FILE
    try:
        spec = msgspec.json.decode(read_inside(file, directory), type=CaseFile)
        for name in (VALUES_FILE, IMAGES_FILE, *dict.fromkeys(e.bundle for e in spec.launches)):
            require_inside(directory / name, directory)
    except (OSError, ValueError, *_UNREADABLE) as error:  # a name with NUL is a ValueError
        _refuse(file, "cannot read the case", found=str(error))
    _check_numbers(file, spec)
    _check_names(file, spec)
    values = _read_npz(directory / VALUES_FILE, _value_sizes(spec))
    # Bytes of an image: all of a tensor's memory or less.
    image_sizes = [
        (buffer.device_image, buffer.layout.device_bytes)
        for buffer in spec.buffers.values()
        if buffer.device_image is not None and buffer.layout is not None
    ]
    return Case(directory, spec, values, _read_npz(directory / IMAGES_FILE, image_sizes))


def with_tolerances(case: Case, change: Callable[[Tolerance], Tolerance]) -> Case:
    """``case`` with the tolerance of every output changed."""
    outputs = tuple(
        msgspec.structs.replace(o, tolerance=change(o.tolerance or case.spec.tolerance))
        for o in case.spec.outputs
    )
    return replace(case, spec=msgspec.structs.replace(case.spec, outputs=outputs))


def _check_names(file: Path, spec: CaseFile) -> None:
    """Every buffer that launches and outputs name exists, and outputs are tensors."""
    for k, launch in enumerate(spec.launches):
        _check_launch(file, spec, launch, f"$.launches[{k}]")
    for k, output in enumerate(spec.outputs):
        _check_name(file, spec, output.buffer, f"$.outputs[{k}].buffer")
        if spec.buffers[output.buffer].layout is None:
            _refuse(file, f"output {output.buffer!r} has no layout", f"$.outputs[{k}].buffer")
    if len({output.value is None for output in spec.outputs}) > 1:
        _refuse(file, "some outputs have values and others have none", "$.outputs")
    for name, buffer in spec.buffers.items():
        if buffer.alias_of is not None:
            _check_name(file, spec, buffer.alias_of, f"$.buffers.{name}.alias_of")
            # An alias is a tensor in the memory of a tensor that is no alias.
            target = spec.buffers[buffer.alias_of]
            if buffer.layout is None or target.layout is None or target.alias_of is not None:
                _refuse(file, f"buffer {name!r} cannot be an alias", f"$.buffers.{name}.alias_of")


_MOST_ELEMENTS = 1 << 40
"""More than any host holds."""


def _check_numbers(file: Path, spec: CaseFile) -> None:
    """Refuse sizes and strides that differ in number or exceed the memory of any host."""
    for name, buffer in spec.buffers.items():
        path, (shape, stride, _) = f"$.buffers.{name}", buffer.host_view
        _check_extents(file, buffer.dma_sizes, buffer.dma_strides, f"{path}.dma_sizes")
        _check_extents(file, buffer.shape, buffer.stride, f"{path}.shape")
        _check_extents(file, shape, stride, f"{path}.host")
    for k, output in enumerate(spec.outputs):
        _check_extents(file, output.shape, output.stride, f"$.outputs[{k}].shape")


def _check_extents(file: Path, sizes: tuple[int, ...], strides: tuple[int, ...], path: str) -> None:
    if len(sizes) != len(strides):
        message = "sizes and strides differ in length"
        _refuse(file, message, path, expected=f"{len(sizes)} strides", found=str(len(strides)))
    if min((*sizes, *strides), default=0) < 0:
        _refuse(file, "sizes and strides are negative", path, found=f"{sizes}, {strides}")
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if max(span, prod(sizes)) > _MOST_ELEMENTS:
        message = "sizes and strides span more than a host holds"
        expected = f"at most {_MOST_ELEMENTS} elements"
        _refuse(file, message, path, expected=expected, found=f"{sizes}, {strides}")


def _check_launch(file: Path, spec: CaseFile, launch: CaseLaunch, path: str) -> None:
    if len(launch.args) != len(launch.arg_index):
        message = "args and arg_index of a launch differ in length"
        expected = str(len(launch.args))
        _refuse(file, message, path, expected=expected, found=str(len(launch.arg_index)))
    for name in launch.args:
        _check_name(file, spec, name, f"{path}.args")
    pairs = zip(launch.args, launch.arg_index, strict=True)
    indices = [index for name, index in pairs if spec.buffers[name].layout is not None]
    if min(indices, default=0) < 0 or len(set(indices)) < len(indices):
        message = "tensors of a launch share an argument index, or have a negative one"
        expected = "an index from 0 on for each tensor"
        _refuse(file, message, f"{path}.arg_index", expected=expected, found=str(indices))


def _check_name(file: Path, spec: CaseFile, name: str, path: str) -> None:
    if name not in spec.buffers:
        known = ", ".join(spec.buffers) or "no buffers"
        _refuse(file, f"there is no buffer {name!r}", path, expected=known, found=name)


def _value_sizes(spec: CaseFile) -> list[tuple[str, int]]:
    """Name and elements of every array of VALUES_FILE that the case uses."""
    inputs = [
        (buffer.value, buffer.host_view[0])
        for buffer in spec.buffers.values()
        if buffer.value is not None
    ]
    expected = [(f"expect_{o.value}", o.shape) for o in spec.outputs if o.value is not None]
    return [(name, prod(shape)) for name, shape in (*inputs, *expected)]


def _read_npz(file: Path, sizes: Sequence[tuple[str, int]]) -> dict[str, npt.NDArray[Any]]:
    """The arrays named, once their sizes are known to be right: those of images are bytes."""

    def check(headers: Sequence[ArrayHeader]) -> None:
        found = {header.name: header for header in headers}
        for name, size in sizes:
            if name not in found:
                _refuse_missing(file, name, found)
            _check_size(file, found[name], size)

    if not file.is_file():
        return {}
    try:
        return read_npz(file, check=check, only={name for name, _ in sizes})
    except LaunchError as error:
        if error.code == _CODE:
            raise
        _refuse(file, "cannot read the arrays", found=str(error))


def _refuse_missing(file: Path, name: str, found: Iterable[str]) -> NoReturn:
    message = "an array that case.json names is missing"
    _refuse(file, message, expected=name, found=", ".join(found) or "no arrays")


def _check_size(file: Path, header: ArrayHeader, size: int) -> None:
    if file.name == IMAGES_FILE:
        fits, unit, found = header.size_bytes <= size, "bytes or fewer", header.size_bytes
    else:
        fits, unit, found = prod(header.shape) == size, "elements", prod(header.shape)
    if not fits:
        message = f"array {header.name!r} is not of the size that case.json says"
        _refuse(file, message, expected=f"{size} {unit}", found=str(found))


_CODE = "SPY371"


def _refuse(
    file: Path, message: str, path: str = "$", *, expected: str = "", found: str = ""
) -> NoReturn:
    raise LaunchError(_CODE, message, JsonLocation(str(file), path), expected=expected, found=found)


FINDINGS_FILE = "findings.json"
DUMP_VERSION = 1
_VERSION_KEY = "spyre_dump"


class _Marker(msgspec.Struct):
    spyre_dump: int


def check_dump_directory(directory: Path) -> None:
    """LaunchError SPY380 unless ``directory`` does not exist or is an earlier dump."""
    if not os.path.lexists(directory):
        return
    file = directory / FINDINGS_FILE
    try:
        msgspec.json.decode(read_regular(file), type=_Marker)
    except (OSError, *_UNREADABLE) as error:
        message = f"{directory} exists and is no earlier dump"
        expected = f"a new directory, or one whose {FINDINGS_FILE} a dump has written"
        raise LaunchError("SPY380", message, expected=expected) from error


def write_dump(
    case: Case,
    directory: Path,
    report: Mapping[str, Any],
    extra_files: Mapping[str, bytes] | None = None,
) -> None:
    """Write ``case`` and ``report`` to ``directory``: all of it, or nothing.

    LaunchError SPY380 as of `check_dump_directory`, SPY381 when something cannot be written.
    """
    check_dump_directory(directory)
    content = {_VERSION_KEY: DUMP_VERSION, **report}
    text = msgspec.json.format(msgspec.json.encode(content), indent=1)
    _write_directory(case, directory, {**(extra_files or {}), FINDINGS_FILE: text + b"\n"})


def write_case(case: Case, directory: Path) -> None:
    """Write a case directory with all its kernels; LaunchError SPY381 when it cannot be written.

    A case directory that is there already is replaced in one step.
    """
    _write_directory(case, directory, {})


def _write_directory(case: Case, directory: Path, extra_files: Mapping[str, bytes]) -> None:
    try:
        target = directory.resolve()  # so that a link stays and ``.`` has a name
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, NUL, the root
        raise LaunchError("SPY381", f"cannot write {directory}", found=str(error)) from error
    try:
        temporary.mkdir(parents=True)
        _write_content(case, temporary, extra_files)
        _put_in_place(temporary, target)
    except OSError as error:
        raise LaunchError(
            "SPY381", f"cannot write {directory}", found=str(error.strerror or error)
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_in_place(temporary: Path, directory: Path) -> None:
    """Rename; an existing directory is moved aside first and removed last."""
    # Two renames: for a moment neither is there, but never half of one.
    old = temporary.with_name(f"{temporary.name}.old")
    if directory.exists():
        directory.rename(old)
    temporary.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def _write_content(case: Case, target: Path, extra_files: Mapping[str, bytes]) -> None:
    names = _bundle_names(case.spec)
    for source, name in names.items():
        _copy_bundle(case.directory / source, target / name)
    for name, data in extra_files.items():
        (target / name).write_bytes(data)
    _write_arrays(target / VALUES_FILE, case.values)
    if case.images:
        _write_arrays(target / IMAGES_FILE, case.images)
    launches = tuple(
        msgspec.structs.replace(launch, bundle=names[launch.bundle])
        for launch in case.spec.launches
    )
    spec = msgspec.structs.replace(case.spec, launches=launches)
    text = msgspec.json.format(msgspec.json.encode(spec), indent=1)
    (target / CASE_FILE).write_bytes(text + b"\n")


def _bundle_names(spec: CaseFile) -> dict[str, str]:
    """Directory of every bundle in the copy; a new name for those outside of the case."""
    bundles = dict.fromkeys(launch.bundle for launch in spec.launches)
    pure = [PurePosixPath(bundle) for bundle in bundles]
    outside = [path.is_absolute() or ".." in path.parts for path in pure]
    names = {bundle: bundle for bundle, is_out in zip(bundles, outside, strict=True) if not is_out}
    taken = {str(PurePosixPath(bundle)) for bundle in names}
    free = (name for k in count() if (name := f"kernel_{k}") not in taken)
    for bundle in bundles:
        if bundle not in names:
            names[bundle] = next(free)
    return names


def _copy_bundle(source: Path, target: Path) -> None:
    """bundle.mlir, the SDSC files and launch_spec.json, byte for byte."""
    from spyre.mlir.bundle import load_bundle  # loads the parser, which replaying needs not

    bundle = load_bundle(source)
    files = [MODULE_FILE, *bundle.sdscs, *bundle.unexecuted]
    launch_spec = find_launch_spec(source)
    for path in [*(source / name for name in files), *([launch_spec] if launch_spec else [])]:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
