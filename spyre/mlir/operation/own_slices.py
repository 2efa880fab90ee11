"""Tensors whose division over cores differs from the operation's.

``shuffle`` moves a tensor between two divisions of the scratchpads, and an operation may read a
slice from another core's scratchpad; in both cases the tensor lists its work slices. Rules:
SuperDSC reference §5.4, §9 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import msgspec
from msgspec.structs import replace

from spyre.mlir.operation.operation import Component, Operation, Tensor, footprint
from spyre.rules import Fault

SHUFFLE = "shuffle"
Slices = Mapping[str, int]


class TensorDivision(msgspec.Struct, frozen=True):
    """Division of a tensor over cores: slices per dim, and the slice indices of each core.

    ``rows`` has one entry per core of the operation, empty for a core that holds no slice.
    """

    slices: Slices
    rows: tuple[Slices, ...]

    def holds_equally(self, other: TensorDivision, dims: list[str]) -> bool:
        """True if both give every core the same slices of ``dims``."""
        return all(self.slices.get(d, 1) == other.slices.get(d, 1) for d in dims) and all(
            bool(a) == bool(b) and all(a.get(d, 0) == b.get(d, 0) for d in dims)
            for a, b in zip(self.rows, other.rows, strict=True)
        )


def division_of(op: Operation, tensor: Tensor) -> TensorDivision:
    """The tensor's own division, else the operation's."""
    if tensor.own_core_slices:
        return TensorDivision(tensor.own_slices, tensor.own_core_slices)
    return TensorDivision(op.slices, op.core_slices)


def computed_division(op: Operation) -> TensorDivision:
    """How the work is divided: as the output is."""
    return division_of(op, op.outputs[0])


def held_dims(op: Operation, tensor: Tensor) -> list[str]:
    """Dims of ``op`` that the tensor varies along."""
    return [dim for dim in op.dims if tensor.holds(dim)]


def is_looked_up(op: Operation, tensor: Tensor) -> bool:
    """True if some core needs a part of this input that, maybe, another core holds."""
    if tensor in op.outputs:
        return False
    dims = held_dims(op, tensor)
    return not division_of(op, tensor).holds_equally(computed_division(op), dims)


def without_equal_divisions(op: Operation) -> Operation:
    """Return ``op`` without work slices of tensors that equal the operation's division."""
    of_operation = TensorDivision(op.slices, op.core_slices)

    def changed(tensor: Tensor) -> Tensor:
        equal = division_of(op, tensor).holds_equally(of_operation, held_dims(op, tensor))
        return replace(tensor, own_slices={}, own_core_slices=()) if equal else tensor

    return op.with_tensors(changed)


def own_slice_faults(op: Operation) -> Iterator[Fault[Tensor]]:
    """Everything that keeps ``op`` from having a defined result; a fault's place is its tensor."""
    malformed = list(_malformed(op))
    yield from malformed
    if malformed or not op.outputs:
        return
    for tensor in (*op.inputs, *op.index_tensors):
        if is_looked_up(op, tensor):
            yield from _without_source(op, tensor)
            yield from _written_while_read(op, tensor)


def _malformed(op: Operation) -> Iterator[Fault[Tensor]]:
    for tensor in op.tensors:
        for dim, count in tensor.own_slices.items():
            if count < 1 or op.extents.get(dim, count) % count:
                message = f"own slices of {tensor.name} do not divide dim {dim}"
                yield Fault(
                    "SPY261", tensor, message, f"a divisor of {op.extents.get(dim)}", str(count)
                )
        for core, row in zip(op.cores, tensor.own_core_slices, strict=False):
            for dim, index in row.items():
                count = tensor.own_slices.get(dim, 1)
                if not 0 <= index < count:
                    message = f"core {core} has a slice of {tensor.name} out of range"
                    yield Fault(
                        "SPY261", tensor, message, f"{dim} 0 to {count - 1}", f"{dim} {index}"
                    )
    for tensor in op.tensors if op.name == SHUFFLE else ():
        if tensor.component is not Component.LX:
            message = f"{tensor.name} of a shuffle is not in LX"
            yield Fault("SPY261", tensor, message, "lx", tensor.component.value)


def _without_source(op: Operation, tensor: Tensor) -> Iterator[Fault[Tensor]]:
    """Yield a fault if a core needs a slice of the tensor that no core holds."""
    dims = held_dims(op, tensor)
    own, computed = division_of(op, tensor), computed_division(op)
    present = {tuple(row.get(dim, 0) for dim in dims) for row in own.rows if row}
    for core, row in zip(op.cores, computed.rows, strict=True):
        needed = product(*(_overlapping(op, own, computed, dim, row) for dim in dims))
        lacking = next((place for place in needed if place not in present), None)
        if row and lacking is not None:
            slice_ = ", ".join(f"{dim} {i}" for dim, i in zip(dims, lacking, strict=True))
            message = f"core {core} needs a slice of {tensor.name} that no core holds"
            yield Fault(
                "SPY261", tensor, message, "every element with some core", f"slice {slice_}"
            )
            return


def _overlapping(
    op: Operation, own: TensorDivision, computed: TensorDivision, dim: str, row: Slices
) -> range:
    """Slices of ``own`` along ``dim`` that a core's slice of ``computed`` overlaps."""
    share = op.extents[dim] // computed.slices.get(dim, 1)
    size = op.extents[dim] // own.slices.get(dim, 1)
    low = row.get(dim, 0) * share
    return range(low // size, (low + share - 1) // size + 1)


def _written_while_read(op: Operation, tensor: Tensor) -> Iterator[Fault[Tensor]]:
    """Cores do not wait for each other: no core may write where another may still read."""
    if tensor.component is not Component.LX:
        return
    for output in op.outputs:
        if output.component is not Component.LX:
            continue
        spans = [footprint(op, t).span_bytes for t in (tensor, output)]
        for core, read, written in zip(op.cores, tensor.starts, output.starts, strict=True):
            if read < written + spans[1] and written < read + spans[0]:
                message = f"{output.name} overlaps {tensor.name}, which other cores read"
                found = f"bytes {read} and {written} of core {core}"
                yield Fault("SPY261", output, message, "disjoint ranges of LX", found)
                return
