"""Finds accesses of a program outside its arguments, independently of the sanitizer.

An address belongs to the argument whose move changes it. Elements are visited one at a time by the
reference's address rule, without plans, boxes or shadow memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from qa.sanitize_mutants.shadow_reference import visited_offsets as windowed_offsets
from spyre.hw.reference.execution import (
    element_offsets,
    local_coordinates,
    slice_origin,
    stored_elements,
)
from spyre.mlir.bundle import Bundle
from spyre.mlir.operation.operation import Component, Indirection, Operation, Tensor
from spyre.mlir.program.program import Execute
from spyre.runtime.kernel.kernel import Kernel, Launch, bind

LX_BYTES = 2 << 20
MOVE = 1 << 20


@dataclass(frozen=True)
class Outside:
    """An access of an execute's tensor at ``address``, outside the argument it belongs to."""

    execute: int
    tensor: str
    address: int

    def __str__(self) -> str:
        return f"execute {self.execute} {self.tensor} at {self.address:#x}"


def find_outside(bundle: Bundle, kernel: Kernel, launch: Launch) -> Iterator[Outside]:
    """Yield every operand of every execute that leaves its argument, pool or scratchpad."""
    ranges = _ranges(launch)
    program, signature = bundle.program, kernel.signature_of(launch)
    memory = launch.addresses, launch.names, kernel.reserve_scratch(), kernel.maps
    binding, _ = bind(program.parameters, signature, *memory)
    values = program.schedule(binding.parameters, binding.scratch_addresses).symbols
    moved = {
        name: program.schedule(
            {**binding.parameters, name: value + MOVE}, binding.scratch_addresses
        ).symbols
        for name, value in binding.parameters.items()
    }
    for execute in program.executes:
        op = bundle.operations[execute.sdsc_filename]
        k = execute.index
        for tensor in op.tensors:
            if tensor.indirection is Indirection.VALUE or not len(values[k]):
                continue
            owners = _owners(execute, tensor, values[k], {n: m[k] for n, m in moved.items()})
            yield from _leaving(op, execute, tensor, owners, ranges, values[k], binding.segments)


def _ranges(launch: Launch) -> dict[str, tuple[int, int]]:
    found = {
        f"arg_{k}_base_addr": (t.address_bytes, t.address_bytes + t.size_bytes)
        for k, t in launch.arguments.items()
    }
    if launch.pool is not None:
        low = launch.pool.address_bytes
        found["pool_base_addr"] = (low, low + launch.pool.size_bytes)
    return found


def _owners(
    execute: Execute, tensor: Tensor, values: np.ndarray, moved: Mapping[str, np.ndarray]
) -> list[str | None]:
    """Return for each core the parameter whose move changes the start address, if it is one."""
    if not tensor.symbolic:
        return [None] * len(tensor.starts)
    column = {symbol: k for k, symbol in enumerate(execute.symbol_ids)}
    owners: list[str | None] = []
    for symbol in tensor.starts:
        at = column[symbol]
        names = [n for n, m in moved.items() if (m[:, at] != values[:, at]).any()]
        owners.append(names[0] if len(names) == 1 else None)
    return owners


def _leaving(
    op: Operation,
    execute: Execute,
    tensor: Tensor,
    owners: list[str | None],
    ranges: Mapping[str, tuple[int, int]],
    values: np.ndarray,
    segments: Mapping[int, int] | None,
) -> Iterator[Outside]:
    column = {symbol: k for k, symbol in enumerate(execute.symbol_ids)}
    for position, start in enumerate(tensor.starts):
        offsets = visited_offsets(op, tensor, position)
        if not offsets.size:
            continue
        if tensor.symbolic:
            starts, span = values[:, column[start]], ranges.get(owners[position] or "")
        elif tensor.component is Component.LX:
            starts, span = np.array([start]), (0, LX_BYTES)
        else:
            base = (segments or {}).get(start >> 34)
            starts = np.array([(base or 0) + start % (1 << 34)])
            span = next((r for r in ranges.values() if r[0] == base), None)
        if span is None:
            continue
        for first in starts.tolist():
            low, high = first + int(offsets.min()), first + int(offsets.max())
            if low < span[0] or high + tensor.word_length_bytes > span[1]:
                bad = low if low < span[0] else high
                yield Outside(execute.index, tensor.name, bad)
                return


def visited_offsets(op: Operation, tensor: Tensor, position: int) -> np.ndarray:
    """Return offsets of the elements a core visits; a restickify stops at the stored extents."""
    if op.windows:
        return windowed_offsets(op, op.tensors.index(tensor), position)
    local = local_coordinates(op)
    offsets = element_offsets(op, tensor, local)
    if op.name != "ReStickifyOpHBM":
        return offsets
    inside = np.ones(offsets.shape, np.bool_)
    origin = slice_origin(op, position)
    for dim in tensor.dims:
        if not tensor.holds(dim):
            continue
        limits = [(tensor, stored_elements(op, tensor, dim))]
        if tensor in op.inputs and dim in tensor.stick_dims:
            limits.append((op.outputs[0], stored_elements(op, op.outputs[0], dim)))
        for holder, limit in limits:
            shift = 0 if holder.is_local else origin[dim]
            inside &= local[dim] + shift < limit
    found: np.ndarray = offsets[inside]
    return found
