"""What an execute takes from an operand or leaves in it, as one array over all cores."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import FORMATS
from spyre.hw.device import Device
from spyre.hw.reference import decoded, element_offsets
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import Indirection
from spyre.runtime.compare import ExecuteView, operand_window

MAX_ELEMENTS = 1 << 22
"""Larger tiles are not looked at: their search would take longer than the run."""


@dataclass(frozen=True, eq=False)
class OperandTile:
    """``values`` over the dims of more than one element that the operand has, in the order of the
    operation's; ``cores``: position of the core that has each element, of several the last.
    """

    dims: tuple[str, ...]
    values: npt.NDArray[Any]
    cores: Int64Array


def read_tile(device: Device, step: ExecuteView, operand: int) -> OperandTile | None:
    """The operand as it lies in memory now, floats as numbers.

    None for what no address rule alone gives: gathers, windows, slices of their own, other numbers
    than floats of 16 and 32 bits, and tiles of more than `MAX_ELEMENTS`.
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
    place = _places(step, dims, shares, shape)
    values.flat[place.ravel()] = taken.ravel()
    count = len(op.cores)
    owners.flat[place.ravel()] = np.repeat(np.arange(count), prod(shares))
    return OperandTile(dims, values, owners)


def _offsets(
    step: ExecuteView, operand: int, dims: tuple[str, ...], shares: list[int]
) -> Int64Array:
    """Bytes from a core's start to each element it has."""
    grid = np.indices(shares, dtype=np.int64)
    zero = np.zeros(shares, np.int64)
    local = {d: zero for d in step.op.dims} | dict(zip(dims, grid, strict=True))
    return element_offsets(step.op, step.op.tensors[operand], local).ravel()


def _elements(
    device: Device, step: ExecuteView, operand: int, offsets: Int64Array
) -> npt.NDArray[Any] | None:
    """The elements at ``offsets`` of every core, [core, element].

    None where the operation stops before its extents do (a padded restickify).
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


def _places(
    step: ExecuteView, dims: tuple[str, ...], shares: list[int], shape: tuple[int, ...]
) -> Int64Array:
    """Flat position in the tile of every element of every core, [core, element]."""
    grid = np.indices(shares, dtype=np.int64).reshape(len(dims), prod(shares))
    slices = [[row.get(d, 0) for d in dims] for row in step.op.core_slices]
    first = np.array(slices, np.int64).reshape(len(slices), len(dims)) * np.array(shares, np.int64)
    strides = np.array([prod(shape[k + 1 :]) for k in range(len(shape))], np.int64)
    coordinates = first[:, :, None] + grid[None]
    places: Int64Array = (coordinates * strides[None, :, None]).sum(axis=1)
    return places
