"""One case on disk: buffers, launches and expected outputs, as `case.json` describes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.layout import SpyreTensorLayout


class Layout(msgspec.Struct, frozen=True):
    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    device_dtype: str
    element_arrangement: str = "STANDARD"

    def to_layout(self) -> SpyreTensorLayout:
        return SpyreTensorLayout(
            self.device_size, self.stride_map, self.device_dtype, self.element_arrangement
        )


class Buffer(msgspec.Struct, frozen=True):
    kind: str
    nbytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    storage_offset: int = 0
    layout: Layout | None = None
    dma_sizes: tuple[int, ...] = ()
    dma_strides: tuple[int, ...] = ()
    value: str | None = None
    device_image: str | None = None
    host: dict[str, Any] | None = None


class LaunchOf(msgspec.Struct, frozen=True):
    bundle: str
    args: tuple[str, ...]
    arg_index: tuple[int, ...]


class Output(msgspec.Struct, frozen=True):
    buffer: str
    value: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    dtype: str


class Tolerances(msgspec.Struct, frozen=True):
    atol: float
    rtol: float


class CaseFile(msgspec.Struct, frozen=True):
    name: str
    tolerance: Tolerances
    buffers: dict[str, Buffer]
    launches: tuple[LaunchOf, ...]
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Case:
    """A case directory, read."""

    directory: Path
    spec: CaseFile
    values: dict[str, npt.NDArray[Any]]
    images: dict[str, npt.NDArray[Any]]


def read_case(directory: Path) -> Case:
    spec = msgspec.json.decode((directory / "case.json").read_bytes(), type=CaseFile)
    return Case(
        directory,
        spec,
        _read_npz(directory / "values.npz"),
        _read_npz(directory / "device_images.npz"),
    )


def find_cases(root: Path) -> list[Path]:
    """Case directories at or below ``root``, sorted by name."""
    if (root / "case.json").is_file():
        return [root]
    return sorted(path.parent for path in root.glob("*/case.json"))


def _read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    if not path.is_file():
        return {}
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}
