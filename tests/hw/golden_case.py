"""One case of golden vectors: a described operation, the shapes of its arrays, where they lie."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from spyre.mlir.builder.operations import OperandSpec, OperationSpec
from tests.hw.golden_formats import Array
from tests.hw.golden_places import Packed, Placing


class Case(msgspec.Struct, frozen=True):
    """One shape of one operation.

    ``logical``: extents without stick padding; ``sizes`` where an operand's array has others.
    ``lanes``: elements stored per stick of an operand that keeps one stick per element. ``tags``:
    element arrangement per operand. ``padding``: what stands in an input's memory around its
    elements. ``packings``: of operands whose sticks hold packed elements.
    """

    name: str
    spec: OperationSpec
    logical: Mapping[str, int]
    sizes: Mapping[int, Mapping[str, int]] = msgspec.field(default_factory=dict)
    lanes: Mapping[int, int] = msgspec.field(default_factory=dict)
    tags: tuple[str, ...] = ()
    padding: float = 3.0
    packings: Mapping[int, Packed] = msgspec.field(default_factory=dict)

    @property
    def operands(self) -> tuple[OperandSpec, ...]:
        """In the order of ``Operation.tensors``."""
        return (*self.spec.inputs, *self.spec.index_inputs, *self.spec.outputs)

    def held(self, operand: int) -> tuple[str, ...]:
        """Dims an operand varies along, in the order of the operation: the axes of its array."""
        tensor = self.operands[operand]
        return tuple(d for d in self.spec.extents if tensor.dims.count(d) and holds(tensor, d))

    def size(self, operand: int, dim: str) -> int:
        return self.sizes.get(operand, {}).get(dim, self.logical[dim])

    def shape(self, operand: int) -> tuple[int, ...]:
        """Shape of an operand's array; a last axis for the lanes of one that keeps one stick."""
        sizes = tuple(self.size(operand, dim) for dim in self.held(operand))
        lanes = self.lanes.get(operand, 0)
        return (*sizes, lanes) if lanes else sizes

    @property
    def is_padded(self) -> bool:
        """True if windows reach into padding, or sticks hold more elements than the case has."""
        windowed = any(w.pad_front or w.pad_back for w in self.spec.windows.values())
        return windowed or any(
            self.size(k, dim) % lanes
            for k, tensor in enumerate(self.operands)
            for dim, lanes in tensor.stick
            if holds(tensor, dim)
        )

    def placing(self, operand: int) -> Placing:
        """Return the place of an operand; its memory has the operation's extents or other sizes."""
        tensor = self.operands[operand]
        own = {**tensor.device_dim_sizes, **self.sizes.get(operand, {})}
        return Placing(tensor, {**self.spec.extents, **own}, self.packings.get(operand))

    def bit_addresses(self, operand: int) -> Array:
        """Bit address of every element of an operand's array."""
        placing, held, lanes = self.placing(operand), self.held(operand), self.lanes.get(operand, 0)
        shape = tuple(self.size(operand, dim) for dim in held)
        grid = np.indices(shape, dtype=np.int64)
        found = np.broadcast_to(placing.bit_addresses(dict(zip(held, grid, strict=True))), shape)
        return found[..., None] + np.arange(lanes) * placing.bits if lanes else found

    @property
    def cores(self) -> int:
        return int(np.prod([1, *self.spec.splits.values()]))


def holds(tensor: OperandSpec, dim: str) -> bool:
    return tensor.scale.get(dim, 1) == 1
