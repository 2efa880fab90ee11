"""A case directory: kernels to launch in order, their buffers with values, expected outputs.

``case.json`` beside ``values.npz`` (host data and expected outputs) and, where buffers start as raw
device bytes, ``device_images.npz``. It records what a compiled function does: several kernels that
share buffers, a pool and LX. ``spyre-run`` replays it; the conformance runner runs many.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.errors import JsonLocation, LaunchError
from spyre.runtime.launch_spec import LayoutSpec

CASE_FILE = "case.json"
VALUES_FILE = "values.npz"
IMAGES_FILE = "device_images.npz"
POOL_BUFFER = "pool"


class HostExtents(msgspec.Struct, frozen=True, omit_defaults=True):
    """Shape, strides and offset (elements) of a host tensor where they differ from the buffer's."""

    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    storage_offset: int = 0
    dtype: str | None = None


class CaseBuffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Device memory of a case: a tensor (``layout`` given) or the pool of ``nbytes``.

    ``shape``, ``stride``, ``storage_offset`` (elements) and ``dtype``: as the framework sees it.
    ``dma_sizes``/``dma_strides``: the host extents the layout was made for. ``value``: key of host
    data to transfer before the first launch, ``device_image`` of raw device bytes. ``region``: the
    memory region to place it in, if free. ``alias_of``: the buffer in whose memory it lies.
    """

    kind: str
    nbytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    storage_offset: int = 0
    layout: LayoutSpec | None = None
    dma_sizes: tuple[int, ...] = ()
    dma_strides: tuple[int, ...] = ()
    value: str | None = None
    device_image: str | None = None
    host: HostExtents = HostExtents()
    region: int | None = None
    alias_of: str | None = None


class CaseLaunch(msgspec.Struct, frozen=True, omit_defaults=True):
    """One kernel: its bundle's directory, buffers in order, and the argument index of each.

    ``values``: of `index` parameters and runtime sizes, by name.
    """

    bundle: str
    args: tuple[str, ...]
    arg_index: tuple[int, ...]
    values: dict[str, int] = {}


class CaseTolerance(msgspec.Struct, frozen=True, omit_defaults=True):
    """An element is right if |found − expected| ≤ atol + rtol·|expected|; integers are exact.

    ``merged_nan``: an expected NaN is also met by an infinity.
    """

    atol: float
    rtol: float
    merged_nan: bool = False


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
    tolerance: CaseTolerance | None = None


class CaseFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """``case.json``. ``run``: options of the command line that a replay uses, by name."""

    name: str
    tolerance: CaseTolerance
    buffers: dict[str, CaseBuffer]
    launches: tuple[CaseLaunch, ...]
    outputs: tuple[CaseOutput, ...]
    run: dict[str, Any] = {}


@dataclass(frozen=True)
class Case:
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
            _refuse(
                self.directory / name,
                "an array that case.json names is missing",
                expected=key,
                found=", ".join(arrays) or "no arrays",
            )
        return arrays[key]


def case_directory(path: str | os.PathLike[str]) -> Path | None:
    """The directory of the case that ``path`` (directory or case.json) names, if it is one."""
    place = Path(path)
    if place.name == CASE_FILE and place.is_file():
        return place.parent
    return place if (place / CASE_FILE).is_file() else None


def read_case(directory: Path) -> Case:
    """Read a case directory; LaunchError SPY371 naming the file and what is wrong with it."""
    file = directory / CASE_FILE
    try:
        spec = msgspec.json.decode(file.read_bytes(), type=CaseFile)
    except (OSError, msgspec.MsgspecError) as error:
        _refuse(file, "cannot read the case", found=str(error))
    _check_names(file, spec)
    return Case(
        directory, spec, _read_npz(directory / VALUES_FILE), _read_npz(directory / IMAGES_FILE)
    )


def with_tolerances(case: Case, change: Callable[[CaseTolerance], CaseTolerance]) -> Case:
    """``case`` with the tolerance of every output changed."""
    outputs = tuple(
        msgspec.structs.replace(o, tolerance=change(o.tolerance or case.spec.tolerance))
        for o in case.spec.outputs
    )
    return replace(case, spec=msgspec.structs.replace(case.spec, outputs=outputs))


def with_options(case: Case, options: Mapping[str, Any]) -> Case:
    """``case`` with the options of the command line that a replay is to use."""
    return replace(case, spec=msgspec.structs.replace(case.spec, run=dict(options)))


def _check_names(file: Path, spec: CaseFile) -> None:
    """Every buffer that launches and outputs name exists, and outputs are tensors."""
    for k, launch in enumerate(spec.launches):
        if len(launch.args) != len(launch.arg_index):
            _refuse(
                file,
                "args and arg_index of a launch differ in length",
                f"$.launches[{k}]",
                expected=str(len(launch.args)),
                found=str(len(launch.arg_index)),
            )
        for name in launch.args:
            _check_name(file, spec, name, f"$.launches[{k}].args")
    for k, output in enumerate(spec.outputs):
        _check_name(file, spec, output.buffer, f"$.outputs[{k}].buffer")
        if spec.buffers[output.buffer].layout is None:
            _refuse(file, f"output {output.buffer!r} has no layout", f"$.outputs[{k}].buffer")
    if len({output.value is None for output in spec.outputs}) > 1:
        _refuse(file, "some outputs have values and others have none", "$.outputs")
    for name, buffer in spec.buffers.items():
        if buffer.alias_of is not None:
            _check_name(file, spec, buffer.alias_of, f"$.buffers.{name}.alias_of")
            _check_alias(file, spec, name, buffer)


def _check_alias(file: Path, spec: CaseFile, name: str, buffer: CaseBuffer) -> None:
    """An alias is a tensor in the memory of a tensor that is no alias."""
    target = spec.buffers[buffer.alias_of or name]
    if buffer.layout is None or target.layout is None or target.alias_of is not None:
        _refuse(file, f"buffer {name!r} cannot be an alias", f"$.buffers.{name}.alias_of")


def _check_name(file: Path, spec: CaseFile, name: str, path: str) -> None:
    if name not in spec.buffers:
        known = ", ".join(spec.buffers) or "no buffers"
        _refuse(file, f"there is no buffer {name!r}", path, expected=known, found=name)


def _read_npz(file: Path) -> dict[str, npt.NDArray[Any]]:
    if not file.is_file():
        return {}
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        _refuse(file, "cannot read the arrays", found=str(error))


def _refuse(
    file: Path,
    message: str,
    path: str = "$",
    *,
    expected: str = "",
    found: str = "",
) -> NoReturn:
    raise LaunchError(
        "SPY371", message, JsonLocation(str(file), path), expected=expected, found=found
    )
