"""How full the scratchpads are while a linked program runs, execute by execute.

A range of LX is *live* during an execute that touches it, and while a later one will read what it
holds: from being written to the last read before it is written again, from the beginning for what
was there before. Ranges are those operands touch, counted from where a core's scratchpad begins
and taken together over the cores, which planners give the same addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spyre.hw.linked_program import LinkedProgram
from spyre.hw.nest import Int64Array
from spyre.hw.plan_run import PlanRun
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.mlir.operation import Component

Range = tuple[int, int]
"""First byte and end, from the beginning of a scratchpad."""


@dataclass(frozen=True, slots=True)
class LxOccupancy:
    """``live_bytes``: of one scratchpad, int64 [dynamic execute]. Any thread may read it.

    ``high_water_bytes``: end of the highest range any execute touches.
    """

    live_bytes: Int64Array
    high_water_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive during one execute."""
        return int(self.live_bytes.max(initial=0))


def lx_occupancy(linked: LinkedProgram) -> LxOccupancy:
    """Occupancy over the dynamic executes of a launch, in program order."""
    count = len(linked.schedule)
    writes, reads = _uses(linked)
    live = np.zeros(count, np.int64)
    for low, high in writes.keys() | reads.keys():
        written = _sorted(writes.get((low, high), []))
        read = _sorted(reads.get((low, high), []))
        live += (high - low) * is_live(written, read, count)
    highest = max((high for _, high in (*writes, *reads)), default=0)
    return LxOccupancy(live, highest)


def is_live(written: Int64Array, read: Int64Array, count: int) -> Int64Array:
    """1 for every of ``count`` executes that touches a range or has the next read of it before it.

    ``written``, ``read``: executes that write and that read it, ascending.
    """
    touched = np.union1d(written, read)
    reads = np.append(np.isin(touched, read), False)
    live: Int64Array = reads[np.searchsorted(touched, np.arange(count), side="right")] * np.int64(1)
    live[touched] = 1
    return live


def _uses(
    linked: LinkedProgram,
) -> tuple[dict[Range, list[Int64Array]], dict[Range, list[Int64Array]]]:
    """Dynamic executes that write and that read each range."""
    writes: dict[Range, list[Int64Array]] = {}
    reads: dict[Range, list[Int64Array]] = {}
    for static, runs in enumerate(linked.runs):
        places = np.flatnonzero(linked.schedule.order == static)
        order = np.empty(len(places), np.int64)
        order[linked.schedule.instance[places]] = places
        for run in runs:
            for found, is_output in _ranges(run):
                kind = writes if is_output else reads
                kind.setdefault(found, []).append(order[run.instances])
    return writes, reads


def _ranges(run: PlanRun) -> Iterator[tuple[Range, bool]]:
    """The ranges of LX that one execution touches, and if it writes them."""
    plan = run.plan
    for operand, access in enumerate(plan.accesses):
        if access.tensor.component is Component.LX:
            starts = (run.bases[0, operand] + run.pattern[operand] - LX_BASE) % LX_BYTES
            found = int(starts.min()), int(starts.max()) + access.span_bytes
            yield found, access.tensor in plan.op.outputs


def _sorted(parts: list[Int64Array]) -> Int64Array:
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)
