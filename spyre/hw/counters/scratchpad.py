"""What a launch has in the scratchpads when: how full they are, accesses and lifetimes.

A range of LX is *live* during an execute that touches it, and while a later one will read what it
holds: from being written to the last read before it is written again, from the beginning for what
was there before. Ranges are those operands touch, counted from where a core's scratchpad begins
and taken together over the cores, which planners give the same addresses; cores that use
different ones are shown together, from the lowest to the highest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw.linking.linked_program import LinkedProgram, PlanRun
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.layout.access_map import Int64Array
from spyre.mlir.operation.operation import Component

LxRange = tuple[int, int]
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
    writes, reads = _executes_by_range(linked)
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


def _executes_by_range(
    linked: LinkedProgram,
) -> tuple[dict[LxRange, list[Int64Array]], dict[LxRange, list[Int64Array]]]:
    """Dynamic executes that write and that read each range."""
    writes: dict[LxRange, list[Int64Array]] = {}
    reads: dict[LxRange, list[Int64Array]] = {}
    for static, runs in enumerate(linked.runs):
        places = np.flatnonzero(linked.schedule.order == static)
        order = np.empty(len(places), np.int64)
        order[linked.schedule.instance[places]] = places
        for run in runs:
            for found, is_output in _touched_ranges(run):
                kind = writes if is_output else reads
                kind.setdefault(found, []).append(order[run.instances])
    return writes, reads


def _touched_ranges(run: PlanRun) -> Iterator[tuple[LxRange, bool]]:
    """The ranges of LX that one execution touches, and if it writes them."""
    plan = run.plan
    for operand, access in enumerate(plan.accesses):
        if access.tensor.component is Component.LX:
            starts = (run.bases[0, operand] + run.pattern[operand] - LX_BASE) % LX_BYTES
            found = int(starts.min()), int(starts.max()) + access.span_bytes
            yield found, access.tensor in plan.op.outputs


def _sorted(parts: list[Int64Array]) -> Int64Array:
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class LxAccesses:
    """Every use of a range of LX by an execution, as arrays over uses.

    ``low``, ``high``: bytes; ``position``: of the execution in the launch; ``execute``: place of
    its statement; ``writes``: 1 if it writes the range.
    """

    low: Int64Array
    high: Int64Array
    position: Int64Array
    execute: Int64Array
    writes: Int64Array

    @property
    def highest(self) -> int:
        """End of the highest range, bytes."""
        return int(self.high.max(initial=0))


@dataclass(frozen=True, eq=False)
class LxLifetimes:
    """Contents of ranges of LX, from the execution that writes them to the last that reads them.

    ``first``, ``last``: positions of executions; ``writer``, ``reader``: places of their
    statements. What was there before the launch begins at its first use; ``written`` is 0 for it.
    """

    low: Int64Array
    high: Int64Array
    first: Int64Array
    last: Int64Array
    writer: Int64Array
    reader: Int64Array
    written: Int64Array

    def __len__(self) -> int:
        return len(self.low)


def lx_accesses(
    runs: Sequence[Sequence[PlanRun]],
    place_of: Int64Array,
    execute: Int64Array,
    instance: Int64Array,
) -> LxAccesses:
    """Accesses of a launch. ``place_of``: by number of a statement; ``execute``, ``instance``: of
    its executions in order.
    """
    found = list(_accesses_of_statements(runs, place_of, execute, instance))
    if not found:
        return LxAccesses(*(np.zeros(0, np.int64) for _ in range(5)))
    return LxAccesses(*np.concatenate(found, axis=1))


def _accesses_of_statements(
    runs: Sequence[Sequence[PlanRun]],
    place_of: Int64Array,
    execute: Int64Array,
    instance: Int64Array,
) -> Iterator[Int64Array]:
    for static, group in enumerate(runs):
        if not group:
            continue
        mine = np.flatnonzero(execute == place_of[static])
        position = np.zeros(int(instance[mine].max()) + 1, np.int64)
        position[instance[mine]] = mine
        for run in group:
            for operand, access in enumerate(run.plan.accesses):
                if access.tensor.component is not Component.LX:
                    continue
                starts = (run.starts(operand) - LX_BASE) % LX_BYTES
                low, high = starts.min(axis=1), starts.max(axis=1) + access.span_bytes
                place = np.full(len(low), place_of[static])
                writes = np.full(len(low), int(access.tensor in run.plan.op.outputs))
                yield np.stack([low, high, position[run.instances], place, writes])


def lifetimes(accesses: LxAccesses) -> LxLifetimes:
    """Uses of the same range, cut where it is written without being read by the same execution."""
    order = np.lexsort((accesses.writes, accesses.position, accesses.high, accesses.low))
    low, high = accesses.low[order], accesses.high[order]
    position, writes = accesses.position[order], accesses.writes[order]
    execute = accesses.execute[order]
    if not len(order):
        return LxLifetimes(*(np.zeros(0, np.int64) for _ in range(7)))
    other = (np.diff(low) != 0) | (np.diff(high) != 0)
    begins = np.append(True, other | ((writes[1:] == 1) & (np.diff(position) != 0)))
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order)) - 1
    return LxLifetimes(
        low[first],
        high[first],
        position[first] * writes[first],
        position[last],
        execute[first],
        execute[last],
        writes[first],
    )
