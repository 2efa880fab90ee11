"""Which argument every operand of a bundle lies in, and at which bytes of it.

The program is scheduled with every argument in an address window of its own; what an address is
computed from can then be read off it. Used to tell which dims of different arguments go together
and to retarget operands to larger tensors. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from spyre.hw.linking import WINDOW_BITS, window_base
from spyre.hw.spec import REGION_BITS, REGION_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import (
    Component,
    Operation,
    Tensor,
    footprint,
    indexed_dims,
    stick_elements,
    unsplit_input_extent,
)
from spyre.mlir.program import Execute, LoopProgram, Schedule
from spyre.runtime.arguments import operand_starts
from spyre.runtime.program import POOL, LoweredBundle, owner_of
from spyre.runtime.tiling.device_dims import DeviceDims

FIRST_SCRATCH = POOL - 1
"""Memory k of device_mem_allocate is owner ``FIRST_SCRATCH - k``."""


@dataclass(frozen=True)
class OperandUse:
    """One operand of one execute statement.

    ``op``: the operation at the largest runtime sizes. ``owner``: argument index, POOL or scratch;
    None in LX and where no single argument owns it. ``offsets_bytes``: [instance, core], from the
    owner's first byte (in LX: of the scratchpad).
    """

    execute: int
    filename: str
    op: Operation
    operand: int
    owner: int | None
    offsets_bytes: Int64Array

    @property
    def tensor(self) -> Tensor:
        return self.op.tensors[self.operand]

    @property
    def is_written(self) -> bool:
        return self.operand >= len(self.op.inputs) + len(self.op.index_tensors)


def operand_uses(
    bundle: LoweredBundle, has_pool: bool, values: Mapping[str, int] | None = None
) -> tuple[OperandUse, ...]:
    """All operands of all execute statements, in textual order.

    ``has_pool``: segment 0 of a bundle with baked addresses is the pool. ``values``: of runtime
    sizes and index parameters. LaunchError SPY170 for a parameter without value.
    """
    program = bundle.program
    owners = _Owners(program, has_pool)
    scratch = [owners.base(FIRST_SCRATCH - k) for k in range(len(program.allocations))]
    schedule = program.schedule(owners.parameters(program, values or {}), scratch)
    return tuple(
        use
        for execute in program.executes
        for use in _uses_of(bundle.operations[execute.sdsc_filename], execute, schedule, owners)
    )


class _Owners:
    """Owners numbered by address window."""

    def __init__(self, program: LoopProgram, has_pool: bool) -> None:
        owners = [owner_of(p.name) for p in program.parameters]
        known = [owner for owner in owners if owner is not None]
        known += [FIRST_SCRATCH - k for k in range(len(program.allocations))]
        self.first_segment = 1 if has_pool else 0
        self.windows = list(dict.fromkeys(known))

    def base(self, owner: int) -> int:
        """Address at which ``owner`` begins."""
        return window_base(self.windows.index(owner))

    def parameters(self, program: LoopProgram, values: Mapping[str, int]) -> dict[str, int]:
        """Values of all parameters that have one."""
        parameter_values = dict(values)
        for parameter in program.parameters:
            owner = owner_of(parameter.name)
            if owner is not None:
                parameter_values[parameter.name] = self.base(owner)
        return parameter_values

    def locate(self, tensor: Tensor, starts: Int64Array) -> tuple[int | None, Int64Array]:
        """Owner of ``starts`` and their offsets in it."""
        if tensor.symbolic:
            numbers, offsets = (starts >> WINDOW_BITS) - 1, starts & (window_base(0) - 1)
            table = dict(enumerate(self.windows))
        else:
            numbers, offsets = starts >> REGION_BITS, starts & (REGION_BYTES - 1)
            table = {s: s - self.first_segment for s in range(8)}
        distinct = np.unique(numbers)
        if len(distinct) != 1:
            return None, starts
        return table.get(int(distinct[0])), offsets


def _uses_of(
    op: Operation, execute: Execute, schedule: Schedule, owners: _Owners
) -> Iterator[OperandUse]:
    sized, all_starts = operand_starts(op, execute, schedule)
    for operand, starts in enumerate(all_starts):
        owner, offsets = None, starts
        if sized.tensors[operand].component is not Component.LX:
            owner, offsets = owners.locate(sized.tensors[operand], starts)
        yield OperandUse(execute.index, execute.sdsc_filename, sized, operand, owner, offsets)


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
    return -(-extent // stick_elements(tensor).get(dim, 1))


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
    use: OperandUse, device: DeviceDims, single: list[str], known: Mapping[str, WalkedDim]
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
