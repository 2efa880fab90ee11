"""Traces the address of every operand to the memory it is computed from, with the offset.

An address *belongs* to a memory if it is the memory's start plus a value that depends on no
address: another start then moves the address by as much. In a symbolic bundle the expression of a
symbol decides it (`%arg_0_base_addr + 2048 * %i`), in a baked one the segment of the address. The
program is analysed for it; the memory at an address is never considered.

The linker asks `operand_owners` for the allocation that each operand moves with, the sanitizer for
the one it must not leave. `trace` gives the offsets too, without linking: arguments are derived
from them, launches are tiled, and the addresses of a program are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Generic, TypeVar

import msgspec
import numpy as np

from spyre.hw.counters import UNLABELLED, ExecuteLabels
from spyre.hw.linking.binding import FIXED, UNKNOWN, AddressOwners
from spyre.hw.linking.checks import check_bound
from spyre.hw.plans import check_slices
from spyre.hw.spec import REGION_BITS, REGION_BYTES, REGIONS
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation, Tensor, group_by_sizes, with_sizes
from spyre.mlir.program import Derived, Execute, IndexValue, LinkableProgram, Schedule

T = TypeVar("T")


# --- owners of values and operands ------------------------------------------------------------


def value_owner(value: IndexValue, owners: AddressOwners[int]) -> int:
    """Number of the memory that ``value`` belongs to, FIXED or UNKNOWN."""
    owner = FIXED
    for atom, coefficient in value.terms:
        found = FIXED
        if isinstance(atom, Derived):
            sides = (atom.left, atom.right)
            found = FIXED if all(value_owner(s, owners) == FIXED for s in sides) else UNKNOWN
        elif atom.source == "allocation":
            found = owners.scratch[atom.index] if owners.scratch else UNKNOWN
        elif atom.source != "loop":
            found = owners.parameters.get(atom.name, FIXED)
        if found == FIXED:
            continue
        # Twice a start, or the sum of two, does not move as any one memory does.
        if coefficient != 1 or owner != FIXED:
            return UNKNOWN
        owner = found
    return owner


def operand_owners(
    op: Operation, execute: Execute, symbols: Int64Array, owners: AddressOwners[int]
) -> list[Int64Array]:
    """Owner of the start address of every operand, each [1 or instance, 1 or core].

    ``symbols``: values of the execute's symbols, [instance, symbol]; in a baked bundle they decide
    the segment. FIXED in scratchpads. UNKNOWN throughout where a runtime size depends on an
    address.
    """
    known = np.array([value_owner(value, owners) for value in execute.symbols], np.int64)
    column = {symbol: k for k, symbol in enumerate(execute.symbol_ids)}
    if any(known[column[size.symbol]] != FIXED for size in op.symbolic_dims.values()):
        return [np.full((1, 1), UNKNOWN)] * len(op.tensors)
    result = []
    for tensor in op.tensors:
        columns = [column[symbol] for symbol in tensor.starts] if tensor.symbolic else []
        if (known[columns] != FIXED).any():
            local = tensor.component is Component.LX
            result.append(np.full((1, 1), UNKNOWN) if local else known[columns][None])
        elif tensor.component is Component.LX:
            result.append(np.full((1, 1), FIXED))
        else:
            starts = symbols[:, columns] if tensor.symbolic else np.array([tensor.starts], np.int64)
            result.append(_segment_owners(starts, owners))
    return result


def _segment_owners(addresses: Int64Array, owners: AddressOwners[int]) -> Int64Array:
    """Owners of addresses of a baked bundle, by segment; UNKNOWN where it has none."""
    of_segment = np.full(REGIONS, UNKNOWN, np.int64)
    for segment, owner in owners.segments.items():
        if segment < REGIONS:
            of_segment[segment] = owner
    found: Int64Array = of_segment[np.clip(addresses >> REGION_BITS, 0, REGIONS - 1)]
    return found


def common_owner(owners: Int64Array) -> Int64Array:
    """[1 or instance, 1 or core] → [1 or instance]: the owner of all cores, else UNKNOWN."""
    first = owners[:, 0]
    return np.where((owners == first[:, None]).all(axis=1), first, UNKNOWN)


def core_owners(owners: Int64Array, cores: int) -> list[int]:
    """[1 or instance, 1 or core] → per core the owner in all instances, else UNKNOWN."""
    same = np.where((owners == owners[:1]).all(axis=0), owners[0], UNKNOWN)
    numbers: list[int] = np.broadcast_to(same, cores).tolist()
    return numbers


# --- tracing a program ------------------------------------------------------------------------


class Walk(msgspec.Struct, Generic[T], frozen=True, eq=False, dict=True):
    """One operand over all executions of an execute statement.

    ``op``: the operation, each runtime size as large as any execution has it. ``owners``: per core
    the memory its addresses belong to, None in LX and where that is not one memory. ``offsets``:
    from the owner's first byte (in LX: the scratchpad's) to where each core starts, bytes,
    [execution, core].
    """

    execute: Execute
    op: Operation
    operand: int
    owners: tuple[T | None, ...]
    offsets: Int64Array

    @property
    def tensor(self) -> Tensor:
        """The operand as the operation has it."""
        return self.op.tensors[self.operand]

    @property
    def is_output(self) -> bool:
        """True if the operation writes it."""
        return self.operand >= len(self.op.tensors) - len(self.op.outputs)

    @cached_property
    def owner(self) -> T | None:
        """The memory of all cores; None where they have none, or different ones."""
        first = self.owners[0]
        return first if all(owner is first for owner in self.owners) else None

    @property
    def memory(self) -> T:
        """`owner` of a walk that has one."""
        assert self.owner is not None
        return self.owner

    @cached_property
    def tile_starts(self) -> Int64Array:
        """Lowest offset of any core, [execution]."""
        starts: Int64Array = self.offsets.min(axis=1)
        return starts


class TracedExecute(msgspec.Struct, Generic[T], frozen=True, eq=False, dict=True):
    """An execute statement that runs at least once, with a walk per operand.

    ``loops``: induction variables, [execution, depth]. ``label``: how reports number and name it.
    """

    execute: Execute
    op: Operation
    loops: Int64Array
    walks: tuple[Walk[T], ...]
    label: ExecuteLabels = UNLABELLED

    @property
    def number(self) -> int:
        """Its number in reports."""
        return self.label.first_execute + self.execute.index

    @property
    def sdsc(self) -> str:
        """Its SDSC file in reports."""
        return self.label.sdsc(self.execute.sdsc_filename)

    @cached_property
    def owned(self) -> tuple[Walk[T], ...]:
        """The walks whose cores all address one known memory."""
        return tuple(walk for walk in self.walks if walk.owner is not None)


def trace(
    program: LinkableProgram,
    operations: Mapping[str, Operation],
    owners: AddressOwners[T],
    values: Mapping[str, int],
    label: ExecuteLabels = UNLABELLED,
) -> Iterator[TracedExecute[T]]:
    """Every execute statement that runs, in textual order.

    ``operations``: by SDSC file. ``values``: of the parameters that ``owners`` does not name.
    LaunchError SPY372 for a runtime size out of its range, and as of the program's schedule.
    """
    # With every memory at address 0 an address that belongs to it is the offset in it.
    starts = {**values, **dict.fromkeys(owners.parameters, 0)}
    schedule = program.schedule(starts, [0] * len(program.allocations))
    memories: list[T | None] = [
        *owners.parameters.values(),
        *owners.segments.values(),
        *owners.scratch,
    ]
    numbers = iter(range(len(memories)))
    numbered = AddressOwners(
        {name: next(numbers) for name in owners.parameters},
        {segment: next(numbers) for segment in owners.segments},
        tuple(numbers),
    )
    memories += [None] * -UNKNOWN  # FIXED and UNKNOWN count from the end
    for execute in program.executes:
        if len(schedule.symbols[execute.index]):
            op = operations[execute.sdsc_filename]
            yield _traced(op, execute, schedule, numbered, memories, label)


def _traced(
    op: Operation,
    execute: Execute,
    schedule: Schedule,
    owners: AddressOwners[int],
    memories: list[T | None],
    label: ExecuteLabels,
) -> TracedExecute[T]:
    symbols = schedule.symbols[execute.index]
    check_bound(op, execute)
    check_slices(op)
    numbers = operand_owners(op, execute, symbols, owners)
    op = _with_largest_sizes(op, execute, symbols)
    column = {symbol: k for k, symbol in enumerate(execute.symbol_ids)}
    loops = schedule.loop_indices[execute.index]
    walks = []
    for operand, (tensor, owner) in enumerate(zip(op.tensors, numbers, strict=True)):
        if tensor.symbolic:
            starts = symbols[:, [column[symbol] for symbol in tensor.starts]]
        else:
            starts = np.array([tensor.starts], np.int64)
        shape = np.broadcast_shapes((len(symbols), len(op.cores)), starts.shape)
        if tensor.component is not Component.LX and owners.segments:
            starts = starts & (REGION_BYTES - 1)
        per_core = tuple(memories[number] for number in core_owners(owner, shape[1]))
        walks.append(Walk(execute, op, operand, per_core, np.broadcast_to(starts, shape)))
    return TracedExecute(execute, op, loops, tuple(walks), label)


def _with_largest_sizes(op: Operation, execute: Execute, symbols: Int64Array) -> Operation:
    largest: dict[str, int] = {}
    for sizes, _ in group_by_sizes(op, execute.symbol_ids, symbols):
        largest = {dim: max(size, largest.get(dim, 0)) for dim, size in sizes.items()}
    return with_sizes(op, largest)
