"""Use of the scratchpads over a launch: accesses, occupancy, lifetimes of contents.

A range of LX is *live* during an execution that touches it, and while a later one will read its
content: from a write to the last read before the next write, or from the beginning for content from
before the launch. Ranges are those of operands, relative to the begin of a core's scratchpad and
merged over the cores, to which planners give the same addresses; if addresses differ, the range is
from the lowest to the highest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spyre.layout import Int64Array


@dataclass(frozen=True, eq=False)
class LxAccesses:
    """Every use of a range of LX by an execution, as arrays over uses.

    ``low``, ``high``: bytes; ``position``: of the execution in the launch; ``statement``: index of
    its statement; ``writes``: 1 if it writes the range.
    """

    low: Int64Array
    high: Int64Array
    position: Int64Array
    statement: Int64Array
    writes: Int64Array

    @property
    def highest(self) -> int:
        """End of the highest range, bytes."""
        return int(self.high.max(initial=0))


NO_ACCESSES = LxAccesses(*(np.zeros(0, np.int64) for _ in range(5)))


@dataclass(frozen=True, eq=False)
class LxLifetimes:
    """Contents of ranges of LX, from the execution that writes them to the last that reads them.

    ``first``, ``last``: positions of executions; ``writer``, ``reader``: indices of their
    statements. Content from before the launch begins at its first use; ``written`` is 0 for it.
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


def live_bytes(accesses: LxAccesses, executions: int) -> Int64Array:
    """Bytes of one scratchpad that are live during each of the executions, int64 [execution]."""
    live = np.zeros(executions, np.int64)
    ranges = np.stack([accesses.low, accesses.high], axis=1)
    distinct, which = np.unique(ranges, axis=0, return_inverse=True)
    which = which.reshape(-1)
    for number, (low, high) in enumerate(distinct.tolist()):
        mine = which == number
        position, writes = accesses.position[mine], accesses.writes[mine] == 1
        written, read = np.unique(position[writes]), np.unique(position[~writes])
        live += (high - low) * is_live(written, read, executions)
    return live


def is_live(written: Int64Array, read: Int64Array, count: int) -> Int64Array:
    """1 for every of ``count`` executions that touches a range or has its next read before it.

    ``written``, ``read``: executions that write and that read it, ascending.
    """
    touched = np.union1d(written, read)
    # a range whose next access is a read is live until then; after its last access it is not
    reads = np.append(np.isin(touched, read), False)
    live: Int64Array = reads[np.searchsorted(touched, np.arange(count), side="right")] * np.int64(1)
    live[touched] = 1
    return live


def lifetimes(accesses: LxAccesses) -> LxLifetimes:
    """Uses of the same range, cut where it is written without being read by the same execution."""
    if not len(accesses.low):
        return LxLifetimes(*(np.zeros(0, np.int64) for _ in range(7)))
    order = np.lexsort((accesses.writes, accesses.position, accesses.high, accesses.low))
    low, high = accesses.low[order], accesses.high[order]
    position, writes = accesses.position[order], accesses.writes[order]
    statement = accesses.statement[order]
    other_range = (np.diff(low) != 0) | (np.diff(high) != 0)
    # of one execution the read sorts first, so its write at the same position cuts nothing
    begins = np.append(True, other_range | ((writes[1:] == 1) & (np.diff(position) != 0)))
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order)) - 1
    return LxLifetimes(
        low[first],
        high[first],
        position[first] * writes[first],
        position[last],
        statement[first],
        statement[last],
        writes[first],
    )
