"""Planner of `shuffle`: a copy of bits between the scratchpads of cores (SDSC reference §9).

The linker hands it over in cells, boxes that lie within one core's part on both sides
(:mod:`spyre.hw.plans.normalise`); each cell copies like an identity.
"""

from __future__ import annotations

from collections.abc import Iterator

from spyre.errors import SdscError
from spyre.hw.plans.context import PlanContext
from spyre.hw.plans.copying import plan_copy
from spyre.layout.access_map import Int64Array
from spyre.mlir.operation.operation import Component


def plan_shuffle(context: PlanContext) -> Iterator[Int64Array]:
    """Rows of a shuffle. SdscError SPY261 outside of LX, SPY283, SPY287 for unequal layouts."""
    source, target = context.inputs[0], context.output
    for access in (source, target):
        if access.tensor.component is not Component.LX:
            raise SdscError(
                "SPY261",
                f"{access.tensor.name} of a shuffle is not in LX",
                context.location,
                expected="lx",
                found=access.tensor.component.value,
            )
    if source.is_lane != target.is_lane:
        raise SdscError(
            "SPY287",
            "shuffle: one tensor keeps one value per stick, the other does not",
            context.location,
            expected="equal scales of the stick dim",
        )
    yield from plan_copy(context)
