"""How much of device memory is allocated over modelled time.

What was allocated and freed when is taken from the run: both count from the modelled end of
whatever had ended before on the host. So the curve has the steps of the run in their order, and its
peak is that of the run; how far the host was ahead of the card is the run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw.cost.timeline.task import Timeline
from spyre.hw.nest import Int64Array
from spyre.hw.region_history import RegionHistory
from spyre.runtime.profile.activity import Activity
from spyre.runtime.profile.kernel_model import Float64Array


@dataclass(frozen=True, eq=False)
class HbmOccupancy:
    """``allocated_bytes``: by region, int64 [moments, REGIONS], each row until the next moment.

    ``time_ns``: [moments], ascending from 0; where several are the same, what was there in between.
    """

    time_ns: Float64Array
    allocated_bytes: Int64Array

    @property
    def total_bytes(self) -> Int64Array:
        """All regions together, [moments]."""
        total: Int64Array = self.allocated_bytes.sum(axis=1)
        return total

    @property
    def peak_bytes(self) -> int:
        """Most bytes allocated at once."""
        return int(self.total_bytes.max())

    @property
    def peak_ns(self) -> float:
        """When that is first so."""
        return float(self.time_ns[self.total_bytes.argmax()])

    @property
    def region_peak_bytes(self) -> tuple[int, ...]:
        """Most bytes allocated at once in each region, not all at the same time."""
        return tuple(self.allocated_bytes.max(axis=0).tolist())

    def thinned(self) -> HbmOccupancy:
        """The same with at most two rows of every moment: the fullest and the last."""
        _, moment = np.unique(self.time_ns, return_inverse=True)
        order = np.lexsort((-self.total_bytes, moment))
        fullest = order[np.append(True, np.diff(moment) > 0)]
        last = np.flatnonzero(np.append(np.diff(moment) > 0, True))
        rows = np.union1d(fullest, last)
        return HbmOccupancy(self.time_ns[rows], self.allocated_bytes[rows])


def hbm_occupancy(
    history: RegionHistory,
    activities: Sequence[Activity],
    owners: Sequence[int],
    timeline: Timeline,
) -> HbmOccupancy:
    """What was allocated while ``activities`` ran. ``owners``: activity of every task."""
    ends_ns = np.zeros(len(activities))
    for owner, span in zip(owners, timeline.spans, strict=True):
        ends_ns[owner] = max(ends_ns[owner], span.end_ns)
    clock_ns = np.array([activity.ended_ns for activity in activities], np.int64)
    order = np.argsort(clock_ns, kind="stable")
    modelled_ns = np.maximum.accumulate(np.append(0.0, ends_ns[order]))
    ended = np.searchsorted(clock_ns[order], history.times_ns, side="right")
    time_ns = np.append(0.0, modelled_ns[ended])
    return HbmOccupancy(time_ns, history.allocated_bytes)
