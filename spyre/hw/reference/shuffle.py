"""Twin of `shuffle`: every element copied from the core that holds it (SDSC reference §9)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyre.hw.reference.addresses import Int64Array, addresses_elsewhere
from spyre.hw.reference.execution import Execution
from spyre.mlir.operation.operation import Operation


def run_shuffle(execution: Execution) -> None:
    """Copy every element of every core's box of the output from the core that holds it.

    All elements are read before any is written: cores do not wait for each other.
    """
    source, target = execution.op.inputs[0], execution.op.outputs[0]
    boxes = list(computed_boxes(execution.op))
    codes = [
        execution.read_codes(_addresses(execution, 0, core, box), source) for core, box in boxes
    ]
    for (core, box), found in zip(boxes, codes, strict=True):
        addresses = _addresses(execution, execution.output, core, box)
        execution.write_codes(addresses, found, target)


def computed_boxes(op: Operation) -> Iterator[tuple[int, dict[str, Int64Array]]]:
    """Position of every working core, and the global coordinates of what it writes."""
    output = op.outputs[0]
    slices, rows = output.own_slices or op.slices, output.own_core_slices or op.core_slices
    for core, row in enumerate(rows):
        if row:
            extents = [op.extents[dim] // slices.get(dim, 1) for dim in op.dims]
            grid = np.indices(extents, dtype=np.int64)
            first = [row.get(dim, 0) * e for dim, e in zip(op.dims, extents, strict=True)]
            yield core, {d: grid[k] + first[k] for k, d in enumerate(op.dims)}


def _addresses(
    execution: Execution, operand: int, core: int, box: dict[str, Int64Array]
) -> Int64Array:
    return addresses_elsewhere(execution.op, execution.starts, operand, core, box)
