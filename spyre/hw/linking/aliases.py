"""Allocations that overlap: which of them form a group, and which group owns an operand.

Allocations that overlap, directly or through others, form a *group* that moves together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spyre.hw.linking.binding import Allocation
from spyre.hw.linking.trace import UNKNOWN
from spyre.layout import Int64Array

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

    ``addresses``: [launch, allocation]; ``sizes``: [allocation]. Without overlaps every allocation
    is one group with offset 0.
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


@dataclass(frozen=True)
class AllocationTable:
    """Allocations as arrays: first and end bytes, and the number of each one's group."""

    lows: Int64Array
    ends: Int64Array
    groups: Int64Array

    @classmethod
    def of(cls, allocations: Sequence[Allocation]) -> AllocationTable:
        lows = [a.address_bytes for a in allocations]
        sizes = [a.size_bytes for a in allocations]
        ends = [a.end_bytes for a in allocations]
        groups = groups_of(lows, sizes)
        return cls(np.array(lows, np.int64), np.array(ends, np.int64), groups)

    def confirmed(self, owners: Int64Array, holders: Int64Array, bases: Int64Array) -> Int64Array:
        """``owners``, UNKNOWN where an operand is or begins in the memory of another group.

        ``owners``, ``bases`` (start of the first core): [member, operand]. ``holders``: the
        allocation that contains each core's operand, [member, operand, core], -1 for LX.
        """
        if not self.groups.size:
            return owners
        group = self.groups[np.maximum(owners, 0)]
        holder = np.maximum(holders, 0)
        in_group = (self.groups[holder] == group[:, :, None]) & (holders >= 0)
        first = holder[:, :, 0]
        begins = (bases >= self.lows[first]) & (bases < self.ends[first])
        good = in_group.all(axis=2) & begins
        settled: Int64Array = np.where((owners < 0) | good, owners, UNKNOWN)
        return settled
