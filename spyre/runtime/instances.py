"""The executes of a linked program one by one: dispatches, start addresses, memory they touch.

Used by what looks at a program between two executes, such as :mod:`.twin_check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from spyre.errors import DeviceLocation
from spyre.hw.binding import Allocation, Binding
from spyre.hw.core_plan import CorePlan
from spyre.hw.linked_program import LinkedProgram, instance_starts
from spyre.hw.linker import instance_arrangements
from spyre.hw.nest import Int64Array
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.mlir.operation import Component, Indirection, Operation
from spyre.mlir.program import Execute


@dataclass(frozen=True, slots=True)
class Window:
    """A byte range an operand (number as in ``Operation.tensors``) touches; on ``core`` in LX."""

    operand: int
    address_bytes: int
    size_bytes: int
    core: int | None = None


@dataclass(frozen=True)
class Instance:
    """One run of an execute statement: the dispatches ``first`` to ``last`` (excluded)."""

    linked: LinkedProgram
    binding: Binding
    first: int
    last: int
    static: int
    instance: int

    @property
    def execute(self) -> Execute:
        """The execute statement."""
        return self.linked.program.executes[self.static]

    @property
    def plan(self) -> CorePlan:
        """A plan of the statement: its operation, family and accesses are those of all."""
        return self.linked.plans[self.static][0]

    @property
    def op(self) -> Operation:
        """The operation."""
        return self.plan.op

    @property
    def loop_indices(self) -> tuple[int, ...]:
        """Indices of the enclosing loops, outermost first."""
        found = self.linked.schedule.loop_indices[self.static][self.instance]
        return tuple(int(i) for i in found)

    @cached_property
    def starts(self) -> Int64Array:
        """Byte address of every operand on every core, [operand, core]."""
        return instance_starts(self.linked, self.static, self.instance)

    @cached_property
    def arrangements(self) -> tuple[str, ...]:
        """Element arrangement of every operand."""
        return instance_arrangements(self.op, self.starts, self.binding)

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """What the operands touch, in their order; one window per core in LX."""
        return tuple(w for k in range(len(self.op.tensors)) for w in self._windows(k))

    def _windows(self, operand: int) -> Iterator[Window]:
        tensor, span = self.op.tensors[operand], self.plan.accesses[operand].span_bytes
        indirect = tensor.indirection is Indirection.VALUE
        if tensor.component is Component.LX:
            for core, start in zip(self.op.cores, self.starts[operand].tolist(), strict=True):
                end = LX_BASE + (core + 1) * LX_BYTES if indirect else start + span
                yield Window(operand, start, end - start, core)
            return
        low, high = int(self.starts[operand].min()), int(self.starts[operand].max()) + span
        if indirect:
            high = max([high, *(a.end_bytes for a in self.binding.allocations if _holds(a, low))])
        yield Window(operand, low, high - low)

    def location(self, operand: int, core: int | None, address_bytes: int) -> DeviceLocation:
        """The place of a byte of an operand, for diagnoses; ``core`` has it in its LX, or wrote it.

        Addresses in a scratchpad count from its start.
        """
        if self.op.tensors[operand].component is Component.LX and core is not None:
            address_bytes -= LX_BASE + core * LX_BYTES
        return DeviceLocation(
            self.op.file,
            self.static,
            core,
            self.op.tensors[operand].name,
            address_bytes,
            self.loop_indices,
            self.execute.location,
        )


def _holds(allocation: Allocation, address_bytes: int) -> bool:
    return allocation.address_bytes <= address_bytes < allocation.end_bytes


def instances(linked: LinkedProgram, binding: Binding) -> Iterator[Instance]:
    """Every execute in program order."""
    keys = linked.dispatch[:, 1:3]
    change = np.flatnonzero((np.diff(keys, axis=0) != 0).any(axis=1)) + 1
    for first, last in pairwise([0, *change.tolist(), len(keys)]):
        if first < last:
            static, instance = (int(v) for v in keys[first])
            yield Instance(linked, binding, first, last, static, instance)
