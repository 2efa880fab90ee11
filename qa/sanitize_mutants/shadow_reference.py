"""The sanitizer's checks of accesses, stick by stick: the slow reference of the checking driver.

Sticks come from the address of every element, cores and executions are taken one after another.
Knows the direct accesses of elementwise operations, reductions, matmuls and windows; restickify
stops at stored extents, indirect accesses depend on data, and shuffles look into other cores'
scratchpads: none of these is modelled here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

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
"""First and last stick of what a core touches of a tensor."""


@dataclass
class ShadowReference:
    """Who wrote every stick: (execution, core) by stick number; LX sticks with their range too.

    ``counts``: sticks per (tensor, code) found so far.
    """

    writers: dict[int, tuple[int, int]] = field(default_factory=dict)
    ranges: dict[int, Range] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    executions: int = 0

    def upload(self, address_bytes: int, size_bytes: int) -> None:
        """The host writes a range."""
        for stick in range(address_bytes // STICK_BYTES, -(-(address_bytes + size_bytes) // 128)):
            self.writers[stick] = (0, -1)
            self.ranges.pop(stick, None)

    def execute(self, op: Operation, starts: Int64Array) -> None:
        """One execution; ``starts``: byte addresses, [operand, core]."""
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
    """(core, sticks) per core; equal ranges once: of all cores, or of those that count as one."""
    seen = set()
    for position, offsets in enumerate(distinct_offsets(op, operand)):
        core = position if output is None else _canonical(op, position, output)
        sticks = np.unique((offsets + starts[operand, position]) // STICK_BYTES).tolist()
        key = (tuple(sticks), None if output is None else core)
        if sticks and key not in seen:
            seen.add(key)
            yield core, sticks


def distinct_offsets(op: Operation, operand: int) -> Iterator[Int64Array]:
    """For every core, bytes from its start to the elements it touches: each once, ascending."""
    # Only what lies under a window differs from core to core: padding cuts it at the edges.
    windowed = bool(op.windows) and operand == 0
    offsets = np.unique(visited_offsets(op, operand, 0))
    for position in range(len(op.cores)):
        yield np.unique(visited_offsets(op, operand, position)) if windowed else offsets


def visited_offsets(op: Operation, operand: int, position: int) -> Int64Array:
    """Bytes from the core's start to every element it touches; padding of windows left out."""
    local, tensor = local_coordinates(op), op.tensors[operand]
    if operand or not op.windows:
        return _offsets(op, tensor, local).ravel()
    stored, inside = input_coordinates(op, local, position)
    return _offsets(op, tensor, stored)[inside]


def _offsets(op: Operation, tensor: Tensor, local: Coordinates) -> Int64Array:
    """Bytes from the core's start to elements of any size."""
    sticks = element_offsets(op, replace(tensor, word_length_bytes=0), local)
    places = element_offsets(op, replace(tensor, word_length_bytes=1), local) - sticks
    return sticks + places * bits_of(tensor) // 8


def _canonical(op: Operation, position: int, output: Tensor) -> int:
    """The first core with the same slices along the dims the output holds."""
    output_dims = [dim for dim in op.dims if output.holds(dim)]

    def slice_of(core: int) -> list[int]:
        return [op.core_slices[core].get(dim, 0) for dim in output_dims]

    return next(core for core in range(len(op.cores)) if slice_of(core) == slice_of(position))
