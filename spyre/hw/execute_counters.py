"""What one execute statement moved and computed in a launch, over all its executions and per core.

Adds to :func:`~spyre.hw.counters.count_plan` what depends on where the cores' shares lie: sticks
that several cores read at once cross the memory interface once; partial sums of cores that share
a reduction, and what a core reads of another one's scratchpad, go over the ring. Our readings:
partial sums go from core to core in the order of their numbers, in the format of the result, and
whoever has the last writes; other traffic takes the shorter way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from operator import add

import numpy as np

from spyre.hw.access import Access, per_core
from spyre.hw.boxes import core_boxes
from spyre.hw.core_order import shares
from spyre.hw.counters import Counters, count_plan, sticks_per_core
from spyre.hw.nest import Int64Array
from spyre.hw.plan_run import PlanRun
from spyre.hw.spec import CORES, LX_BASE, LX_BYTES, STICK_BYTES
from spyre.mlir.footprint import RESTICKIFY
from spyre.mlir.operation import Component, Indirection

CORE_COLUMNS = (
    "hbm_read_bytes",
    "hbm_written_bytes",
    "lx_read_bytes",
    "lx_written_bytes",
    "ring_bytes",
    "multiply_adds",
    "element_operations",
)
"""Columns of :func:`count_cores`."""
CORE_TRAFFIC = slice(CORE_COLUMNS.index("ring_bytes"))
"""Columns of bytes a core moves to and from HBM and LX, in sticks."""
CORE_WORK = slice(CORE_COLUMNS.index("multiply_adds"), len(CORE_COLUMNS))
"""Columns of what a core computes."""
Share = tuple[int, ...]
"""What tells the shares of two cores apart: where they begin, and what leads on from there."""


def count_execute(runs: Sequence[PlanRun]) -> Counters:
    """The work of an execute statement: all its executions, all their parts."""
    found = Counters()
    for together, times in _parts_together(runs):
        plain = reduce(add, (count_plan(run.plan) for run in together))
        read, written = memory_bytes(together)
        moved, hops = (sum(column) for column in zip(*map(_ring, together), strict=True))
        one = replace(
            plain,
            rdmem_bytes=read,
            wrmem_bytes=written,
            ring_bytes=moved,
            ring_byte_hops=hops,
            executions=1,
        )
        found += one.times(times)
    return found


def _parts_together(runs: Sequence[PlanRun]) -> Iterator[tuple[list[PlanRun], int]]:
    """Runs that are the parts of the same executions, and how many these are."""
    if len(runs) == 1:
        yield [runs[0]], len(runs[0].instances)
        return
    if not runs:  # in a loop that this launch does not enter
        return
    instances = np.unique(np.concatenate([run.instances for run in runs]))
    member = np.stack([np.isin(instances, run.instances) for run in runs])
    kinds, counts = np.unique(member, axis=1, return_counts=True)
    for kind, count in zip(kinds.T, counts.tolist(), strict=True):
        yield [run for run, used in zip(runs, kind, strict=True) if used], count


# --- memory interface -------------------------------------------------------------------------


def memory_bytes(runs: Sequence[PlanRun]) -> tuple[int, int]:
    """Bytes read and written in HBM by one execution, a stick once per operand.

    ``runs``: the parts of the execution.
    """
    found = [0, 0]
    for place, tensor in enumerate(runs[0].plan.op.tensors):
        if tensor.component is Component.HBM:
            is_output = tensor in runs[0].plan.op.outputs
            found[is_output] += operand_sticks(runs, place) * STICK_BYTES
    return found[0], found[1]


def operand_sticks(runs: Sequence[PlanRun], operand: int) -> int:
    """Sticks of an operand in HBM that one execution touches, each once; ``runs``: its parts."""
    sticks = {share: count for run in runs for share, count in _shares(run, operand)}
    if not any(_overlaps(run, operand) for run in runs):
        return sum(sticks.values())
    return len(np.unique(np.concatenate([_stick_numbers(run, operand) for run in runs])))


def _shares(run: PlanRun, operand: int) -> Iterator[tuple[Share, int]]:
    """Where the cores' shares of an operand begin, and how many sticks they have."""
    op, access = run.plan.op, run.plan.accesses[operand]
    if access.tensor.indirection is Indirection.VALUE:
        yield from _indexed_shares(run, operand)
        return
    starts = run.bases[0, operand] + run.pattern[operand]
    if op.name == RESTICKIFY:
        boxes = core_boxes(op, access.tensor)
        for start, box in zip(starts.tolist(), boxes, strict=True):
            yield (start,), 0 if box is None else box.sticks
        return
    count = sticks_per_core(op, access)
    for start in set(starts.tolist()):
        yield (start,), count


def _indexed_shares(run: PlanRun, operand: int) -> Iterator[tuple[Share, int]]:
    """Cores read the same of a value tensor if their indices and starts are the same."""
    op = run.plan.op
    dims = [dim for dim in op.dims if any(t.holds(dim) for t in op.index_tensors)]
    count = sticks_per_core(op, run.plan.accesses[operand])
    starts = (run.bases[0, operand] + run.pattern[operand]).tolist()
    for start, slices in zip(starts, op.core_slices, strict=True):
        yield (start, *(slices.get(dim, 0) for dim in dims)), count


def _overlaps(run: PlanRun, operand: int) -> bool:
    """True if shares that begin apart may have sticks in common: these are counted one by one."""
    op, tensor = run.plan.op, run.plan.op.tensors[operand]
    if tensor.indirection is Indirection.VALUE:
        return False
    windowed = any(op.window_of(tensor, dim) is not None for dim in tensor.dims)
    return windowed or tensor in op.index_tensors


def _stick_numbers(run: PlanRun, operand: int) -> Int64Array:
    starts = (run.bases[0, operand] + run.pattern[operand]).tolist()
    boxes = core_boxes(run.plan.op, run.plan.op.tensors[operand])
    distinct = {(start, id(box)): box for start, box in zip(starts, boxes, strict=True)}
    found = [
        (start + box.offsets()) // STICK_BYTES
        for (start, _), box in distinct.items()
        if box is not None
    ]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


# --- ring -------------------------------------------------------------------------------------


def _ring(run: PlanRun) -> tuple[int, int]:
    """Bytes, and bytes times links, of one execution."""
    sums, elsewhere = _partial_sums(run), _other_scratchpads(run)
    return sums[0] + elsewhere[0], sums[1] + elsewhere[1]


def _partial_sums(run: PlanRun) -> tuple[int, int]:
    groups = _reducing(run)
    if not groups:
        return 0, 0
    size_bytes = _sum_bytes(run)
    transfers = sum(len(cores) - 1 for cores in groups)
    hops = sum(map(chain_hops, groups))
    return size_bytes * transfers, size_bytes * hops


def _reducing(run: PlanRun) -> list[Int64Array]:
    """Cores that share a reduction, group by group."""
    cores = np.array(run.plan.op.cores)
    return [cores[positions] for positions in shares(run.plan.op) if len(positions) > 1]


def _sum_bytes(run: PlanRun) -> int:
    """What a core hands on of partial sums."""
    return sum(_share_bytes(run, access) for access in _outputs(run))


def _outputs(run: PlanRun) -> list[Access]:
    return [a for a in run.plan.accesses if a.tensor in run.plan.op.outputs]


def _share_bytes(run: PlanRun, access: Access) -> int:
    return sticks_per_core(run.plan.op, access) * STICK_BYTES


def chain_hops(cores: Int64Array) -> int:
    """Links a chain through all of ``cores`` passes, begun behind the widest gap of the ring."""
    gaps = _gaps(cores)
    return int(gaps.sum() - gaps.max())


def chain_end(cores: Int64Array) -> int:
    """The last core of that chain, which writes the sum."""
    return int(np.sort(cores)[_gaps(cores).argmax()])


def _gaps(cores: Int64Array) -> Int64Array:
    """Links from each core, in order of their numbers, to the next one around the ring."""
    around = np.sort(cores)
    gaps: Int64Array = np.diff(around, append=around[0] + CORES)
    return gaps


def _other_scratchpads(run: PlanRun) -> tuple[int, int]:
    """Shares of operands that lie in the scratchpad of another core than the one that works."""
    moved = hops = 0
    cores = np.array(run.plan.op.cores)
    for operand, access in _in_scratchpads(run):
        way = np.abs(_owners(run, operand) - cores)
        size_bytes = _share_bytes(run, access)
        moved += size_bytes * int(np.count_nonzero(way))
        hops += size_bytes * int(np.minimum(way, CORES - way).sum())
    return moved, hops


def _in_scratchpads(run: PlanRun) -> Iterator[tuple[int, Access]]:
    for operand, access in enumerate(run.plan.accesses):
        if access.tensor.component is Component.LX:
            yield operand, access


def _owners(run: PlanRun, operand: int) -> Int64Array:
    """Cores in whose scratchpads the shares of an operand lie."""
    starts = run.bases[0, operand] + run.pattern[operand] - LX_BASE
    owners: Int64Array = starts // LX_BYTES
    return owners


def _sent_bytes(run: PlanRun) -> Int64Array:
    """Bytes that leave each core for another one in one execution, [CORES].

    Of what lies in another core's scratchpad that one sends what is read, the working core what is
    written.
    """
    found = np.zeros(CORES, np.int64)
    cores = np.array(run.plan.op.cores)
    for group in _reducing(run):
        found[group[group != chain_end(group)]] += _sum_bytes(run)
    for operand, access in _in_scratchpads(run):
        owners = _owners(run, operand)
        senders = cores if access.tensor in run.plan.op.outputs else owners
        np.add.at(found, senders[owners != cores], _share_bytes(run, access))
    return found


# --- cores ------------------------------------------------------------------------------------


def count_cores(runs: Sequence[PlanRun]) -> Int64Array:
    """Work of every core in all executions, int64 [CORES, len(CORE_COLUMNS)].

    Bytes add up to those of :func:`count_execute`, those over the ring counted where they are sent.
    Points do not where cores do the same work: it counts there once, here for each of them.
    """
    found = np.zeros((CORES, len(CORE_COLUMNS)), np.int64)
    for run in runs:
        op = run.plan.op
        counted = count_plan(run.plan)
        points = prod(per_core(op, dim) for dim in op.dims)
        row = np.zeros(len(CORE_COLUMNS), np.int64)
        row[CORE_TRAFFIC] = np.array(counted.values[:4], np.int64) // len(op.cores)
        row[CORE_WORK] = (points, 0) if counted.multiply_adds else (0, points)
        np.add.at(found, np.array(op.cores), row * len(run.instances))
        found[:, CORE_COLUMNS.index("ring_bytes")] += _sent_bytes(run) * len(run.instances)
    return found
