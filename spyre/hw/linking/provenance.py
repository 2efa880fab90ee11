"""Which allocation each operand's address is computed from, and that it moves with it.

An address is *anchored* to an allocation when it is the allocation's start plus something that
depends on no address: then another start moves it by as much. In a symbolic bundle the expression
of a symbol says so (`%arg_0_base_addr + 2048 * %i`), in a baked one the segment of the address. It
is read from the program, never concluded from where addresses happen to point. Allocations that
overlap, directly or through others, form a *group* that moves together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spyre.hw.linking.binding import AddressProvenance, Allocation, Binding
from spyre.hw.spec import REGION_BITS, REGIONS
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation
from spyre.mlir.program import (
    AllocationAtom,
    Atom,
    Derived,
    Execute,
    IndexValue,
    LinkableProgram,
    ParameterAtom,
    Schedule,
)

AliasStructure = tuple[tuple[int, int], ...]
"""Per allocation: the group, named by its first allocation in the order given, and the bytes from
the group's lowest address."""


def alias_structure(addresses: Sequence[int], sizes: Sequence[int]) -> AliasStructure | None:
    """The structure of allocations at ``addresses`` of ``sizes`` bytes; None when none overlap."""
    end = -1
    for low, size in sorted(zip(addresses, sizes, strict=True)):
        if low < end:
            return _structure(addresses, sizes)
        end = max(end, low + size)
    return None


def _structure(addresses: Sequence[int], sizes: Sequence[int]) -> AliasStructure:
    """Groups in order of address, one allocation after another."""
    structure = [(0, 0)] * len(addresses)
    group: list[int] = []
    end = -1
    for k in sorted(range(len(addresses)), key=lambda k: (addresses[k], sizes[k])):
        if addresses[k] >= end:
            _name(structure, group, addresses)
            group = []
        group.append(k)
        end = max(end, addresses[k] + sizes[k])
    _name(structure, group, addresses)
    return tuple(structure)


def _name(found: list[tuple[int, int]], group: list[int], addresses: Sequence[int]) -> None:
    """Fill in the allocations of ``group``, which are in order of address."""
    for k in group:
        found[k] = (min(group), addresses[k] - addresses[group[0]])


def groups_of(addresses: Sequence[int], sizes: Sequence[int]) -> Int64Array:
    """The group of every allocation, int64 [allocation]."""
    structure = alias_structure(addresses, sizes)
    names = range(len(addresses)) if structure is None else (group for group, _ in structure)
    return np.array(list(names), np.int64)


def alias_rows(addresses: Int64Array, sizes: Int64Array) -> Int64Array:
    """`alias_structure` of many launches at once: int64 [launch, allocation, 2].

    ``addresses``: [launch, allocation]; ``sizes``: [allocation]. Where none overlap, every
    allocation is a group of its own with offset 0.
    """
    if not sizes.size:
        return np.zeros((*addresses.shape, 2), np.int64)
    # as `_structure`, in order of address, for all launches at once
    order = np.lexsort((np.broadcast_to(sizes, addresses.shape), addresses), axis=1)
    lows = np.take_along_axis(addresses, order, 1)
    ends = np.maximum.accumulate(lows + sizes[order], axis=1)
    begins = np.ones(lows.shape, np.bool_)
    begins[:, 1:] = lows[:, 1:] >= ends[:, :-1]
    first = np.maximum.accumulate(np.where(begins, lows, np.iinfo(np.int64).min), axis=1)
    groups, offsets = np.empty_like(order), np.empty_like(lows)
    np.put_along_axis(groups, order, np.cumsum(begins, axis=1), 1)
    np.put_along_axis(offsets, order, lows - first, 1)
    names = (groups[:, :, None] == groups[:, None, :]).argmax(axis=2)
    return np.stack((names, offsets), axis=2)


def equal_runs(*columns: npt.NDArray[np.generic]) -> Iterator[tuple[int, int]]:
    """(first, last) of neighbouring launches that are equal in all ``columns``, [launch, ...]."""
    count = len(columns[0])
    if not count:
        return
    changed = np.zeros(count - 1, np.bool_)
    for column in columns:
        flat = column.reshape(count, -1)
        changed |= (flat[1:] != flat[:-1]).any(axis=1)
    yield from pairwise([0, *(np.flatnonzero(changed) + 1).tolist(), count])


FIXED = -1
"""Anchor of what depends on no allocation: scratchpads, sizes, constants."""
UNKNOWN = -2
"""Anchor of what depends on several allocations, or on one in another way than by its start."""

_SAFE = 1 << 62
"""Symbols below it cannot leave int64 when an allocation moves within HBM."""


def moves_as_a_whole(program: LinkableProgram, schedule: Schedule, binding: Binding) -> bool:
    """True if other allocation starts change nothing but symbols: no loop bound, no overflow."""
    anchors = binding.anchors
    if anchors is None:
        return False
    if any(anchor_of(value, anchors) != FIXED for value in program.control_values):
        return False
    return all(abs(int(v)) < _SAFE for s in schedule.symbols if s.size for v in (s.min(), s.max()))


def anchor_of(value: IndexValue, anchors: AddressProvenance) -> int:
    """The allocation (index) ``value`` moves with, FIXED or UNKNOWN."""
    anchor = FIXED
    for atom, coefficient in value.terms:
        if isinstance(atom, Derived):
            if any(_allocation(inner, anchors) != FIXED for inner in _atoms(atom)):
                return UNKNOWN
            continue
        allocation = _allocation(atom, anchors)
        if allocation == FIXED:
            continue
        # twice a start, or the sum of two, does not move as any one allocation does
        if coefficient != 1 or anchor != FIXED:
            return UNKNOWN
        anchor = allocation
    return anchor


def _allocation(atom: Atom, anchors: AddressProvenance) -> int:
    if isinstance(atom, AllocationAtom):
        return anchors.scratch[atom.index]
    if isinstance(atom, ParameterAtom):
        return anchors.parameters.get(atom.name, FIXED)
    return FIXED


def _atoms(derived: Derived) -> Iterator[Atom]:
    for value in (derived.left, derived.right):
        for atom, _ in value.terms:
            if isinstance(atom, Derived):
                yield from _atoms(atom)
            else:
                yield atom


def operand_anchors(
    op: Operation, execute: Execute, symbols: Int64Array, binding: Binding
) -> Int64Array:
    """Anchor of every operand of ``op``, int64 [instance, operand], the same on all cores.

    ``symbols``: values of the execute's symbols, [instance, symbol]. UNKNOWN throughout where the
    binding names no anchors or a runtime size depends on an address.
    """
    result = np.full((len(symbols), len(op.tensors)), UNKNOWN, np.int64)
    if binding.anchors is None:
        return result
    anchors = np.array([anchor_of(v, binding.anchors) for v in execute.symbols], np.int64)
    column = {symbol: k for k, symbol in enumerate(execute.symbol_ids)}
    if any(anchors[column[size.symbol]] != FIXED for size in op.symbolic_dims.values()):
        return result
    for k, tensor in enumerate(op.tensors):
        columns = [column[s] for s in tensor.starts] if tensor.symbolic else []
        if tensor.component is Component.LX:
            moving = tensor.symbolic and (anchors[columns] != FIXED).any()
            result[:, k] = UNKNOWN if moving else FIXED
        elif binding.segments is None:
            result[:, k] = _same(anchors[columns][None]) if tensor.symbolic else UNKNOWN
        elif not tensor.symbolic:
            result[:, k] = _segments(np.array(tensor.starts, np.int64)[None], binding.anchors)
        elif (anchors[columns] == FIXED).all():
            result[:, k] = _segments(symbols[:, columns], binding.anchors)
    return result


def _segments(addresses: Int64Array, anchors: AddressProvenance) -> Int64Array:
    """Anchors of addresses of the file, [instance, core] → [instance]."""
    of_segment = np.full(REGIONS, UNKNOWN, np.int64)
    for segment, allocation in anchors.segments.items():
        if segment < REGIONS:
            of_segment[segment] = allocation
    return _same(of_segment[np.clip(addresses >> REGION_BITS, 0, REGIONS - 1)])


def _same(anchors: Int64Array) -> Int64Array:
    """[instance, core] → [instance]: the allocation all cores have, else UNKNOWN."""
    first = anchors[:, 0]
    agreed = (anchors == first[:, None]).all(axis=1) & (first != FIXED)
    return np.where(agreed, first, UNKNOWN)


@dataclass(frozen=True)
class AllocationTable:
    """Allocations as arrays: first and end bytes, and ``groups``
    (:mod:`spyre.hw.linking.provenance`).
    """

    lows: Int64Array
    ends: Int64Array
    groups: Int64Array

    @classmethod
    def of(cls, allocations: Sequence[Allocation]) -> AllocationTable:
        """``allocations`` in their order."""
        lows = [a.address_bytes for a in allocations]
        sizes = [a.size_bytes for a in allocations]
        ends = [a.end_bytes for a in allocations]
        groups = groups_of(lows, sizes)
        return cls(np.array(lows, np.int64), np.array(ends, np.int64), groups)

    def confirmed(self, anchors: Int64Array, owners: Int64Array, bases: Int64Array) -> Int64Array:
        """``anchors``, UNKNOWN where an operand lies or begins in other memory than its own.

        ``anchors`` and ``bases`` (start of the first core): [member, operand]. ``owners``: the
        allocation that holds each core's operand, [member, operand, core], -1 for LX. Memory of
        one group moves together.
        """
        if not self.groups.size:
            return anchors
        group = self.groups[np.maximum(anchors, 0)]
        holder = np.maximum(owners, 0)
        in_group = (self.groups[holder] == group[:, :, None]) & (owners >= 0)
        first = holder[:, :, 0]
        begins = (bases >= self.lows[first]) & (bases < self.ends[first])
        good = in_group.all(axis=2) & begins
        settled: Int64Array = np.where((anchors < 0) | good, anchors, UNKNOWN)
        return settled
