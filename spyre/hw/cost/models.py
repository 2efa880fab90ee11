"""The modelled time of a kernel on a card, by one of two models: :func:`kernel_ns`.

*Ideal* is the limit of the hardware's parameters (hardware reference §3.5 A): for each operation,
the units of the busiest core and the memory interface, which all cores share, are either overlapped
(the slowest counts) or serial (they add up).

*Calibrated* uses published terms of measured kernels (hardware reference §3.3, §3.5 B). The memory
time of an operation has a rate by its class. A product adds its pt time, partly hidden behind
memory, and the cost of its division. SFU, LX and ring have the times of the ideal model and overlap
with memory. Two terms are properties of the whole kernel: the turnaround between reading and
writing, because the operations of a loop alternate, and the cost of short runs of a loop. That is
the larger of the published cost of low tiles and the measured cost of beginning runs, since one
contains the other.

Operations run one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from math import exp, log2, pow, sqrt
from operator import attrgetter
from typing import Literal

from spyre.dtypes import FORMATS
from spyre.hw.cost.machine import Calibration, Hardware, MachineSpec
from spyre.hw.counters import CostClass, OperationCounts, ProductShape


class Bound(StrEnum):
    """What an operation or a kernel waits for most."""

    MEMORY = "memory"
    PT = "pt"
    SFU = "sfu"
    LX = "lx"
    RING = "ring"
    RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Terms:
    """Nanoseconds by term; their sum is the time.

    ``memory``: HBM traffic without the next three. ``turnaround``: changes between reading and
    writing. ``tile``: row tiles of an unfavourable height. ``spill``: accumulators of a product
    that do not fit the arrays. ``split``: cost of a product's division beyond its traffic. ``pt``,
    ``sfu``, ``lx``, ``ring``: units of the busiest core. ``runs``: beginning the runs of a loop.
    ``overlap``: the overlapping time of these terms, zero or negative.
    """

    memory: float = 0.0
    turnaround: float = 0.0
    tile: float = 0.0
    spill: float = 0.0
    split: float = 0.0
    pt: float = 0.0
    sfu: float = 0.0
    lx: float = 0.0
    ring: float = 0.0
    runs: float = 0.0
    overlap: float = 0.0

    def __add__(self, other: Terms) -> Terms:
        return Terms(*(a + b for a, b in zip(self.values, other.values, strict=True)))

    @property
    def values(self) -> tuple[float, ...]:
        """All terms in field order."""
        values: tuple[float, ...] = _VALUES(self)
        return values

    @property
    def total(self) -> float:
        """The time."""
        return sum(self.values)

    @property
    def bound(self) -> Bound:
        """The largest of memory (with turnaround, tile and spill), units, ring and runs; ties: the
        first."""
        by_bound = {
            Bound.MEMORY: self.memory + self.turnaround + self.tile + self.spill,
            Bound.PT: self.pt + self.split,
            Bound.SFU: self.sfu,
            Bound.LX: self.lx,
            Bound.RING: self.ring,
            Bound.RUNS: self.runs,
        }
        return max(by_bound, key=lambda bound: by_bound[bound])


_VALUES = attrgetter(*(field.name for field in fields(Terms)))


@dataclass(frozen=True, slots=True)
class OperationTime:
    """Time of one operation, all its runs, nanoseconds."""

    name: str
    terms: Terms

    @property
    def total_ns(self) -> float:
        """All runs of one launch."""
        return self.terms.total

    @property
    def bound(self) -> Bound:
        """What it waits for most."""
        return self.terms.bound


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Time of a kernel: its operations one after another."""

    model: str
    operations: tuple[OperationTime, ...]

    @property
    def terms(self) -> Terms:
        """Terms of all operations together."""
        return sum((operation.terms for operation in self.operations), Terms())

    @property
    def total_ns(self) -> float:
        """One launch on the card, nanoseconds."""
        return sum(operation.total_ns for operation in self.operations)

    @property
    def bound(self) -> Bound:
        """What the kernel waits for most."""
        return self.terms.bound


UnitOverlap = Literal["overlapped", "serial"]


def ideal(
    operations: Sequence[OperationCounts], machine: MachineSpec, overlap: UnitOverlap = "overlapped"
) -> KernelTime:
    """Time of one launch by the hardware's parameters."""
    times = (_ideal_time(counts, machine.hardware, overlap) for counts in operations)
    return KernelTime("ideal", tuple(times))


def _ideal_time(counts: OperationCounts, hw: Hardware, overlap: UnitOverlap) -> OperationTime:
    units = Terms(
        memory=counts.hbm_bytes / hw.hbm_peak_gbps,
        pt=ideal_pt_ns(counts, hw),
        sfu=sfu_ns(counts, hw),
        lx=counts.lx_bytes * counts.busiest / lx_gbps(hw),
        ring=ring_ns(counts, hw),
    )
    if overlap == "serial":
        return OperationTime(counts.name, units)
    # Negative: what all units but the slowest would add.
    hidden = max(units.values) - units.total
    return OperationTime(counts.name, units + Terms(overlap=hidden))


def ideal_pt_ns(counts: OperationCounts, hw: Hardware) -> float:
    """The busiest core's pt array at its peak, nanoseconds."""
    per_ns = hw.pt_macs_per_cycle * hw.clock_ghz * hw.format_speed(counts.mac_format)
    return counts.counters.multiply_adds * counts.busiest / per_ns


def sfu_ns(counts: OperationCounts, hw: Hardware) -> float:
    """The busiest core's vector units, nanoseconds; functions like exp count several times."""
    weight = hw.transcendental_cycles if counts.transcendental else 1.0
    per_ns = hw.corelets * hw.sfu_lanes * hw.clock_ghz
    return counts.counters.element_operations * weight * counts.busiest / per_ns


def lx_gbps(hw: Hardware) -> float:
    """Bytes per nanosecond between one core and its scratchpad, both directions together."""
    return hw.corelets * hw.lx_bytes_per_cycle * hw.clock_ghz


def ring_ns(counts: OperationCounts, hw: Hardware) -> float:
    """The ring: bytes times links over all links, and the latency of one way, nanoseconds."""
    if not counts.counters.ring_bytes:
        return 0.0
    links = counts.cores * hw.ring_directions
    per_ns = hw.ring_bytes_per_cycle * hw.clock_ghz * links
    hops = counts.counters.ring_byte_hops / counts.counters.ring_bytes
    return counts.counters.ring_byte_hops / per_ns + hops * hw.ring_hop_cycles / hw.clock_ghz


TURNING = (CostClass.POINTWISE, CostClass.ROW_REDUCTION, CostClass.MATMUL)
"""Classes whose rate is that of one direction; the rates of the others hold for both together."""


def calibrated(operations: Sequence[OperationCounts], machine: MachineSpec) -> KernelTime:
    """Time of one launch by the measured terms."""
    cal = machine.calibration
    reduces = any(c.cost_class is CostClass.ROW_REDUCTION and c.through_lx for c in operations)
    turnaround = turnaround_ns(operations, cal)
    traffic = [_traffic_terms(c, cal, turnaround, reduces) for c in operations]
    # the cost of low tiles contains a part of that of beginning runs, which does not count twice
    begun = sum(runs_ns(counts, cal) for counts in operations)
    low = sum(low_ns for _, low_ns in traffic)
    part = max(begun - low, 0.0) / begun if begun else 0.0
    times = (
        OperationTime(c.name, _calibrated_terms(c, terms, machine, part))
        for c, (terms, _) in zip(operations, traffic, strict=True)
    )
    return KernelTime("calibrated", tuple(times))


def _traffic_terms(
    counts: OperationCounts, cal: Calibration, turnaround: float, reduces_rows: bool
) -> tuple[Terms, float]:
    """Memory, turnaround and tile of an operation, and the part of tile due to low row tiles."""
    memory = memory_ns(counts, cal)
    turning = turnaround * counts.hbm_bytes if counts.cost_class in TURNING else 0.0
    high = high_tile_factor(counts, cal) if reduces_rows else 1.0
    plain = memory + turning
    high_ns, low_ns = plain * (high - 1.0), plain * high * (low_tile_factor(counts, cal) - 1.0)
    return Terms(memory=memory, turnaround=turning, tile=high_ns + low_ns), low_ns


def _calibrated_terms(
    counts: OperationCounts, traffic: Terms, machine: MachineSpec, runs_part: float
) -> Terms:
    cal, hw = machine.calibration, machine.hardware
    pt, spill, split, sums = product_ns(counts, cal)
    sfu, lx = sfu_ns(counts, hw), counts.lx_bytes * counts.busiest / lx_gbps(hw)
    waiting = traffic.memory + traffic.turnaround + traffic.tile + spill
    # SFU and LX run beside memory: only what exceeds it shows. The pt array hides a measured part
    # of itself behind whatever is slowest (hardware reference §3.5 B).
    slowest = max(waiting, sfu, lx)
    return replace(
        traffic,
        spill=spill,
        split=split,
        pt=pt,
        sfu=sfu,
        lx=lx,
        ring=sums or ring_ns(counts, hw),
        runs=runs_ns(counts, cal) * runs_part,
        overlap=slowest - waiting - sfu - lx - cal.hidden_ratio * min(pt, slowest),
    )


def turnaround_ns(operations: Sequence[OperationCounts], cal: Calibration) -> float:
    """Nanoseconds per byte that a kernel's traffic waits for turning between directions.

    The smaller of the bytes read and written counts; less where operands are constants.
    """
    turning = [c for c in operations if c.cost_class in TURNING]
    read = sum(c.counters.rdmem_bytes for c in turning)
    written = sum(c.counters.wrmem_bytes for c in turning)
    if not min(read, written):
        return 0.0
    scaled = sum(
        c.hbm_bytes * (cal.scalar_turnaround if c.scalar_operand else 1.0) for c in turning
    )
    # Every byte of the smaller direction costs a turn; the cost is spread over all traffic, so
    # that operations of a kernel have their parts.
    per_byte = cal.turnaround_ns_per_byte * min(read, written) / (read + written)
    return per_byte * scaled / (read + written)


def memory_ns(counts: OperationCounts, cal: Calibration) -> float:
    """Return the time of HBM traffic at the rate of the operation's class; re-reads are cheaper."""
    if not counts.hbm_bytes:
        return 0.0
    size_bytes = counts.hbm_bytes - (1.0 - cal.reread_ratio) * counts.hbm_reread_bytes
    return size_bytes / RATES[counts.cost_class](counts, cal)


def _share(counts: OperationCounts, cal: Calibration) -> float:
    """Return the part of the card's bandwidth that the cores can use, interpolated linearly."""
    before = cal.core_share[0]
    for point in cal.core_share:
        if counts.cores <= point[0]:
            width = point[0] - before[0]
            part = (counts.cores - before[0]) / width if width else 1.0
            return before[1] + part * (point[1] - before[1])
        before = point
    return before[1]


def row_reduction_gbps(counts: OperationCounts, cal: Calibration) -> float:
    """Rate of a reduction over the stick dim: falls with the rows of one run."""
    fall = exp(-counts.rows / cal.row_reduction_decay_rows)
    rate = cal.row_reduction_floor_gbps + cal.row_reduction_extra_gbps * fall
    return min(cal.stream_gbps, rate) * _share(counts, cal)


def concatenation_gbps(counts: OperationCounts, cal: Calibration) -> float:
    """Rate of copies into parts of a larger tensor: falls with its sticks per row and its rows."""
    rate = (
        cal.concatenation_gbps
        - cal.concatenation_per_column_doubling_gbps * log2(max(counts.columns / 64, 1))
        - cal.concatenation_per_row_doubling_gbps * log2(max(counts.rows, 1))
    )
    return max(rate, cal.concatenation_floor_gbps)


RATES: Mapping[CostClass, Callable[[OperationCounts, Calibration], float]] = {
    CostClass.POINTWISE: lambda counts, cal: cal.stream_gbps * _share(counts, cal),
    CostClass.BROADCAST: lambda counts, cal: cal.broadcast_gbps * _share(counts, cal),
    CostClass.ROW_REDUCTION: row_reduction_gbps,
    CostClass.COLUMN_REDUCTION: lambda counts, cal: cal.column_reduction_gbps * _share(counts, cal),
    CostClass.TRANSPOSE: lambda counts, cal: cal.transpose_gbps * _share(counts, cal),
    CostClass.CONCATENATION: concatenation_gbps,
    CostClass.MATMUL: lambda counts, cal: cal.stream_gbps,
}
"""Bytes per nanosecond of an operation's HBM traffic."""


def runs_ns(counts: OperationCounts, cal: Calibration) -> float:
    """Beginning the runs of a loop behind the first, all of them."""
    return cal.run_ns * (counts.runs - 1)


def high_tile_factor(counts: OperationCounts, cal: Calibration) -> float:
    """What a high row tile in a loop does to memory time, where rows are reduced through LX."""
    if not _is_tiled(counts):
        return 1.0
    return 1.0 + cal.tile_height_ratio * log2(max(counts.core_rows / cal.tile_height, 1.0))


def low_tile_factor(counts: OperationCounts, cal: Calibration) -> float:
    """What a very low row tile in a loop does to memory time: narrow rows are worse."""
    if not _is_tiled(counts):
        return 1.0
    # As published: a curve over height and width of a tile (hardware reference §3.5 B).
    wide = max(counts.columns, 1) / cal.low_tile_columns
    low = sqrt(counts.core_rows / cal.low_tile_height) * pow(wide, cal.low_tile_column_power)
    return 1.0 / min(1.0, low)


def _is_tiled(counts: OperationCounts) -> bool:
    return counts.runs > 1 and counts.core_rows > 0 and counts.product is None


def product_ns(counts: OperationCounts, cal: Calibration) -> tuple[float, float, float, float]:
    """Of a product: the pt array, spilled operands, division, and partial sums; else zeros."""
    shape = counts.product
    if shape is None:
        return 0.0, 0.0, 0.0, 0.0
    return (
        calibrated_pt_ns(counts, shape, cal),
        spill_ns(shape, counts.mac_format, cal) * counts.runs,
        split_ns(shape, cal) * counts.runs,
        partial_sums_ns(shape, cal) * counts.runs,
    )


def calibrated_pt_ns(counts: OperationCounts, shape: ProductShape, cal: Calibration) -> float:
    """The busiest core's pt array: sustained rate, and rows that fill the array per tile."""
    batched = (
        not shape.shared
        and shape.batch >= cal.batched_from
        and counts.cores >= cal.batched_from_cores
    )
    peak = cal.batched_macs_per_ns if batched else cal.pt_macs_per_ns
    filled = 1.0 + cal.pt_fill_rows / _rows_per_core(shape)
    return counts.counters.multiply_adds * counts.busiest / peak * filled


def _rows_per_core(shape: ProductShape) -> float:
    rows = shape.m / shape.m_cores
    return rows * (shape.batch / shape.batch_cores if shape.shared else 1)


def _area(shape: ProductShape) -> float:
    """Elements of the result that one core accumulates at once."""
    return _rows_per_core(shape) * shape.n / shape.n_cores


def spill_ns(shape: ProductShape, data_format: str, cal: Calibration) -> float:
    """Operands read again because accumulators do not stay, one run."""
    elements = shape.batch * shape.m * shape.k
    elements += (1 if shape.shared else shape.batch) * shape.k * shape.n
    size_bytes = elements * FORMATS[data_format].bits / 8
    doublings = max(log2(_area(shape) / cal.spill_area), 0.0)
    return size_bytes * min(cal.spill_limit, cal.spill_per_doubling * doublings) / cal.stream_gbps


def split_ns(shape: ProductShape, cal: Calibration) -> float:
    """What a large tile per core costs where many cores share an operand, one run."""
    sides = sorted(((shape.m, shape.m_cores), (shape.n, shape.n_cores)))
    short_cores, long_cores = sides[0][1], sides[1][1]
    per_element = cal.split_long_ns * max(log2(long_cores / cal.split_long_from), 0.0)
    per_element += cal.split_short_ns * max(log2(short_cores / cal.split_short_from), 0.0)
    return per_element * max(_area(shape) - cal.split_area, 0.0)


def partial_sums_ns(shape: ProductShape, cal: Calibration) -> float:
    """Adding up the partial sums of cores that share the reduced dim, one run."""
    return cal.partial_sum_ns * (shape.k_cores - 1) * shape.batch * shape.m * shape.n


Model = Literal["ideal", "calibrated"]
MODELS: Mapping[Model, Callable[[Sequence[OperationCounts], MachineSpec], KernelTime]] = {
    "ideal": ideal,
    "calibrated": calibrated,
}


def kernel_ns(
    operations: Sequence[OperationCounts], machine: MachineSpec, model: Model = "calibrated"
) -> KernelTime:
    """Return the time of one launch of a kernel on the card, without the host's share.

    ``operations``: in program order, a record per execute statement.
    """
    return MODELS[model](operations, machine)
