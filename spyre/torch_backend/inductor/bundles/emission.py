"""From a `KernelOp` to the `OperationSpec` of its SDSC, and errors where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import sympy

from spyre.dtypes import STICK_BYTES
from spyre.errors import UnsupportedError
from spyre.hw.spec import CORES
from spyre.mlir.builder import OperationSpec
from spyre.mlir.operation import RESTICKIFY
from spyre.torch_backend.inductor.bundles.kernel_op import K_ROLE, LX, REDUCED, KernelOp
from spyre.torch_backend.program import (
    Bases,
    CoreDivision,
    IterationDim,
    LoweringError,
    OpKind,
    UnevenDivision,
    emit_over,
)

LoopCounts = tuple[tuple[str, int], ...]
"""(name, count) of the loops around an operation, the outermost first; UNKNOWN_COUNT for counts
that only a launch knows."""
UNKNOWN_COUNT = 1 << 40


@dataclass(frozen=True, slots=True)
class LxShare:
    """How the cores share a tensor in LX: its size, and the start of each core's part in it."""

    size_bytes: int
    begins_bytes: tuple[int, ...]


def emit_op(
    op: KernelOp, loops: LoopCounts, bases: Bases
) -> tuple[OperationSpec, Mapping[int, LxShare]]:
    """The SDSC of ``op`` inside ``loops``, its tensors at ``bases``, and how the cores share its
    tensors in LX, by number.

    UnsupportedError SPY960 for tensors that an SDSC cannot describe, SPY961 for a work division
    that does not fit.
    """
    dims, division = op.iterated.dims, _division(op)
    try:
        operation = emit_over(op.iterated, bases, division)
    except UnevenDivision as error:
        raise not_divisible(op.name, error.finding.found) from error
    except LoweringError as error:
        raise inexpressible(op.name, "its tensors", error.finding.found) from error
    for number in range(len(op.tensors)):
        _check_reach(op, number, _reach_bytes(operation, dims, number), loops)
    shares = {
        number: LxShare(op.buffer_bytes(number), _begins_bytes(operation, dims, division, number))
        for number, tensor in enumerate(op.tensors)
        if tensor.memory == LX
    }
    return operation, shares


def _division(op: KernelOp) -> CoreDivision:
    """The slices of the dims that are walked. Of reduced dims only K of a matmul may be divided."""
    walked = [dim for dim in range(len(op.extents)) if op.is_walked(dim)]
    splits = {k: op.splits[dim] for k, dim in enumerate(walked) if op.splits[dim] > 1}
    summed = {OpKind.REDUCTION: REDUCED, OpKind.MATMUL: K_ROLE}.get(op.kind, -1)
    reduced = [walked[k] for k in splits if op.roles[walked[k]] == summed]
    is_k = op.kind is OpKind.MATMUL and all(op.tensors[0].lane == dim for dim in reduced)
    if len(reduced) > int(is_k) or prod(splits.values()) > CORES:
        slices = dict(zip(op.symbols, op.splits, strict=True))
        raise not_divisible(op.name, f"slices {slices}")
    return CoreDivision(splits, [walked.index(dim) for dim in op.core_order if dim in walked])


def _check_reach(op: KernelOp, number: int, reach: int, loops: LoopCounts) -> None:
    """SPY960 if the whole sticks that an operation touches reach beyond the tensor's buffer."""
    tensor, size_bytes = op.tensors[number], op.buffer_bytes(number)
    moved = [(count, tensor.stride(k)) for k, (_, count) in enumerate(loops) if tensor.stride(k)]
    if not isinstance(size_bytes, int) or any(count == UNKNOWN_COUNT for count, _ in moved):
        return  # no number yet; loops go on within the pitches
    if (rows := op.indirect_dim(number)) >= 0:
        # The walk steps through as many rows as the output has, an index through all of the table.
        reach += (op.rows - op.extents[rows]) * tensor.pitches[rows]
    reach += tensor.offset_bytes + sum((count - 1) * int(stride) for count, stride in moved)
    if reach > size_bytes:
        text = f"{reach} bytes, in whole sticks, of a buffer of {size_bytes}"
        raise inexpressible(op.name, tensor_name(op, number), text, "pad the buffer")


def _reach_bytes(operation: OperationSpec, dims: Sequence[IterationDim], number: int) -> int:
    """Bytes from a tensor's first stick to the end of the last one the operation touches."""
    reach = STICK_BYTES
    for extent, dim in zip(operation.extents.values(), dims, strict=False):
        factor = dim.factors[number]
        steps = dim.extent if operation.name == RESTICKIFY else extent
        if factor.lane:
            steps = -(-extent // _lanes(operation, number))
        reach += (steps - 1) * factor.pitch_bytes
    return reach


def _begins_bytes(
    operation: OperationSpec, dims: Sequence[IterationDim], division: CoreDivision, number: int
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


# --- errors --------------------------------------------------------------------------------------


def tensor_name(op: KernelOp, number: int) -> str:
    """The name of a tensor in messages: its number in the operation, and its memory."""
    tensor = op.tensors[number]
    is_argument = tensor.argument >= 0
    memory = (
        f"argument {tensor.argument}" if is_argument else f"{tensor.memory} {tensor.start_bytes}"
    )
    return f"tensor {number} ({memory})"


def inexpressible(op: str, tensor: str, found: str, hint: str = "") -> UnsupportedError:
    """SPY960 about a tensor of an operation."""
    return UnsupportedError(
        "SPY960",
        f"{op}: pitches cannot say where {tensor} lies",
        expected="sums of symbols, with one symbol along the lanes from the start of a stick",
        found=found,
        hint=hint,
    )


def not_divisible(op: str, found: str) -> UnsupportedError:
    """SPY961 about the work division of an operation."""
    return UnsupportedError(
        "SPY961",
        f"{op}: the cores cannot share it as its iteration space says",
        expected="whole sticks per core, at most one split reduction symbol, and that K of a "
        "matmul; tensors in LX shared by all their operations alike",
        found=found,
    )


def integer(number: Any, role: str) -> int:
    """``number`` as a positive int. UnsupportedError SPY964 for an expression of symbols."""
    if isinstance(number, int) and number > 0:
        return number
    value = sympy.sympify(number)
    if not (value.is_Integer and value > 0):
        raise unknown_number(role, value)
    return int(value)


def unknown_number(role: str, value: Any) -> UnsupportedError:
    """SPY964 about a number that no launch gives."""
    return UnsupportedError(
        "SPY964",
        "a loop count or an extent depends on something that no launch says",
        expected="positive integers; in loop counts and buffers, sizes of the kernel too",
        found=f"{role} of {value}",
    )
