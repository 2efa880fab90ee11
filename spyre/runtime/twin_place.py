"""Which core and which point of the iteration space a byte of an output belongs to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spyre.hw.reference.execution import Execution
from spyre.hw.spec import STICK_BYTES
from spyre.layout import arrangement_positions


@dataclass(frozen=True, slots=True)
class OutputPoint:
    """``coordinate``: (dim, index in the whole tensor) of the dims the output holds; empty where
    the place depends on data. ``core`` None: no core's share has the byte.
    """

    core: int | None
    coordinate: tuple[tuple[str, int], ...] = ()


def place_of(execution: Execution, address_bytes: int, core: int | None = None) -> OutputPoint:
    """The point whose element lies at ``address_bytes``; its stick counts where no element does.

    Of several cores the first. ``core``: the only one that can be meant (in LX).
    """
    for exact in (True, False):
        for position in execution.cores:
            if core is not None and execution.op.cores[position] != core:
                continue
            point = _point_of(execution, position, address_bytes, exact)
            if point is not None:
                return point
    return OutputPoint(core)


def _point_of(execution: Execution, position: int, address: int, exact: bool) -> OutputPoint | None:
    addresses = execution.addresses(execution.output, position)
    if exact:
        hits = np.flatnonzero(addresses == address)
    else:
        hits = np.flatnonzero(addresses // STICK_BYTES == address // STICK_BYTES)
    if not hits.size:
        return None
    op, output = execution.op, execution.op.outputs[0]
    coordinate = {
        dim: int(execution.global_coordinate(dim, position).ravel()[hits[0]])
        for dim in op.dims
        if output.holds(dim)
    }
    _undo_arrangement(execution, coordinate)
    return OutputPoint(op.cores[position], tuple(coordinate.items()))


def _undo_arrangement(execution: Execution, coordinate: dict[str, int]) -> None:
    """From the place in memory back to the column that lies there (operations reference §6)."""
    tag = execution.arrangement(execution.output)
    dim = execution.op.outputs[0].stick_dims[0]
    if tag == "STANDARD" or dim not in coordinate:
        return
    positions = np.asarray(arrangement_positions(tag))
    group, place = divmod(coordinate[dim], len(positions))
    coordinate[dim] = group * len(positions) + int(np.flatnonzero(positions == place)[0])


def describe_coordinate(point: OutputPoint) -> str:
    """`` at mb 5, out 70``; nothing where it is not known."""
    if not point.coordinate:
        return ""
    return " at " + ", ".join(f"{dim} {index}" for dim, index in point.coordinate)
