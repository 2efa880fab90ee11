"""What several launches move and compute together, with what they need of the scratchpads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spyre.hw.cost.machine import MachineSpec
from spyre.hw.cost.models import KernelTime, Model, kernel_ns
from spyre.hw.counters.counts import OperationCounts
from spyre.hw.counters.execute import operation_counts
from spyre.hw.counters.scratchpad import lx_occupancy
from spyre.hw.linking.linked_program import LinkedProgram


@dataclass(frozen=True, slots=True)
class ProgramCounts:
    """Launches one after another. Frozen; any thread may read it.

    ``lx_high_water_bytes``: end of the highest range of a scratchpad that any of them touches;
    ``lx_peak_bytes``: most bytes alive in one.
    """

    operations: tuple[OperationCounts, ...]
    launches: int
    lx_high_water_bytes: int
    lx_peak_bytes: int

    @property
    def executes(self) -> int:
        """Executions of all statements."""
        return sum(operation.runs for operation in self.operations)

    @property
    def hbm_bytes(self) -> int:
        """Bytes over the memory interface, both directions."""
        return sum(operation.hbm_bytes for operation in self.operations)

    @property
    def cores(self) -> int:
        """Cores of the operation that uses the most."""
        return max((operation.cores for operation in self.operations), default=0)

    def time(self, machine: MachineSpec, model: Model = "calibrated") -> KernelTime:
        """All launches on the card, without what the host adds to each."""
        return kernel_ns(self.operations, machine, model)


def program_counts(launches: Sequence[LinkedProgram]) -> ProgramCounts:
    """Counts of ``launches``; a program that is launched again is counted again."""
    counted = {id(linked): operation_counts(linked) for linked in launches}
    occupied = [lx_occupancy(linked) for linked in {id(e): e for e in launches}.values()]
    return ProgramCounts(
        tuple(operation for linked in launches for operation in counted[id(linked)]),
        len(launches),
        max((found.high_water_bytes for found in occupied), default=0),
        max((found.peak_bytes for found in occupied), default=0),
    )
