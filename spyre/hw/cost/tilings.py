"""Loops over tiles of rows around operations of a bundle, estimated from their counts.

Neighbours that have the same rows may run tile by tile. What one of them writes and only later ones
read stays in LX then, if it fits; a product reads its second operand again for every tile. Whether
a compiler can make the loop is not known from counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

import msgspec
from msgspec.structs import replace

from spyre.hw.cost.divisions import CLOSE, divisors
from spyre.hw.cost.machine import MachineSpec
from spyre.hw.cost.models import kernel_ns
from spyre.hw.counters import CostClass, OperationCounts

Operations = Sequence[OperationCounts]
TILED = (CostClass.POINTWISE, CostClass.BROADCAST, CostClass.ROW_REDUCTION, CostClass.MATMUL)
"""Classes of operations that have rows; others mix them."""


class Tiling(msgspec.Struct, frozen=True):
    """``tiles`` of ``rows`` rows around operations ``first`` to ``last``. ``time_ns``: of all
    operations of the bundle.
    """

    first: int
    last: int
    tiles: int
    rows: int
    time_ns: float


def best_tiling(
    operations: Operations, machine: MachineSpec, lx_bytes: int = 0, results: Collection[int] = ()
) -> Tiling | None:
    """The fastest loop around neighbours; None if there is none.

    ``lx_bytes``: highest address of a scratchpad in use; ``results``: first addresses of tensors
    that are read after the bundle.
    """
    found = list[Tiling]()
    capacity = machine.hardware.lx_planner_bytes
    for first, last in _neighbours(operations):
        inside, kept = operations[first : last + 1], _kept(operations, first, last, results)
        runs, total = inside[0].runs, inside[0].rows * inside[0].runs
        in_use = runs * lx_bytes if any(c.lx_bytes for c in inside) else 0
        alive = _alive_bytes(inside, kept)
        if in_use + alive <= capacity * runs:  # tensors that fit and are in HBM have a reason
            kept, alive = {}, 0.0
        for tiles in divisors(total):
            changed = [_tiled(c, tiles, kept) for c in inside]
            if tiles == runs or in_use + alive > capacity * tiles or None in changed:
                continue
            looped = [*operations[:first], *filter(None, changed), *operations[last + 1 :]]
            time_ns = kernel_ns(looped, machine).total_ns
            found.append(Tiling(first, last, tiles, total // tiles, time_ns))
    return min(found, key=lambda tiling: tiling.time_ns, default=None)


def _neighbours(operations: Operations) -> Iterator[tuple[int, int]]:
    """First and last of operations that follow one another and have rows and runs in common."""

    def key(number: int) -> tuple[int, int, int]:
        counts = operations[number]
        is_tiled = counts.cost_class in TILED
        return counts.rows * counts.runs, counts.runs, -1 if is_tiled else number

    for (rows, _, mixed), numbers in groupby(range(len(operations)), key):
        members = list(numbers)
        if mixed < 0 and rows:
            yield members[0], members[-1]


def _kept(
    operations: Operations, first: int, last: int, results: Collection[int]
) -> dict[int, tuple[int, int]]:
    """First address of tensors that only operations ``first`` to ``last`` use and one of them
    makes: numbers, from ``first`` on, of the operation that does and of the last reader.
    """
    kept: dict[int, tuple[int, int]] = {}
    inside = operations[first : last + 1]
    outside = {*results}.union(*(c.reads for c in (*operations[:first], *operations[last + 1 :])))
    for number, counts in enumerate(inside):
        for address in counts.writes.keys() - outside:
            readers = [k for k, c in enumerate(inside) if k > number and address in c.reads]
            divisions = {_division(counts)} | {_division(inside[k], address) for k in readers}
            if readers and len(divisions) == 1:
                kept.setdefault(address, (number, readers[-1]))
    return kept


def _division(counts: OperationCounts, address: int | None = None) -> tuple[int, int]:
    """Cores among which rows and columns of the result, or of an operand, are divided; none for an
    operand that cores of a product share, which their scratchpads cannot have.
    """
    shape = counts.product
    if shape is None:
        return counts.cores // counts.column_cores, counts.column_cores
    rows = shape.batch_cores * shape.m_cores
    if address is None:
        return rows, shape.n_cores
    is_shared = shape.n_cores > 1 or address not in list(counts.reads)[:1]
    return (0, 0) if is_shared else (rows, shape.k_cores)


def _alive_bytes(operations: Operations, kept: dict[int, tuple[int, int]]) -> float:
    """Most bytes of the tensors in one core at once, of all rows."""
    return max(
        sum(operations[a].writes[name] for name, (a, b) in kept.items() if a <= k <= b) / c.cores
        for k, c in enumerate(operations)
    )


def _tiled(counts: OperationCounts, tiles: int, kept: Collection[int]) -> OperationCounts | None:
    """The operation in so many runs; None if a core would have no row of a tile."""
    work, runs, shape = counts.counters, counts.runs, counts.product
    read, written = (
        sum(size for address, size in moved.items() if address in kept)
        for moved in (counts.reads, counts.writes)
    )
    rows, again = counts.rows * runs // tiles, 0
    if shape is not None:
        batches = 1 if shape.shared else shape.batch
        batch = max(1, shape.batch // tiles)
        if batch < shape.batch_cores or rows // batch < shape.m_cores or runs > 1 < batches:
            return None
        second = sum(list(counts.reads.values())[1:2])
        again = int(second * max(1, tiles / batches) / runs) - second
        shape = replace(shape, batch=batch, m=rows // batch)
    elif rows < counts.cores // counts.column_cores:
        return None
    moved = replace(
        work,
        rdmem_bytes=work.rdmem_bytes - read + again,
        wrmem_bytes=work.wrmem_bytes - written,
        lx_read_bytes=work.lx_read_bytes + read,
        lx_written_bytes=work.lx_written_bytes + written,
        executions=tiles,
    )
    return replace(counts, counters=moved, rows=rows, product=shape)


def tiling_text(
    operations: Operations, machine: MachineSpec, lx_bytes: int, results: Collection[int]
) -> str:
    """A line about all operations: their modelled time, and that with a faster loop, if any."""
    time, best = kernel_ns(operations, machine), best_tiling(operations, machine, lx_bytes, results)
    text = f"all operations: modelled {time.total_ns / 1e3:,.4g} us (±{time.spread or 0.0:.0%})"
    if best is None or time.total_ns < (1.0 + CLOSE) * best.time_ns:
        return f"{text}; no loop over tiles of rows is faster by {CLOSE:.0%}"
    return (
        f"{text}; operations {best.first} to {best.last} in tiles of {best.rows:,} rows, "
        f"{best.tiles} of them, would make it {best.time_ns / 1e3:,.4g} us"
    )
