"""Slow reference of the sanitizer's access checks, stick by stick.

Sticks are computed from the address of every element; cores and executions follow one another.
It models the direct accesses of elementwise operations, reductions, matmuls and windows, but not
restickify, which stops at stored extents, indirect accesses, which depend on data, nor shuffles,
which read other cores' scratchpads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from spyre.hw.reference.execution import (
    Coordinates,
    Int64Array,
    element_offsets,
    local_coordinates,
)
from spyre.hw.reference.packed import bits_of, input_coordinates
from spyre.mlir.operation import Component, Operation, Tensor

STICK_BYTES = 128
Range = tuple[int, int]
"""First and last stick that a core touches of a tensor."""


@dataclass
class ShadowReference:
    """Writer (execution, core) of every stick by stick number; for LX sticks the range too.

    ``counts``: sticks per (tensor, code) found so far.
    """

    writers: dict[int, tuple[int, int]] = field(default_factory=dict)
    ranges: dict[int, Range] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    executions: int = 0

    def upload(self, address_bytes: int, size_bytes: int) -> None:
        """Record that the host writes a range."""
        for stick in range(address_bytes // STICK_BYTES, -(-(address_bytes + size_bytes) // 128)):
            self.writers[stick] = (0, -1)
            self.ranges.pop(stick, None)

    def execute(self, op: Operation, starts: Int64Array) -> None:
        """Check one execution; ``starts``: byte addresses, [operand, core]."""
        self.executions += 1
        inputs = len(op.tensors) - len(op.outputs)
        for k in range(inputs):
            for _, sticks in _distinct(op, k, starts, None):
                self._read(op.tensors[k], sticks)
        for k in range(inputs, len(op.tensors)):
            for core, sticks in _distinct(op, k, starts, op.outputs[0]):
                self._meet(op.tensors[k], sticks, core, "SPY711")
                self._write(op.tensors[k], sticks, core)
        for k in range(inputs):
            if op.tensors[k].component is Component.HBM:
                for core, sticks in _distinct(op, k, starts, op.outputs[0]):
                    self._meet(op.tensors[k], sticks, core, "SPY712")

    def _read(self, tensor: Tensor, sticks: list[int]) -> None:
        missing = sum(stick not in self.writers for stick in sticks)
        read = min(sticks), max(sticks)
        torn = sum(_torn(self.ranges.get(stick), read) for stick in sticks)
        self._count(tensor, "SPY710", missing)
        self._count(tensor, "SPY731", torn)

    def _meet(self, tensor: Tensor, sticks: list[int], core: int, code: str) -> None:
        others = (self.writers.get(stick, (0, -1)) for stick in sticks)
        clashes = sum(other[0] == self.executions and other[1] != core for other in others)
        self._count(tensor, code, clashes)

    def _write(self, tensor: Tensor, sticks: list[int], core: int) -> None:
        written = min(sticks), max(sticks)
        for stick in sticks:
            self.writers[stick] = (self.executions, core)
            if tensor.component is Component.LX:
                self.ranges[stick] = written

    def _count(self, tensor: Tensor, code: str, number: int) -> None:
        if number:
            self.counts[tensor.name, code] += number


def _torn(written: Range | None, read: Range) -> bool:
    """True if the written range and the one read overlap in part."""
    if written is None:
        return False
    first, last = read
    contained = first <= written[0] and written[1] <= last
    return not contained and not (written[0] <= first and last <= written[1])


def _distinct(
    op: Operation, operand: int, starts: Int64Array, output: Tensor | None
) -> Iterator[tuple[int, list[int]]]:
    """Yield (core, sticks) per core, equal ones once per slice of ``output`` (None: once)."""
    seen = set()
    for position, offsets in enumerate(distinct_offsets(op, operand)):
        core = position if output is None else _canonical(op, position, output)
        sticks = np.unique((offsets + starts[operand, position]) // STICK_BYTES).tolist()
        key = (tuple(sticks), None if output is None else core)
        if sticks and key not in seen:
            seen.add(key)
            yield core, sticks


def distinct_offsets(op: Operation, operand: int) -> Iterator[Int64Array]:
    """Yield per core the offsets of the elements it touches, in bytes, distinct and ascending."""
    # Only elements under a window differ between cores, because padding cuts windows at the edges.
    windowed = bool(op.windows) and operand == 0
    offsets = np.unique(visited_offsets(op, operand, 0))
    for position in range(len(op.cores)):
        yield np.unique(visited_offsets(op, operand, position)) if windowed else offsets


def visited_offsets(op: Operation, operand: int, position: int) -> Int64Array:
    """Return byte offsets from the core's start of all elements it touches, without padding."""
    local, tensor = local_coordinates(op), op.tensors[operand]
    if operand or not op.windows:
        return _offsets(op, tensor, local).ravel()
    stored, inside = input_coordinates(op, local, position)
    return _offsets(op, tensor, stored)[inside]


def _offsets(op: Operation, tensor: Tensor, local: Coordinates) -> Int64Array:
    """Return byte offsets from the core's start of elements of any size in bits."""
    sticks = element_offsets(op, replace(tensor, word_length_bytes=0), local)
    places = element_offsets(op, replace(tensor, word_length_bytes=1), local) - sticks
    return sticks + places * bits_of(tensor) // 8


def _canonical(op: Operation, position: int, output: Tensor) -> int:
    """Return the first core with the same slices along the dims of the output."""
    output_dims = [dim for dim in op.dims if output.holds(dim)]

    def slice_of(core: int) -> list[int]:
        return [op.core_slices[core].get(dim, 0) for dim in output_dims]

    return next(core for core in range(len(op.cores)) if slice_of(core) == slice_of(position))
