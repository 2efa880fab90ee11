"""Which host dim of its argument every dim of an operand walks, by pitches and places.

A dim of several steps is recognised by its pitch in the tile's memory; one of a single step by
its place among the device dims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.hw.address_map import AddressMap
from spyre.hw.nest import Int64Array
from spyre.mlir.footprint import (
    core_extent,
    footprint,
    indexed_dims,
    is_local,
    stick_elements,
    unsplit_input_extent,
    window_of,
)
from spyre.mlir.operation import Operation, Tensor
from spyre.runtime.tiling.device_dims import DeviceDims
from spyre.runtime.tiling.operand_uses import OperandUse


@dataclass(frozen=True, slots=True)
class WalkedDim:
    """Dim ``dim`` of an operand and the host dims it walks (several: it runs through all of them).

    ``fault``: why it is no plain walk of them, '' if it is.
    """

    dim: str
    host_dims: tuple[int, ...]
    fault: str = ""


def walked_dims(use: OperandUse, device: DeviceDims) -> list[WalkedDim]:
    """All dims of the operand that its argument has; ``device``: of that argument."""
    op, tensor = use.op, use.tensor
    pitches = footprint(op, tensor).pitch_bytes
    held = [
        d
        for d in dict.fromkeys(tensor.dims)
        if tensor.holds(d) and d not in indexed_dims(op, tensor)
    ]
    found: dict[str, WalkedDim] = {}
    for dim in held:
        steps = whole_steps(op, tensor, dim)
        if steps > 1:
            found[dim] = _by_pitch(dim, pitches[dim], steps, device)
        elif dim in tensor.stick_dims and device.stick_host_dim >= 0:
            found[dim] = WalkedDim(dim, (device.stick_host_dim,))
    places = _by_place(use, device, [d for d in held if d not in found], found)
    found |= {dim: WalkedDim(dim, (host,)) for dim, host in places.items()}
    return [found[dim] for dim in held if dim in found]


def whole_steps(op: Operation, tensor: Tensor, dim: str) -> int:
    """Sticks of a stick dim, or elements, that all cores visit of one tensor along ``dim``.

    Under a window: of the stored input, all of it.
    """
    extent = core_extent(op, tensor, dim) if is_local(tensor) else op.extents[dim]
    if (window := window_of(op, tensor, dim)) is not None:
        extent = unsplit_input_extent(tensor, dim, window)
    return -(-extent // stick_elements(tensor).get(dim, 1))


def _by_pitch(dim: str, pitch_bytes: int, steps: int, device: DeviceDims) -> WalkedDim:
    """The device dims whose coordinates change over ``steps``."""
    tile = AddressMap(device.extents[:-1], device.strides_bytes)
    ends = tile.coordinates(np.array([pitch_bytes, (steps - 1) * pitch_bytes], np.int64))
    changed = np.flatnonzero((ends != 0).any(axis=0))
    lowest = int(changed.max()) if changed.size else len(device.strides_bytes) - 1
    several = int(changed.min()) != lowest if changed.size else False
    hosts = tuple(dict.fromkeys(device.host_dims[int(k)] for k in changed))
    if -1 in hosts or not changed.size:
        return WalkedDim(dim, tuple(h for h in hosts if h >= 0), "walks memory of no host dim")
    if pitch_bytes != device.strides_bytes[lowest]:
        return WalkedDim(dim, hosts, "skips elements along it")
    return WalkedDim(dim, hosts, "runs through several dims" if several and len(hosts) > 1 else "")


def _by_place(
    use: OperandUse, device: DeviceDims, single: list[str], found: Mapping[str, WalkedDim]
) -> dict[str, int]:
    """Host dims of dims of one step: those of the device dims left over, in order of memory."""
    taken = {host for walked in found.values() for host in walked.host_dims}
    above = range(len(device.extents) - 2, -1, -1)
    left = [
        device.host_dims[k]
        for k in above
        if device.host_dims[k] >= 0
        and device.host_dims[k] not in taken
        and device.host_dims[k] != device.stick_host_dim
    ]
    if len(left) == len(single):
        return dict(zip(single, left, strict=True))
    if len(use.tensor.dims) != len(device.extents) - 1:
        return {}
    places = {dim: device.host_dims[k] for dim, k in zip(use.tensor.dims, above, strict=True)}
    return {dim: places[dim] for dim in single if places[dim] in left}


def start_coordinates(use: OperandUse, device: DeviceDims, host_dim: int) -> Int64Array:
    """Element of ``host_dim`` every core starts at, [instance, core]."""
    tile = AddressMap(device.extents[:-1], device.strides_bytes)
    coordinates = tile.coordinates(use.offsets_bytes)
    total = np.zeros(use.offsets_bytes.shape, np.int64)
    for k in device.walked_by(host_dim):
        total += coordinates[..., k] * device.multipliers[k]
    if host_dim == device.stick_host_dim:
        inside = use.offsets_bytes % STICK_BYTES
        total += inside * device.extents[-1] // STICK_BYTES
    return total
