"""What the cores touch of an operation's tensors: how far they reach, and where each begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.mlir.footprint import RESTICKIFY
from spyre.mlir.sdsc_builder import OperationSpec
from spyre.torch_backend.program.emission import Division
from spyre.torch_backend.program.iteration import IterationDim


@dataclass(frozen=True, slots=True)
class Share:
    """How the cores share a tensor in LX: the tensor's bytes, and where in it each core's part
    begins.
    """

    size_bytes: int
    begins_bytes: tuple[int, ...]


def reach_bytes(operation: OperationSpec, dims: Sequence[IterationDim], number: int) -> int:
    """Bytes from a tensor's first stick to the end of the last one the operation touches."""
    reach = STICK_BYTES
    for extent, dim in zip(operation.extents.values(), dims, strict=False):
        factor = dim.factors[number]
        steps = dim.extent if operation.name == RESTICKIFY else extent
        if factor.lane:
            steps = -(-extent // _lanes(operation, number))
        reach += (steps - 1) * factor.pitch_bytes
    return reach


def begins_bytes(
    operation: OperationSpec, dims: Sequence[IterationDim], division: Division, number: int
) -> tuple[int, ...]:
    """Bytes from a tensor's start to each core's part of it."""
    names = list(operation.extents)
    rest = np.arange(prod(division.splits.values()), dtype=np.int64)
    begins = np.zeros_like(rest)
    for k in division.order:
        slices, factor = division.splits.get(k, 1), dims[k].factors[number]
        rest, index = np.divmod(rest, slices)
        elements = operation.extents[names[k]] // slices
        lanes = _lanes(operation, number) if factor.lane else 1
        begins += index * (elements // lanes * factor.pitch_bytes)
    return tuple(int(b) for b in begins)


def _lanes(operation: OperationSpec, number: int) -> int:
    """Elements per stick of a tensor, the outputs counted last, an index before them."""
    tensor = [*operation.inputs, *operation.index_inputs, *operation.outputs][number]
    return prod(size for _, size in tensor.stick)
