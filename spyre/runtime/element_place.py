"""Where elements of an execute's output lie: who writes an address, and which element it is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from spyre.hw.access import Access
from spyre.hw.boxes import core_boxes, covers, global_coordinate
from spyre.hw.nest import Int64Array
from spyre.hw.spec import STICK_BYTES
from spyre.hw.steps import Step
from spyre.mlir.operation import Indirection, Operation

_PIECE = 1 << 16
"""Sticks whose cores are looked up at once."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where an element lies: core, loop indices, coordinates per dim, device address in bytes.

    Addresses of scratchpads are those of the simulator's memory, from LX_BASE on.
    """

    core: int
    tile: tuple[int, ...]
    coordinates: dict[str, int]
    address_bytes: int


def output_elements(op: Operation, access: Access) -> int:
    """Stored elements of an output that an execute writes, over all cores."""
    held = [d for d in op.dims if access.tensor.holds(d)]
    return prod(op.extents[d] for d in held) * (access.lanes if access.is_lane else 1)


def writers(step: Step, operand: int, addresses: Int64Array) -> Int64Array:
    """Position of the first core that writes each address (bytes, ascending); -1: none does.

    Where an index moves the output, addresses depend on data, and it is the first core for all.
    """
    access, starts = step.plan.accesses[operand], step.starts[operand]
    if not addresses.size:
        return np.zeros(0, np.int64)
    if access.tensor.indirection is Indirection.VALUE:
        return np.zeros(addresses.size, np.int64)
    sticks = addresses // STICK_BYTES
    new = np.concatenate([[True], sticks[1:] != sticks[:-1]])
    which, heads = np.cumsum(new) - 1, addresses[new]
    owner = np.empty(heads.size, np.int64)
    for at in range(0, heads.size, _PIECE):
        offsets = heads[at : at + _PIECE, None] - starts[None, :]
        inside = covers(step.plan.op, access.tensor, offsets)
        owner[at : at + _PIECE] = np.where(inside.any(axis=1), inside.argmax(axis=1), -1)
    found: Int64Array = owner[which]
    return found


def spot_of(step: Step, operand: int, address: int, core: int, tile: tuple[int, ...]) -> Spot:
    """The element of an operand at a device address; ``core``: position of the core it is for."""
    op, access = step.plan.op, step.plan.accesses[operand]
    tensor, offset = access.tensor, address - int(step.starts[operand][core])
    box = core_boxes(op, tensor)[core]
    assert box is not None
    found = dict(global_coordinate(op, tensor, box, core, offset))
    if access.stick_dim in found:
        found[access.stick_dim] += offset % STICK_BYTES // tensor.word_length_bytes
    coordinates = {d: found[d] for d in tensor.dims if d in found}
    return Spot(op.cores[core], tile, coordinates, address)
