"""Reference for counters of memory interface and ring: every element's address, by definition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from spyre.hw.reference.execution import (
    Int64Array,
    element_offsets,
    local_coordinates,
    slice_origin,
    stored_elements,
)
from spyre.hw.reference.packed import input_coordinates
from spyre.mlir.operation.operation import Component, Operation, Tensor
from tests.hw.harness import literal_starts

RING = 32


def reference_memory_bytes(op: Operation) -> tuple[int, int]:
    """Bytes of the distinct sticks of all elements all cores read and write in HBM, by operand."""
    found = [0, 0]
    for operand, tensor in enumerate(op.tensors):
        if tensor.component is Component.HBM:
            touched = {s for core in range(len(op.cores)) for s in sticks(op, operand, core)}
            found[tensor in op.outputs] += 128 * len(touched)
    return found[0], found[1]


def sticks(op: Operation, operand: int, core: int) -> Iterator[int]:
    """Numbers of the sticks one core touches."""
    tensor = op.tensors[operand]
    local = local_coordinates(op)
    inside = np.ones(local[op.dims[0]].shape, np.bool_)
    if op.windows and operand == 0:
        local, inside = input_coordinates(op, local, core)
    if op.name == "ReStickifyOpHBM":
        inside = stored(op, tensor, core, local)
    addresses = element_offsets(op, tensor, local)[inside] + literal_starts(op)[operand, core]
    yield from np.unique(addresses // 128).tolist()


def stored(op: Operation, tensor: Tensor, core: int, local: dict[str, Int64Array]) -> Int64Array:
    """Where memory has the element, and the other tensor what the stick is needed for."""
    inside = np.ones(local[op.dims[0]].shape, np.bool_)
    origin = slice_origin(op, core)
    for dim in tensor.dims:
        limits = [tensor]
        if tensor in op.inputs and dim in tensor.stick_dims:
            limits.append(op.outputs[0])
        for holder in limits:
            place = local[dim] + (0 if holder.is_local else origin[dim])
            inside &= place < stored_elements(op, holder, dim)
    return inside


def reference_partial_sums(op: Operation) -> tuple[int, int]:
    """Bytes and bytes times links of cores that write to the same place, one chain each."""
    moved = hops = 0
    for operand in range(len(op.tensors) - len(op.outputs), len(op.tensors)):
        groups: dict[int, list[int]] = {}
        for core, start in enumerate(literal_starts(op)[operand].tolist()):
            groups.setdefault(start, []).append(core)
        for members in groups.values():
            size_bytes = 128 * len(list(sticks(op, operand, members[0])))
            moved += (len(members) - 1) * size_bytes
            hops += shortest_chain(sorted(op.cores[m] for m in members)) * size_bytes
    return moved, hops


def shortest_chain(cores: list[int]) -> int:
    """Links of the shortest way from core to core around the ring, over all places to begin."""
    rotations = (cores[k:] + cores[:k] for k in range(len(cores)))
    return min(sum((b - a) % RING for a, b in pairwise(r)) for r in rotations)
