"""Operands of an execute as one array over all cores; breakpoints, which keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import FORMATS
from spyre.errors import LaunchError
from spyre.hw.device import Device
from spyre.hw.reference import decoded, element_offsets
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import Indirection
from spyre.runtime.compare import ExecuteView, Parts, operand_window

MAX_ELEMENTS = 1 << 22
"""Larger tiles are skipped: searching for them would take longer than the run."""


@dataclass(frozen=True, eq=False)
class OperandTile:
    """An operand over its dims of size > 1, in the operation's order of dims.

    ``cores``: position of the core that holds each element, the last one of several.
    """

    dims: tuple[str, ...]
    values: npt.NDArray[Any]
    cores: Int64Array


def read_tile(device: Device, step: ExecuteView, operand: int) -> OperandTile | None:
    """The numbers that an operand has in memory now.

    None where addresses alone do not locate elements (gathers, windows, per-tensor core slices),
    for formats other than 16- and 32-bit floats, and for tiles of more than `MAX_ELEMENTS`.
    """
    op, tensor = step.op, step.op.tensors[operand]
    dims = tuple(d for d in op.dims if tensor.holds(d) and op.extents[d] > 1)
    shape = tuple(op.extents[d] for d in dims)
    plain = FORMATS[tensor.data_format].computed
    odd = tensor.indirection is Indirection.VALUE or tensor.own_core_slices or op.windows
    if not plain or odd or prod(shape) > MAX_ELEMENTS or tensor in op.index_tensors:
        return None
    shares = [op.core_extent(d) for d in dims]
    taken = _elements(device, step, operand, _offsets(step, operand, dims, shares))
    if taken is None:
        return None
    values = np.zeros(shape, np.float32)
    owners = np.zeros(shape, np.int64)
    positions = _positions(step, dims, shares, shape)
    values.flat[positions.ravel()] = taken.ravel()
    count = len(op.cores)
    owners.flat[positions.ravel()] = np.repeat(np.arange(count), prod(shares))
    return OperandTile(dims, values, owners)


def _offsets(
    step: ExecuteView, operand: int, dims: tuple[str, ...], shares: list[int]
) -> Int64Array:
    """Byte offset of each element from the start address of its core."""
    grid = np.indices(shares, dtype=np.int64)
    zero = np.zeros(shares, np.int64)
    local = {d: zero for d in step.op.dims} | dict(zip(dims, grid, strict=True))
    return element_offsets(step.op, step.op.tensors[operand], local).ravel()


def _elements(
    device: Device, step: ExecuteView, operand: int, offsets: Int64Array
) -> npt.NDArray[Any] | None:
    """The elements at ``offsets`` of every core, [core, element].

    None if the memory ends before the operation's extents do (a padded restickify).
    """
    tensor, window = step.op.tensors[operand], operand_window(step, operand)
    content = np.ascontiguousarray(window.view(device.memory)).reshape(-1)
    stored = decoded(content, tensor.data_format, device.numerics.mode)
    addresses = step.starts[operand][:, None] + offsets
    if window.cores is None:
        where = addresses - window.low
    else:
        pad, inside = np.divmod(addresses - LX_BASE, LX_BYTES)
        where = (pad - window.cores[0]) * (window.high - window.low) + inside - window.low
    positions = where // tensor.word_length_bytes
    if positions.max() >= len(stored):
        return None
    found: npt.NDArray[Any] = stored[positions]
    return found


def _positions(
    step: ExecuteView, dims: tuple[str, ...], shares: list[int], shape: tuple[int, ...]
) -> Int64Array:
    """Flat position in the tile of every element of every core, [core, element]."""
    grid = np.indices(shares, dtype=np.int64).reshape(len(dims), prod(shares))
    slices = [[row.get(d, 0) for d in dims] for row in step.op.core_slices]
    first = np.array(slices, np.int64).reshape(len(slices), len(dims)) * np.array(shares, np.int64)
    strides = np.array([prod(shape[k + 1 :]) for k in range(len(shape))], np.int64)
    coordinates = first[:, :, None] + grid[None]
    positions: Int64Array = (coordinates * strides[None, :, None]).sum(axis=1)
    return positions


@dataclass
class Breakpoint:
    """Keeps the operands of an execute right after it ran; an `ExecuteObserver`.

    ``number``: of the execute, as in reports; ``loops``: indices of its outer loops, of which the
    first matching execution counts. ``names``: operands as named in the SDSC, all by default.
    """

    number: int
    loops: tuple[int, ...] = ()
    names: Sequence[str] = ()
    tensors: dict[str, OperandTile | None] = field(default_factory=dict)
    is_reached: bool = False

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Do nothing."""

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Keep the operands. LaunchError SPY624 for a name that the execute does not have."""
        step = parts[0]
        if (
            self.is_reached
            or number != self.number
            or step.loop_indices[: len(self.loops)] != self.loops
        ):
            return
        self.is_reached = True
        operands = {tensor.name: k for k, tensor in enumerate(step.op.tensors)}
        for name in self.names or operands:
            if name not in operands:
                raise LaunchError(
                    "SPY624",
                    f"execute {number} ({step.op.name}) has no tensor {name}",
                    step.location(0, None, int(step.starts[0].min())),
                    expected=f"one of {', '.join(operands)}",
                    found=name,
                )
            self.tensors[name] = read_tile(device, step, operands[name])

    def require_reached(self) -> None:
        """LaunchError SPY624 if the execute did not run."""
        if not self.is_reached:
            loops = f" at loop indices {self.loops}" if self.loops else ""
            raise LaunchError(
                "SPY624",
                f"the run does not reach execute {self.number}{loops}",
                expected="the number of an execute, as counted in the table of a run",
                found=str(self.number),
            )
