"""What the cost model says of a kernel's specs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spyre.hw.cost.kernel_time import kernel_ns
from spyre.hw.cost.machine_file import default_machine
from spyre.torch_backend.inductor.auto_tile.spec_counts import SpecCounts, spec_counts
from spyre.torch_backend.inductor.op_spec import Spec


@dataclass(frozen=True, slots=True)
class Modelled:
    """A launch of a kernel on the card.

    ``time_ns``: without what the host adds. ``hbm_bytes``: read and written, of which
    ``intermediate_bytes`` for what the kernel makes itself. ``lx_bytes``: the end of the highest
    buffer in a scratchpad.
    """

    time_ns: float
    hbm_bytes: int
    intermediate_bytes: int
    lx_bytes: int


def modelled(specs: Sequence[Spec]) -> Modelled:
    """The cost of a launch by the calibrated model of the default machine."""
    found: SpecCounts = spec_counts(specs)
    return Modelled(
        kernel_ns(found.operations, default_machine()).total_ns,
        sum(counts.hbm_bytes for counts in found.operations),
        found.intermediate_bytes,
        found.lx_bytes,
    )
