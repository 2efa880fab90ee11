"""Which core holds an element of a tensor that is divided over cores in its own way.

Used by the twin: every element by itself, every core asked. A core that holds the element reads
its own; of several others it is the first (SDSC reference §5.4, §9).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np

from spyre.hw.reference.addresses import Int64Array, element_offsets
from spyre.mlir.operation import Operation, Tensor


def addresses_elsewhere(
    op: Operation, starts: Int64Array, operand: int, core: int, box: Mapping[str, Int64Array]
) -> Int64Array:
    """Byte address, in the memory of the core that holds it, of every global coordinate ``box``.

    ``starts``: [operand, core]; ``core``: position of the core that asks.
    """
    tensor = op.tensors[operand]
    slices, rows = tensor.own_slices or op.slices, tensor.own_core_slices or op.core_slices
    extents = {dim: op.extents[dim] // slices.get(dim, 1) for dim in op.dims}
    shape = next(iter(box.values())).shape
    addresses = np.empty(shape, np.int64)
    for place in product(*map(range, shape)):
        point = {dim: int(coordinate[place]) for dim, coordinate in box.items()}
        owner = _owner(tensor, rows, extents, point, core)
        row = rows[owner]
        local = {dim: np.array([point[dim] - row.get(dim, 0) * extents[dim]]) for dim in op.dims}
        offset = element_offsets(op, tensor, local)
        addresses[place] = int(starts[operand, owner]) + int(offset[0])
    return addresses


def _owner(
    tensor: Tensor,
    rows: tuple[Mapping[str, int], ...],
    extents: Mapping[str, int],
    point: Mapping[str, int],
    core: int,
) -> int:
    """The first core, ``core`` before all others, that holds ``point``."""
    candidates: tuple[int, ...] = (core, *range(len(rows)))
    for candidate in candidates:
        row = rows[candidate]
        if row and all(
            row.get(dim, 0) == point[dim] // extents[dim]
            for dim in tensor.dims
            if tensor.holds(dim)
        ):
            return candidate
    raise LookupError(f"no core holds {dict(point)} of {tensor.name}")
