"""Operands of a program and the memory they walk: offsets of all executions, from the start of
the argument, pool or allocation that their addresses are computed from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spyre.dtypes import STICK_BYTES
from spyre.layout import (
    Axis,
    Int64Array,
    SpyreTensorLayout,
    drop_unit_axes,
    join_axes,
)
from spyre.mlir.operation import Component, Operation, Tensor
from spyre.mlir.program import Execute
from spyre.runtime.arguments import (
    OWNER_BITS,
    SCRATCH_OWNER,
    SEGMENT_BITS,
    operand_starts,
    owner_parameters,
)
from spyre.runtime.program import POOL, LoweredBundle

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class WalkedMemory:
    """Device memory that addresses name: an argument, or (without ``layout``) the pool.

    ``required``: its sticks that a program must write (bool, one per stick), None where nothing
    must be.
    """

    name: str
    size_bytes: int = 0
    layout: SpyreTensorLayout | None = None
    required: BoolArray | None = None

    @cached_property
    def dims(self) -> tuple[Axis, ...]:
        """The layout's dims above the stick that have an extent, outermost first; pitches in
        bytes of the device and in host elements.
        """
        if self.layout is None:
            return ()
        *sizes, _ = self.layout.device_size
        *steps, _ = self.layout.stride_map
        axes, pitch = [], STICK_BYTES
        for extent, step in zip(reversed(sizes), reversed(steps), strict=True):
            axes.append(Axis(extent, (pitch, step)))
            pitch *= extent
        return tuple(drop_unit_axes(axes[::-1]))

    @cached_property
    def joined_dims(self) -> tuple[Axis, ...]:
        """`dims`, those joined that are one walk on the host too: a tile may begin anywhere in
        them.
        """
        return tuple(join_axes(self.dims))


@dataclass(frozen=True)
class TracedLaunch:
    """A kernel with the memory of its arguments (by index, POOL) and the values of its launch.

    ``first_execute``: number of its first execute statement; ``directory``: of the bundle in a
    case.
    """

    bundle: LoweredBundle
    memories: Mapping[int, WalkedMemory]
    values: Mapping[str, int]
    first_execute: int = 0
    directory: str = ""

    def sdsc_of(self, filename: str) -> str:
        """An SDSC file of the bundle, as reports name it."""
        return filename if self.directory in ("", ".") else f"{self.directory}/{filename}"


@dataclass(frozen=True, eq=False)
class Walk:
    """One operand in HBM over all executions of an execute statement.

    ``offsets``: from the start of ``memory`` to where each core starts, bytes, [execution, core].
    """

    operand: int
    tensor: Tensor
    memory: WalkedMemory
    offsets: Int64Array
    is_output: bool

    @cached_property
    def tile_starts(self) -> Int64Array:
        """Where the cores together start, [execution]."""
        starts: Int64Array = self.offsets.min(axis=1)
        return starts


@dataclass(frozen=True, eq=False)
class TracedExecute:
    """An execute statement that runs at least once, with the walks of its operands in HBM.

    ``loops``: induction variables, [execution, depth].
    """

    launch: TracedLaunch
    execute: Execute
    op: Operation
    loops: Int64Array
    walks: tuple[Walk, ...]

    @property
    def number(self) -> int:
        """As reports count executes."""
        return self.launch.first_execute + self.execute.index

    @property
    def sdsc(self) -> str:
        """Its file, as reports name it."""
        return self.launch.sdsc_of(self.execute.sdsc_filename)

    def walk_of(self, operand: int) -> Walk | None:
        """The walk of an operand; None where it is in LX, or its addresses name no memory."""
        return next((walk for walk in self.walks if walk.operand == operand), None)


def trace_executes(launches: Sequence[TracedLaunch]) -> tuple[TracedExecute, ...]:
    """Every execute statement of the launches in order.

    LaunchError SPY362 for a parameter without value, and as of the program's schedule.
    """
    return tuple(traced for launch in launches for traced in _trace(launch))


def _trace(launch: TracedLaunch) -> Iterator[TracedExecute]:
    program = launch.bundle.program
    owners, values = owner_parameters(program, launch.values)
    scratch = [(SCRATCH_OWNER + k) << OWNER_BITS for k in range(len(program.allocations))]
    schedule = program.schedule(values, scratch)
    by_owner: dict[int, WalkedMemory] = {
        number: launch.memories[index]
        for number, index in owners.items()
        if index in launch.memories
    }
    for k, allocation in enumerate(program.allocations):
        by_owner[SCRATCH_OWNER + k] = WalkedMemory(f"allocation {k}", allocation.size_bytes)
    segments = _segments(launch)
    for execute in program.executes:
        op = launch.bundle.operations[execute.sdsc_filename]
        op, starts = operand_starts(op, execute, schedule)
        if not starts:  # never reached
            continue
        loops = schedule.loop_indices[execute.index]
        pairs = zip(op.tensors, starts, strict=True)
        walks = [
            _walk(op, k, tensor, at, by_owner if tensor.symbolic else segments, len(loops))
            for k, (tensor, at) in enumerate(pairs)
        ]
        found = tuple(walk for walk in walks if walk is not None)
        yield TracedExecute(launch, execute, op, loops, found)


def _segments(launch: TracedLaunch) -> dict[int, WalkedMemory]:
    """What the segments of a baked bundle hold: the pool first, where there is one."""
    first = 1 if launch.memories[POOL].size_bytes else 0
    return {
        0 if index == POOL else index + first: memory
        for index, memory in launch.memories.items()
        if index != POOL or first
    }


def _walk(
    op: Operation,
    operand: int,
    tensor: Tensor,
    starts: Int64Array,
    memories: Mapping[int, WalkedMemory],
    executions: int,
) -> Walk | None:
    if tensor.component is not Component.HBM:
        return None
    bits = OWNER_BITS if tensor.symbolic else SEGMENT_BITS
    owner = int(starts.flat[0]) >> bits
    if owner not in memories or (starts >> bits != owner).any():
        return None
    offsets = np.broadcast_to(starts - (owner << bits), (executions, len(op.cores)))
    return Walk(operand, tensor, memories[owner], offsets, tensor in op.outputs)
