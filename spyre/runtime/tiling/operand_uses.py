"""Which argument every operand of a bundle lies in, and at which bytes of it.

The program is scheduled with every argument in an address window of its own; what an address is
computed from can then be read off it. Used to tell which dims of different arguments go together
and to retarget operands to larger tensors. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from spyre.hw.address_map import WINDOW_BITS, window_base
from spyre.hw.linker import check_bound
from spyre.hw.nest import Int64Array
from spyre.hw.parts import check_slices
from spyre.hw.spec import REGION_BITS, REGION_BYTES
from spyre.mlir.loops import Parameter
from spyre.mlir.operation import Component, Operation, Tensor
from spyre.mlir.program import Execute, LoopProgram, Schedule
from spyre.mlir.runtime_sizes import group_by_sizes, with_sizes
from spyre.runtime.kernel_source import KernelSource

POOL = -1
"""Owner of what lies in the pool; device_mem_allocate k is owner ``FIRST_SCRATCH - k``."""
FIRST_SCRATCH = -2
_ARGUMENT = re.compile(r"arg_(\d+)_base_addr")
_POOL_NAME = "pool_base_addr"


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
        """The operand's description."""
        return self.op.tensors[self.operand]

    @property
    def is_written(self) -> bool:
        """True for outputs."""
        return self.operand >= len(self.op.inputs) + len(self.op.index_tensors)


def operand_uses(
    bundle: KernelSource, has_pool: bool, values: Mapping[str, int] | None = None
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
        found = [owner_of(p) for p in program.parameters]
        known = [owner for owner in found if owner is not None]
        known += [FIRST_SCRATCH - k for k in range(len(program.allocations))]
        self.first_segment = 1 if has_pool else 0
        self.windows = list(dict.fromkeys(known))

    def base(self, owner: int) -> int:
        """Address at which ``owner`` begins."""
        return window_base(self.windows.index(owner))

    def parameters(self, program: LoopProgram, values: Mapping[str, int]) -> dict[str, int]:
        """Values of all parameters that have one."""
        given = dict(values)
        for parameter in program.parameters:
            owner = owner_of(parameter)
            if owner is not None:
                given[parameter.name] = self.base(owner)
        return given

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


def owner_of(parameter: Parameter) -> int | None:
    """Argument index of an address parameter, POOL for the pool's, None for other values."""
    if parameter.name == _POOL_NAME:
        return POOL
    match = _ARGUMENT.fullmatch(parameter.name)
    return int(match[1]) if match else None


def _uses_of(
    op: Operation, execute: Execute, schedule: Schedule, owners: _Owners
) -> Iterator[OperandUse]:
    symbols = schedule.symbols[execute.index]
    if not len(symbols):
        return
    check_bound(op, execute)
    check_slices(op)
    sized = _at_largest_sizes(op, execute, symbols)
    column = {symbol: k for k, symbol in enumerate(execute.symbol_ids)}
    for operand, tensor in enumerate(sized.tensors):
        starts = np.broadcast_to(np.array(tensor.starts, np.int64), (1, len(op.cores)))
        if tensor.symbolic:
            starts = symbols[:, [column[s] for s in tensor.starts]]
        owner: int | None = None
        if tensor.component is not Component.LX:
            owner, starts = owners.locate(tensor, starts)
        yield OperandUse(
            execute.index, execute.sdsc_filename, sized, operand, owner, np.asarray(starts)
        )


def _at_largest_sizes(op: Operation, execute: Execute, symbols: Int64Array) -> Operation:
    largest: dict[str, int] = {}
    for sizes, _ in group_by_sizes(op, execute.symbol_ids, symbols):
        largest = {dim: max(size, largest.get(dim, 0)) for dim, size in sizes.items()}
    return with_sizes(op, largest)
