"""What a launch has in the scratchpads when: accesses and lifetimes, for pictures.

How full a scratchpad is says :mod:`spyre.hw.lx_occupancy`, by the same rule.

Offsets count from the beginning of a core's scratchpad; cores that use different ones are shown
together, from the lowest to the highest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw.nest import Int64Array
from spyre.hw.plan_run import PlanRun
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.mlir.operation import Component


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
    found = list(_found(runs, place_of, execute, instance))
    if not found:
        return LxAccesses(*(np.zeros(0, np.int64) for _ in range(5)))
    return LxAccesses(*np.concatenate(found, axis=1))


def _found(
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
