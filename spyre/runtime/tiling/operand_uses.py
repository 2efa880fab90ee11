"""The operands of a bundle in its arguments, and the host dims that each of their dims walks.

They decide which dims of different arguments are the same, and how operands are retargeted to
larger tensors. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from spyre.hw.linking import Walk
from spyre.hw.spec import REGIONS
from spyre.mlir.operation import (
    Operation,
    Tensor,
    footprint,
    indexed_dims,
    unsplit_input_extent,
)
from spyre.runtime.arguments import trace_operands
from spyre.runtime.program import POOL, LoweredBundle, owner_of
from spyre.runtime.tiling.device_dims import DeviceDims

FIRST_SCRATCH = POOL - 1
"""Memory k of device_mem_allocate is owner ``FIRST_SCRATCH - k``."""


def operand_uses(
    bundle: LoweredBundle, has_pool: bool, values: Mapping[str, int] | None = None
) -> tuple[Walk[int], ...]:
    """All operands of all execute statements, in textual order, by argument index, POOL or scratch.

    ``has_pool``: segment 0 of a bundle with baked addresses is the pool. ``values``: of runtime
    sizes and index parameters. LaunchErrors as of `trace_operands`.
    """
    program = bundle.program
    names = (owner_of(parameter.name) for parameter in program.parameters)
    indices = {index for index in names if index is not None} or range(POOL, REGIONS)
    memories = {index: index for index in indices}
    scratch = [FIRST_SCRATCH - k for k in range(len(program.allocations))]
    traced = trace_operands(bundle, memories, values or {}, scratch, has_pool)
    return tuple(walk for execute in traced for walk in execute.walks)


@dataclass(frozen=True, slots=True)
class WalkedDim:
    """Dim ``dim`` of an operand and the host dims it walks (several: it runs through all of them).

    ``fault``: why it is no plain walk of them, '' if it is.
    """

    dim: str
    host_dims: tuple[int, ...]
    fault: str = ""


def walked_dims(use: Walk[int], device: DeviceDims) -> list[WalkedDim]:
    """All dims of the operand that its argument has; ``device``: of that argument."""
    op, tensor = use.op, use.tensor
    pitches = footprint(op, tensor).pitch_bytes
    dims = [
        d
        for d in dict.fromkeys(tensor.dims)
        if tensor.holds(d) and d not in indexed_dims(op, tensor)
    ]
    walked: dict[str, WalkedDim] = {}
    for dim in dims:
        steps = whole_steps(op, tensor, dim)
        if steps > 1:
            walked[dim] = _by_pitch(dim, pitches[dim], steps, device)
        elif dim in tensor.stick_dims and device.stick_host_dim >= 0:
            walked[dim] = WalkedDim(dim, (device.stick_host_dim,))
    places = _by_place(use, device, [d for d in dims if d not in walked], walked)
    walked |= {dim: WalkedDim(dim, (host,)) for dim, host in places.items()}
    return [walked[dim] for dim in dims if dim in walked]


def whole_steps(op: Operation, tensor: Tensor, dim: str) -> int:
    """Sticks of a stick dim, or elements, that all cores visit of one tensor along ``dim``.

    Under a window: of the stored input, all of it.
    """
    extent = op.tensor_extent(tensor, dim) if tensor.is_local else op.extents[dim]
    if (window := op.window_of(tensor, dim)) is not None:
        extent = unsplit_input_extent(tensor, dim, window)
    return -(-extent // tensor.sticks.get(dim, 1))


def _by_pitch(dim: str, pitch_bytes: int, steps: int, device: DeviceDims) -> WalkedDim:
    """The device dims whose coordinates change over ``steps``."""
    way = np.array([pitch_bytes, (steps - 1) * pitch_bytes], np.int64)
    ends, _ = device.sticks.steps_of(way, beyond=True)
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
    use: Walk[int], device: DeviceDims, single: list[str], known: Mapping[str, WalkedDim]
) -> dict[str, int]:
    """Host dims of dims of one step: those of the device dims left over, in order of memory."""
    taken = {host for walked in known.values() for host in walked.host_dims}
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
