"""A linked program one execute at a time: its steps, and the memory each operand may touch.

What watches a program from outside (comparisons of number modes, the twin beside the engine) runs
dispatches ``first`` .. ``last`` of a step with `Executor.run_part` and looks at memory before and
after. An execute whose cores differ in their shares has a step per part, run one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spyre.errors import DeviceLocation
from spyre.hw.access import Access
from spyre.hw.core_plan import CorePlan
from spyre.hw.linked_program import LinkedProgram
from spyre.hw.linker import instance_arrangements
from spyre.hw.memory import DeviceMemory
from spyre.hw.nest import Int64Array
from spyre.hw.plan_run import PlanRun
from spyre.hw.spec import CORES, LX_BASE, LX_BYTES
from spyre.hw.touched import touched_bytes
from spyre.mlir.operation import Component, Indirection, Operation
from spyre.mlir.program import Execute


@dataclass(frozen=True, slots=True)
class ByteRange:
    """What operand ``operand`` (as in ``Operation.tensors``) touches; of LX that of ``core``."""

    operand: int
    address_bytes: int
    size_bytes: int
    core: int | None = None


@dataclass(frozen=True)
class Step:
    """One part of one execution of an execute statement; most have a single one.

    ``first``/``last``: its dispatches, end excluded. ``static``: index of the execute statement,
    ``instance``: which of its executions. ``is_first_part``: False for its further parts.
    """

    linked: LinkedProgram
    first: int
    last: int
    static: int
    instance: int
    run: PlanRun
    is_first_part: bool = True

    @property
    def execute(self) -> Execute:
        """The execute statement."""
        return self.linked.program.executes[self.static]

    @property
    def plan(self) -> CorePlan:
        """What runs."""
        return self.run.plan

    @property
    def op(self) -> Operation:
        """The plain operation of the part, see :mod:`spyre.hw.parts`."""
        return self.run.plan.op

    @property
    def loop_indices(self) -> tuple[int, ...]:
        """Indices of the enclosing loops, outermost first."""
        found = self.linked.schedule.loop_indices[self.static][self.instance]
        return tuple(int(i) for i in found)

    @cached_property
    def starts(self) -> Int64Array:
        """Device addresses in bytes, [operand, core]."""
        row = int(np.flatnonzero(self.run.instances == self.instance)[0])
        starts: Int64Array = self.run.bases[row, :, None] + self.run.pattern
        return starts

    @cached_property
    def arrangements(self) -> tuple[str, ...]:
        """Element arrangement of every operand."""
        return instance_arrangements(self.op, self.starts, self.linked.binding)

    @cached_property
    def ranges(self) -> tuple[ByteRange, ...]:
        """What the operands touch, in their order; one range per core (or cell) in LX."""
        return tuple(r for k in range(len(self.op.tensors)) for r in self._ranges(k))

    def _ranges(self, operand: int) -> Iterator[ByteRange]:
        access, starts = self.plan.accesses[operand], self.starts[operand]
        if access.tensor.component is not Component.LX:
            low, high = _hbm_extent(self, operand)
            yield ByteRange(operand, low, high - low)
            return
        for start in starts.tolist():
            core = (start - LX_BASE) // LX_BYTES
            indirect = access.tensor.indirection is Indirection.VALUE
            end = LX_BASE + (core + 1) * LX_BYTES if indirect else start + access.span_bytes
            yield ByteRange(operand, start, end - start, core)

    def location(self, operand: int, core: int | None, address_bytes: int) -> DeviceLocation:
        """The place of a byte of an operand, for diagnoses; ``core`` has it in its LX, or wrote it.

        Addresses in a scratchpad count from its start.
        """
        tensor = self.op.tensors[operand]
        if tensor.component is Component.LX and core is not None:
            address_bytes = (address_bytes - LX_BASE) % LX_BYTES
        return DeviceLocation(
            self.op.file,
            self.static,
            core,
            tensor.name,
            address_bytes,
            self.loop_indices,
            self.execute.location,
        )


def steps_of(linked: LinkedProgram) -> Iterator[Step]:
    """All steps of a program in program order."""
    runs = [run for group in linked.runs for run in group]
    which = np.searchsorted(linked.run_rows, linked.dispatch[:, 0], side="right") - 1
    key = np.column_stack((linked.dispatch[:, 1:3], which))
    if not len(key):
        return
    change = np.flatnonzero((np.diff(key, axis=0) != 0).any(axis=1)) + 1
    before = None
    for first, last in pairwise([0, *change.tolist(), len(key)]):
        static, instance, run = (int(v) for v in key[first])
        is_first_part = before != (static, instance)
        yield Step(linked, first, last, static, instance, runs[run], is_first_part)
        before = static, instance


@dataclass(frozen=True, slots=True)
class Window:
    """Memory an operand may touch: ``low`` .. ``high`` of HBM, or of every scratchpad.

    Bytes; in LX they are offsets within the scratchpads of cores ``cores``, end excluded.
    """

    low: int
    high: int
    cores: tuple[int, int] | None = None

    def view(self, memory: DeviceMemory) -> npt.NDArray[np.uint8]:
        """The bytes, writable in place: [bytes], or [core, bytes] of scratchpads."""
        if self.cores is None:
            return memory.view(self.low, self.high - self.low)
        pads = memory.view(LX_BASE, CORES * LX_BYTES).reshape(CORES, LX_BYTES)
        return pads[slice(*self.cores), self.low : self.high]

    def address(self, place: Int64Array) -> Int64Array:
        """Device addresses of flat byte positions of `view`."""
        if self.cores is None:
            return self.low + place
        core, offset = np.divmod(place, self.high - self.low)
        return LX_BASE + (self.cores[0] + core) * LX_BYTES + self.low + offset


def operand_window(step: Step, operand: int) -> Window:
    """What operand ``operand`` may touch on all cores; with an index, its whole allocation."""
    access = step.plan.accesses[operand]
    if access.tensor.component is Component.LX:
        return _pad_window(access, step.starts[operand])
    return Window(*_hbm_extent(step, operand))


def _hbm_extent(step: Step, operand: int) -> tuple[int, int]:
    access, starts = step.plan.accesses[operand], step.starts[operand]
    low, high = touched_bytes(step.op, access, starts)
    if access.tensor.indirection is Indirection.VALUE:
        owners = [
            a for a in step.linked.binding.allocations if a.address_bytes <= low < a.end_bytes
        ]
        high = max([high, *(a.end_bytes for a in owners)])
    return low, high


def _pad_window(access: Access, starts: Int64Array) -> Window:
    """The scratchpads that hold the starts: cells may lie in those of other cores."""
    pads, offsets = np.divmod(starts - LX_BASE, LX_BYTES)
    low, high = int(offsets.min()), int(offsets.max()) + access.span_bytes
    if access.tensor.indirection is Indirection.VALUE:
        high = LX_BYTES
    return Window(low, high, (int(pads.min()), int(pads.max()) + 1))
