"""A linked program one execute at a time: its steps, and the memory each operand may touch.

What watches a program from outside (comparisons of number modes) runs dispatches ``first`` ..
``last`` of a step with `Executor.run_part` and looks at memory through `operand_window` before and
after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spyre.hw.access import Access
from spyre.hw.binding import Binding
from spyre.hw.core_plan import CorePlan
from spyre.hw.linked_program import LinkedProgram, instance_starts
from spyre.hw.memory import DeviceMemory
from spyre.hw.nest import Int64Array
from spyre.hw.spec import CORES, LX_BASE, LX_BYTES
from spyre.mlir.operation import Component, Indirection


@dataclass(frozen=True, slots=True)
class Step:
    """One execution of one execute statement.

    ``first``/``last``: its dispatches, end excluded. ``static``: index of the execute statement,
    ``instance``: which of its executions. ``starts``: device addresses in bytes, [operand, core].
    """

    first: int
    last: int
    static: int
    instance: int
    starts: Int64Array
    plan: CorePlan


def steps_of(linked: LinkedProgram) -> Iterator[Step]:
    """All steps of a program in program order."""
    key = linked.dispatch[:, 1:3]
    if not len(key):
        return
    change = np.flatnonzero((np.diff(key, axis=0) != 0).any(axis=1)) + 1
    for first, last in pairwise([0, *change.tolist(), len(key)]):
        static, instance = int(key[first, 0]), int(key[first, 1])
        starts = instance_starts(linked, static, instance)
        yield Step(first, last, static, instance, starts, linked.plans[static][0])


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


def operand_window(step: Step, operand: int, binding: Binding) -> Window:
    """What operand ``operand`` may touch on all cores; with an index, its whole allocation."""
    access, starts = step.plan.accesses[operand], step.starts[operand]
    tensor = access.tensor
    if tensor.component is Component.LX:
        return _pad_window(step, access, starts)
    low, high = int(starts.min()), int(starts.max()) + access.span_bytes
    if tensor.indirection is Indirection.VALUE:
        owners = [a for a in binding.allocations if a.address_bytes <= low < a.end_bytes]
        high = max([high, *(a.end_bytes for a in owners)])
    return Window(low, high)


def _pad_window(step: Step, access: Access, starts: Int64Array) -> Window:
    cores = np.array(step.plan.op.cores, np.int64)
    offsets = starts - LX_BASE - cores * LX_BYTES
    low, high = int(offsets.min()), int(offsets.max()) + access.span_bytes
    if access.tensor.indirection is Indirection.VALUE:
        high = LX_BYTES
    return Window(low, high, (int(cores.min()), int(cores.max()) + 1))
