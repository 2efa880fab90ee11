"""What one core touches of one operand: a box of whole sticks, by the address rule.

The rule is that of :mod:`spyre.mlir.footprint` (SDSC reference §5.2), restricted to what the
operation visits: a restickify stops at the stored extents, an indexed dim of a value tensor is left
out, since only the index tensor knows where it leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spyre.hw.nest import Int64Array
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.footprint import (
    RESTICKIFY,
    core_extent,
    footprint,
    indexed_dims,
    stick_elements,
    stored_extent,
)
from spyre.mlir.operation import Component, Indirection, Operation, Tensor


@dataclass(frozen=True, slots=True)
class BoxAxis:
    """``steps`` along ``dim``, ``pitch_bytes`` and ``elements`` apart."""

    dim: str
    steps: int
    pitch_bytes: int
    elements: int


@dataclass(frozen=True, slots=True)
class Box:
    """Sticks relative to a core's start; ``axes`` by falling pitch, those of one step included."""

    axes: tuple[BoxAxis, ...]

    @property
    def sticks(self) -> int:
        """Number of sticks."""
        count = 1
        for axis in self.axes:
            count *= axis.steps
        return count

    @property
    def span_bytes(self) -> int:
        """From the start to the end of the last stick."""
        return STICK_BYTES + sum((axis.steps - 1) * axis.pitch_bytes for axis in self.axes)

    def offsets(self) -> Int64Array:
        """Byte offset of every stick, ascending where pitches nest."""
        total = np.zeros(1, np.int64)
        for axis in self.axes:
            steps = np.arange(axis.steps, dtype=np.int64) * axis.pitch_bytes
            total = (total[:, None] + steps).ravel()
        return total

    def coordinate(self, offset_bytes: int) -> dict[str, int]:
        """Element coordinate per dim, in the core's share, of the stick at ``offset_bytes``."""
        found, rest = {}, offset_bytes
        for axis in self.axes:
            step = min(rest // axis.pitch_bytes, axis.steps - 1)
            rest -= step * axis.pitch_bytes
            found[axis.dim] = step * axis.elements
        return found


def core_boxes(op: Operation, tensor: Tensor) -> tuple[Box | None, ...]:
    """The box of every core, in the order of ``op.cores``; None where a core touches nothing."""
    pitches = footprint(op, tensor).pitch_bytes
    sticks = stick_elements(tensor)
    skipped = indexed_dims(op, tensor)
    dims = [d for d in tensor.dims if tensor.holds(d) and d not in skipped]
    dims = sorted(dict.fromkeys(dims), key=lambda d: -pitches[d])
    shared: dict[tuple[int, ...], Box | None] = {}
    boxes = []
    for position in range(len(op.cores)):
        extents = tuple(_visited(op, tensor, d, position) for d in dims)
        if extents not in shared:
            axes = (
                BoxAxis(d, -(-n // sticks.get(d, 1)), pitches[d], sticks.get(d, 1))
                for d, n in zip(dims, extents, strict=True)
            )
            shared[extents] = Box(tuple(axes)) if all(n > 0 for n in extents) else None
        boxes.append(shared[extents])
    return tuple(boxes)


def _visited(op: Operation, tensor: Tensor, dim: str, position: int) -> int:
    """Elements of ``dim`` the core at ``position`` visits."""
    share = core_extent(op, tensor, dim)
    if op.name != RESTICKIFY:
        return share
    limits = [_stored_from(op, tensor, dim, position)]
    if tensor in op.inputs and dim in tensor.stick_dims:
        limits.append(_stored_from(op, op.outputs[0], dim, position))
    return max(0, min(share, *limits))


def _stored_from(op: Operation, tensor: Tensor, dim: str, position: int) -> int:
    """Stored elements of ``dim`` from the core's slice on."""
    stored = stored_extent(op, tensor, dim, stick_elements(tensor).get(dim, 1))
    if tensor.component is Component.LX or tensor.per_core_in_hbm:
        return stored
    return stored - op.core_slices[position].get(dim, 0) * core_extent(op, tensor, dim)


def is_indirect(tensor: Tensor) -> bool:
    """True if an index tensor moves every access: its sticks are known only while it runs."""
    return tensor.indirection is Indirection.VALUE


def canonical_cores(op: Operation) -> tuple[int, ...]:
    """Per position the first position that counts as the same core for an output.

    Cores that combine partial results of a split reduction, and replicas of a work slice, share
    their slice indices along the dims the output holds.
    """
    output = op.outputs[0]
    held = [d for d in op.dims if op.slices.get(d, 1) > 1 and output.holds(d)]
    first: dict[tuple[int, ...], int] = {}
    return tuple(
        first.setdefault(tuple(slices.get(d, 0) for d in held), position)
        for position, slices in enumerate(op.core_slices)
    )


def global_coordinate(
    op: Operation, tensor: Tensor, box: Box, position: int, offset_bytes: int
) -> tuple[tuple[str, int], ...]:
    """Coordinate in the execute's iteration space of a stick of a core's box, in dim order."""
    local = box.coordinate(offset_bytes)
    slices: Sequence[dict[str, int]] = [dict(s) for s in tensor.own_core_slices or op.core_slices]
    return tuple(
        (dim, local[dim] + slices[position].get(dim, 0) * core_extent(op, tensor, dim))
        for dim in op.dims
        if dim in local
    )
