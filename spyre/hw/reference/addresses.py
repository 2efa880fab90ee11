"""Addresses of the elements of a tensor: the address rule of the SDSC reference §5.2, step by step.

Coordinates are local: they count from the first element of a core's work slice. Extents count
elements, pitches and offsets count bytes from the core's start address.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import numpy.typing as npt

from spyre.mlir.operation import Indirection, Operation, Padding, Tensor

Int64Array = npt.NDArray[np.int64]
Coordinates = Mapping[str, Int64Array]
"""Per dim of the operation, the coordinate of every element of an array."""

STICK_BYTES = 128


def core_extents(op: Operation) -> dict[str, int]:
    """Elements of every dim that one core iterates (step 1)."""
    return {dim: op.extents[dim] // op.slices.get(dim, 1) for dim in op.dims}


def local_coordinates(op: Operation) -> dict[str, Int64Array]:
    """Local coordinates of one core's box, arrays in the shape of the box."""
    extents = core_extents(op)
    grid = np.indices(tuple(extents[dim] for dim in op.dims), dtype=np.int64)
    return dict(zip(op.dims, grid, strict=True))


def slice_origin(op: Operation, position: int) -> dict[str, int]:
    """Global coordinate of the first element of the ``position``-th core's box (step 1)."""
    extents = core_extents(op)
    return {dim: op.core_slices[position].get(dim, 0) * extents[dim] for dim in op.dims}


def stick_elements(tensor: Tensor, dim: str) -> int:
    """Elements of ``dim`` in one stick; 1 for dims outside of the stick."""
    total = 1
    for name, size in zip(tensor.stick_dims, tensor.stick_sizes, strict=True):
        total *= size if name == dim else 1
    return total


def stored_elements(op: Operation, tensor: Tensor, dim: str) -> int:
    """Elements the memory holds along ``dim`` (step 2, and §6.4 for indexed dims)."""
    if tensor.scale[dim] == -1:
        return 1
    if tensor.scale[dim] == -2:
        return stick_elements(tensor, dim)
    if dim in tensor.device_dim_sizes:
        return tensor.device_dim_sizes[dim]
    if tensor.indirection is Indirection.VALUE and tensor.max_dim_sizes.get(dim, -1) > 0:
        return tensor.max_dim_sizes[dim]
    if dim in op.windows and tensor.index == op.inputs[0].index:
        return windowed_elements(op, tensor, dim) + tensor.gap_elements.get(dim, 0)
    shares = tensor.own_slices or op.slices
    extent = op.extents[dim] // (shares.get(dim, 1) if tensor.is_local else 1)
    gap = tensor.gap_elements.get(dim, 0)
    return extent - gap if _gap_means_padding(op, tensor, dim, gap) else extent + gap


def windowed_elements(op: Operation, tensor: Tensor, dim: str) -> int:
    """Input elements along a windowed dim (operations reference §7); one core's in LX, if split."""
    window = op.windows[dim]
    if tensor.is_local and op.slices.get(dim, 1) > 1:
        reach = window.dilation * (op.extents[window.window_dim] - 1)
        return (core_extents(op)[dim] - 1) * window.stride + reach + 1
    implied = tensor.padding.get(dim) in (None, Padding.NONE, Padding.IMPLIED)
    return window.total - (window.pad_front + window.pad_back if implied else 0)


def _gap_means_padding(op: Operation, tensor: Tensor, dim: str, gap: int) -> bool:
    """§7: a padded restickify rounds N up to the other's stick and writes the excess as gap."""
    if op.name != "ReStickifyOpHBM" or dim in tensor.stick_dims:
        return False
    other = op.outputs[0] if tensor in op.inputs else op.inputs[0]
    stick = stick_elements(other, dim)
    return op.extents[dim] % stick == 0 and 0 < gap < stick


def pitches(op: Operation, tensor: Tensor) -> dict[str, int]:
    """Bytes from one stick (of a stick dim) or element to the next, per dim (steps 3 and 4)."""
    if tensor.pitches:
        return dict(tensor.pitches)
    result = {}
    pitch = tensor.first_pitch_bytes
    for dim in tensor.dims:
        result[dim] = pitch
        pitch *= -(-stored_elements(op, tensor, dim) // stick_elements(tensor, dim))
    return result


def element_offsets(op: Operation, tensor: Tensor, local: Coordinates) -> Int64Array:
    """Byte offset of the tensor's element at every local coordinate (steps 3 to 6)."""
    pitch = pitches(op, tensor)
    shape = next(iter(local.values())).shape
    offset = np.zeros(shape, np.int64)
    within = {}
    for dim in tensor.dims:
        coordinate = local[dim] if tensor.scale[dim] == 1 else np.zeros(shape, np.int64)
        size = stick_elements(tensor, dim)
        offset += pitch[dim] * (coordinate // size)
        within[dim] = coordinate % size
    return offset + position_in_stick(tensor, within) * tensor.word_length_bytes


def position_in_stick(tensor: Tensor, within: dict[str, Int64Array]) -> Int64Array:
    """Element number in the stick; the stick's dims are listed innermost first (step 5)."""
    position = np.zeros_like(next(iter(within.values())))
    weight = 1
    remaining = dict(within)
    for dim, size in zip(tensor.stick_dims, tensor.stick_sizes, strict=True):
        position += weight * (remaining[dim] % size)
        remaining[dim] = remaining[dim] // size
        weight *= size
    return position


def addresses_elsewhere(
    op: Operation, starts: Int64Array, operand: int, core: int, box: Mapping[str, Int64Array]
) -> Int64Array:
    """Byte address, in the memory of the core that holds it, of every global coordinate ``box``.

    ``starts``: [operand, core]; ``core``: position of the core that asks.
    """
    tensor = op.tensors[operand]
    slices, rows = tensor.own_slices or op.slices, tensor.own_core_slices or op.core_slices
    extents = {dim: op.extents[dim] // slices.get(dim, 1) for dim in op.dims}
    shape = next(iter(box.values())).shape
    addresses = np.empty(shape, np.int64)
    for index in product(*map(range, shape)):
        point = {dim: int(coordinate[index]) for dim, coordinate in box.items()}
        owner = _owner(tensor, rows, extents, point, core)
        row = rows[owner]
        local = {dim: np.array([point[dim] - row.get(dim, 0) * extents[dim]]) for dim in op.dims}
        offset = element_offsets(op, tensor, local)
        addresses[index] = int(starts[operand, owner]) + int(offset[0])
    return addresses


def _owner(
    tensor: Tensor,
    rows: tuple[Mapping[str, int], ...],
    extents: Mapping[str, int],
    point: Mapping[str, int],
    core: int,
) -> int:
    """The first core, ``core`` before all others, that holds ``point``."""
    candidates: tuple[int, ...] = (core, *range(len(rows)))
    for candidate in candidates:
        row = rows[candidate]
        if row and all(
            row.get(dim, 0) == point[dim] // extents[dim]
            for dim in tensor.dims
            if tensor.holds(dim)
        ):
            return candidate
    raise LookupError(f"no core holds {dict(point)} of {tensor.name}")
