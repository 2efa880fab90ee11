"""What each core did, and how evenly the work is spread."""

from __future__ import annotations

from dataclasses import dataclass

from spyre.hw.execute_counters import CORE_COLUMNS, CORE_TRAFFIC
from spyre.hw.nest import Int64Array
from spyre.hw.spec import STICK_BYTES
from spyre.runtime.profile.kernel_model import Float64Array


@dataclass(frozen=True, eq=False)
class CoreBalance:
    """``counts``: of every core, int64 [CORES, len(CORE_COLUMNS)]; ``busy_ns``: how long each core
    works, [CORES]: of every execute, its part of the busiest core's time.
    """

    counts: Int64Array
    busy_ns: Float64Array

    def count(self, column: str) -> Int64Array:
        """A column of ``counts``, [CORES]."""
        found: Int64Array = self.counts[:, CORE_COLUMNS.index(column)]
        return found

    @property
    def sticks(self) -> Int64Array:
        """Sticks every core moves to and from HBM and LX, [CORES]."""
        found: Int64Array = self.counts[:, CORE_TRAFFIC].sum(axis=1) // STICK_BYTES
        return found

    @property
    def by_name(self) -> dict[str, Int64Array]:
        """All counts by name, each [CORES]."""
        return {**{name: self.count(name) for name in CORE_COLUMNS}, "sticks": self.sticks}

    @property
    def imbalance(self) -> float | None:
        """That of the time they work, see `imbalance`."""
        return imbalance(self.busy_ns)


def imbalance(values: Int64Array | Float64Array) -> float | None:
    """The most of any core over the mean of those that have some; 1 is even, None without any."""
    used = values[values > 0]
    return float(used.max() / used.mean()) if len(used) else None
