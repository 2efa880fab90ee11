"""How long a kernel takes on a card, by one of two models.

`ideal` is what the hardware's parameters allow, `calibrated` what cards were measured to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from spyre.hw.cost.calibrated import calibrated
from spyre.hw.cost.ideal import ideal
from spyre.hw.cost.machine import MachineSpec
from spyre.hw.cost.operation_counts import OperationCounts
from spyre.hw.cost.times import KernelTime

Model = Literal["ideal", "calibrated"]
MODELS: Mapping[Model, Callable[[Sequence[OperationCounts], MachineSpec], KernelTime]] = {
    "ideal": ideal,
    "calibrated": calibrated,
}


def kernel_ns(
    operations: Sequence[OperationCounts], machine: MachineSpec, model: Model = "calibrated"
) -> KernelTime:
    """Time of one launch of a kernel on the card, without what the host adds to a launch.

    ``operations``: in program order, a record per execute statement. Of no operations it is 0.
    """
    return MODELS[model](operations, machine)
