"""Where an operand leaves the memory a launch was given, for messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spyre.hw.binding import Allocation
from spyre.hw.boxes import core_boxes, global_coordinate
from spyre.hw.nest import Int64Array
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.operation import Operation


def first_outside(
    op: Operation, operand: int, starts: Int64Array, allocations: Sequence[Allocation]
) -> tuple[int, int, str]:
    """Position of the first core that leaves ``allocations``, the address where, and coordinates.

    The first core's start where nothing a core touches by itself is outside.
    """
    tensor = op.tensors[operand]
    for position, box in enumerate(core_boxes(op, tensor)):
        if box is None:
            continue
        offsets = box.offsets()
        at = int(starts[position]) + offsets
        inside = np.zeros(at.shape, np.bool_)
        for a in allocations:
            inside |= (at >= a.address_bytes) & (at + STICK_BYTES <= a.end_bytes)
        if not inside.all():
            offset = int(offsets[np.argmin(inside)])
            found = global_coordinate(op, tensor, box, position, offset)
            place = ", ".join(f"{dim} {value}" for dim, value in found)
            return position, int(starts[position]) + offset, f"; first outside at {place}"
    return 0, int(starts[0]), ""
