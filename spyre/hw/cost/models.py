"""The modelled time of a kernel on a card, by one of two models: :func:`kernel_ns`.

*Ideal* is the limit of the hardware's parameters (hardware reference §3.5 A): for each operation,
the units of the busiest core and the memory interface, which all cores share, are either overlapped
(the slowest counts) or serial (they add up).

*Calibrated* uses terms of measured kernels (hardware reference §3.3, §3.5 B). The memory time of an
operation has a rate by its class. SFU, LX and ring have the times of the ideal model and overlap
with memory. A product reads its operands beside the pt array, and writes its result afterwards:
:func:`product_terms`. Three terms are properties of the whole kernel: the turnaround between
reading and writing, because the operations of a loop alternate; an operand that the operation
before has just written; and the cost of short runs of a loop. That is the larger of the published
cost of low tiles and the measured cost of beginning runs, since one contains the other.

Operations run one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import reduce
from math import exp, log2, pow, sqrt
from operator import add, attrgetter
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from spyre.dtypes import FORMATS
from spyre.hw.cost.machine import Constants, Hardware, MachineSpec
from spyre.hw.counters import CostClass, OperationCounts, ProductShape


class Bound(StrEnum):
    """Resource that takes most of the time of an operation or a kernel."""

    MEMORY = "memory"
    PT = "pt"
    SFU = "sfu"
    LX = "lx"
    RING = "ring"
    RUNS = "runs"


class Terms(msgspec.Struct, frozen=True):
    """Nanoseconds by term; their sum is the time.

    ``memory``: HBM traffic without the next four. ``turnaround``: changes between reading and
    writing. ``dependent``: an operand that the operation before has just written. ``tile``: row
    tiles of an unfavourable height. ``spill``: operands of a product that are read again, for more
    cores or more rows than one read serves, or in short pieces. ``split``: cost of a product's
    division beyond its traffic. ``pt``, ``sfu``, ``lx``, ``ring``: units of the busiest core.
    ``runs``: beginning the runs of a loop. ``overlap``: the overlapping time of these terms, zero
    or negative.
    """

    memory: float = 0.0
    turnaround: float = 0.0
    dependent: float = 0.0
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
    def by_name_us(self) -> dict[str, float]:
        """Microseconds of the terms that are not 0."""
        pairs = zip(self.__struct_fields__, self.values, strict=True)
        return {name: ns / 1e3 for name, ns in pairs if ns}

    @property
    def total(self) -> float:
        """The time."""
        return sum(self.values)

    @property
    def bound(self) -> Bound:
        """The largest of `TERMS_OF`; of equal ones the first."""
        times = {bound: sum(getattr(self, each) for each in of) for bound, of in TERMS_OF.items()}
        return max(times, key=times.__getitem__)


_VALUES = attrgetter(*Terms.__struct_fields__)
TERMS_OF: Mapping[Bound, tuple[str, ...]] = {
    Bound.MEMORY: ("memory", "turnaround", "dependent", "tile", "spill"),
    Bound.PT: ("pt", "split"),
    **{bound: (bound.value,) for bound in (Bound.SFU, Bound.LX, Bound.RING, Bound.RUNS)},
}
"""Terms of the time that a resource takes."""


class OperationTime(msgspec.Struct, frozen=True):
    """Time of one operation, all its runs of one launch, or of a kernel.

    ``name``: of the operation, or of the model. ``spread``: error of its class, relative; None for
    the ideal model, which is a limit.
    """

    name: str
    terms: Terms
    spread: float | None = None

    @property
    def total_ns(self) -> float:
        """Nanoseconds on the card."""
        return self.terms.total

    @property
    def bound(self) -> Bound:
        """Resource that takes most of the time."""
        return self.terms.bound


class KernelTime(OperationTime, frozen=True):
    """Time of a kernel: its operations one after another, with the mean of their spreads."""

    operations: tuple[OperationTime, ...] = ()


def _kernel_time(model: str, operations: Iterable[OperationTime]) -> KernelTime:
    times = tuple(operations)
    terms = reduce(add, (each.terms for each in times)) if times else Terms()
    spread = mean_spread((each.total_ns, each.spread) for each in times)
    return KernelTime(model, terms, spread, times)


def mean_spread(times: Iterable[tuple[float, float | None]]) -> float | None:
    """The mean of spreads, weighted by their times: errors of a class have the same sign. None if
    no time has one.
    """
    known = [(time_ns, spread) for time_ns, spread in times if spread is not None]
    total = sum(time_ns for time_ns, _ in known)
    return sum(time_ns * spread for time_ns, spread in known) / total if total else None


UnitOverlap = Literal["overlapped", "serial"]


def ideal(
    operations: Sequence[OperationCounts], machine: MachineSpec, overlap: UnitOverlap = "overlapped"
) -> KernelTime:
    """Time of one launch by the hardware's parameters."""
    times = (_ideal_time(counts, machine.hardware, overlap) for counts in operations)
    return _kernel_time("ideal", times)


def _ideal_time(counts: OperationCounts, hw: Hardware, overlap: UnitOverlap) -> OperationTime:
    units = Terms(
        memory=counts.hbm_bytes / hw.hbm_peak_gbps,
        pt=counts.counters.multiply_adds * counts.busiest / hw.pt_per_ns(counts.mac_format),
        sfu=sfu_ns(counts, hw),
        lx=lx_ns(counts, hw),
        ring=ring_ns(counts, hw),
    )
    if overlap == "serial":
        return OperationTime(counts.name, units)
    # Negative: the sum of all units but the slowest, which run at the same time.
    hidden = max(units.values) - units.total
    return OperationTime(counts.name, units + Terms(overlap=hidden))


def sfu_ns(counts: OperationCounts, hw: Hardware) -> float:
    """The busiest core's vector units, nanoseconds; functions like exp count several times."""
    weight = hw.transcendental_cycles if counts.transcendental else 1.0
    return counts.counters.element_operations * weight * counts.busiest / hw.sfu_per_ns


def lx_ns(counts: OperationCounts, hw: Hardware) -> float:
    """The busiest core's scratchpad, both directions together, nanoseconds."""
    per_ns = hw.corelets * hw.lx_bytes_per_cycle * hw.clock_ghz
    return counts.lx_bytes * counts.busiest / per_ns


def ring_ns(counts: OperationCounts, hw: Hardware) -> float:
    """The ring: bytes times links over all links, and the latency of one way, nanoseconds."""
    if not counts.counters.ring_bytes:
        return 0.0
    links = counts.cores * hw.ring_directions
    per_ns = hw.ring_bytes_per_cycle * hw.clock_ghz * links
    hops = counts.counters.ring_byte_hops / counts.counters.ring_bytes
    return counts.counters.ring_byte_hops / per_ns + hops * hw.ring_hop_cycles / hw.clock_ghz


TURNING = (CostClass.POINTWISE, CostClass.ROW_REDUCTION)
"""Classes whose rate is that of one direction; the rates of the others hold for both together."""


def calibrated(operations: Sequence[OperationCounts], machine: MachineSpec) -> KernelTime:
    """Time of one launch by the measured terms."""
    cal = machine.calibration
    reduces = any(c.cost_class is CostClass.ROW_REDUCTION and c.through_lx for c in operations)
    turnaround = turnaround_ns(operations, cal)
    classes = [measured_class(operations[: place + 1]) for place in range(len(operations))]
    traffic = [
        _traffic_terms(c, machine, turnaround, reduces, kind == "chain")
        for c, kind in zip(operations, classes, strict=True)
    ]
    # the cost of low tiles contains a part of that of beginning runs, which does not count twice
    begun = sum(runs_ns(counts, cal) for counts in operations)
    low = sum(low_ns for _, low_ns in traffic)
    part = max(begun - low, 0.0) / begun if begun else 0.0
    times = (
        OperationTime(c.name, _calibrated_terms(c, terms, machine, part), machine.spread[kind])
        for c, kind, (terms, _) in zip(operations, classes, traffic, strict=True)
    )
    return _kernel_time("calibrated", times)


def _traffic_terms(
    counts: OperationCounts, machine: MachineSpec, turnaround: float, reduces: bool, dependent: bool
) -> tuple[Terms, float]:
    """Traffic terms of an operation, and the part of tile due to low row tiles."""
    if counts.product is not None:
        return Terms(), 0.0
    memory, cal = memory_ns(counts, machine), machine.calibration
    turning = turnaround * counts.hbm_bytes if counts.cost_class in TURNING else 0.0
    plain = memory + turning
    high = high_tile_factor(counts, cal) if reduces else 1.0
    high_ns, low_ns = plain * (high - 1.0), plain * high * (low_tile_factor(counts, cal) - 1.0)
    waited = plain * cal.dependent_ratio if dependent else 0.0
    terms = Terms(memory=memory, turnaround=turning, dependent=waited, tile=high_ns + low_ns)
    return terms, low_ns


def _calibrated_terms(
    counts: OperationCounts, traffic: Terms, machine: MachineSpec, runs_part: float
) -> Terms:
    hw = machine.hardware
    sfu, lx = sfu_ns(counts, hw), lx_ns(counts, hw)
    terms = replace(traffic, sfu=sfu, lx=lx, runs=runs_ns(counts, machine.calibration) * runs_part)
    if counts.product is not None:
        return product_terms(counts, counts.product, terms, machine)
    # SFU and LX run beside memory: only their time beyond it adds to the total.
    waiting = sum(traffic.values)
    overlap = max(waiting, sfu, lx) - waiting - sfu - lx
    return replace(terms, ring=ring_ns(counts, hw), overlap=overlap)


def product_ns(counts: OperationCounts, machine: MachineSpec) -> float:
    """The calibrated time of a product alone, as `kernel_ns` has it, in half the host time."""
    return _calibrated_terms(counts, Terms(), machine, 1.0).total


def measured_class(operations: Sequence[OperationCounts]) -> str:
    """The class of measured kernels that the last operation is nearest to: a key of spreads.

    ``chain``: an operation of several operands in HBM that reads the result of the one before.
    """
    counts, shape = operations[-1], operations[-1].product
    if shape is not None:
        is_narrow = FORMATS[counts.mac_format].bits < FORMATS["SEN169_FP16"].bits
        is_batched = shape.batch > 1 and not shape.shared
        return "product_8_bit" if is_narrow else "batched_product" if is_batched else "product"
    written = operations[-2].writes.keys() if len(operations) > 1 else set()
    several = counts.cost_class is CostClass.POINTWISE and len(counts.reads) > 1
    if several and counts.reads.keys() & written:
        return "chain"
    if counts.runs > 1:
        return "tiled"
    return "few_cores" if counts.cores < 32 else _TESTED[counts.cost_class]


_TESTED: Mapping[CostClass, str] = {
    **{kind: kind.value for kind in CostClass},
    CostClass.ROW_REDUCTION: "reduction",
    CostClass.COLUMN_REDUCTION: "reduction",
    CostClass.MATMUL: "product",
}


def turnaround_ns(operations: Sequence[OperationCounts], cal: Constants) -> float:
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


def memory_ns(counts: OperationCounts, machine: MachineSpec) -> float:
    """Return the time of HBM traffic at the rate of the operation's class; re-reads are cheaper."""
    if not counts.hbm_bytes:
        return 0.0
    if counts.cost_class is CostClass.COPY_OUT:
        return copy_out_ns(counts.hbm_bytes, machine)
    cal = machine.calibration
    if counts.cost_class is CostClass.MEMSET:
        set_bytes = max(counts.hbm_bytes - cal.memset_free_bytes, 0.0)
        return 1e3 * cal.memset_latency_us + set_bytes / cal.memset_gbps
    size_bytes = counts.hbm_bytes - (1.0 - cal.reread_ratio) * counts.hbm_reread_bytes
    rate = rate_gbps(counts, cal) * core_share(counts, machine)
    time_ns = size_bytes / rate * valley_factor(counts, cal)
    if counts.cost_class is not CostClass.ROW_REDUCTION:
        return time_ns
    # few cores are limited by their arithmetic
    per_ns = cal.reduction_elements_per_ns * counts.cores
    return max(time_ns, counts.counters.element_operations / per_ns)


def copy_out_ns(size_bytes: float, machine: MachineSpec) -> float:
    """Return the time of a copy to the host: a latency, the link, and the host's memory.

    A share of the bytes goes to memory that is not in the host's caches; it rises with the size of
    the copy up to all bytes beyond ``copy_cached_bytes``.
    """
    cal = machine.calibration
    rising = min(size_bytes, cal.copy_cached_bytes)
    missed_bytes = size_bytes - rising + rising * rising / (2.0 * cal.copy_cached_bytes)
    moved_ns = size_bytes / machine.hardware.pcie_gbps + missed_bytes / cal.copy_missed_gbps
    return 1e3 * cal.copy_latency_us + moved_ns


def valley_factor(counts: OperationCounts, cal: Constants) -> float:
    """Return the factor of several streams' time for planes of sticks a power of two apart.

    Measured where a tensor has about as many rows as sticks in a row; no mechanism is published.
    """
    rows, sticks = counts.rows, counts.columns // STICK_ELEMENTS
    streams = counts.cost_class is CostClass.BROADCAST or len(counts.reads) > 1
    powers = rows.bit_count() == sticks.bit_count() == counts.runs == 1
    is_valley = streams and powers and 1 <= rows / sticks <= cal.valley_rows
    return 1.0 + cal.valley_ratio * sticks / rows if is_valley else 1.0


STICK_ELEMENTS = 64
"""16-bit elements of a stick."""


def rate_gbps(counts: OperationCounts, cal: Constants) -> float:
    """Bytes per nanosecond of an operation's HBM traffic on all cores."""
    kind = counts.cost_class
    if kind is CostClass.ROW_REDUCTION:  # falls with the rows of one run
        fall = exp(-counts.rows / cal.row_reduction_decay_rows)
        rate = cal.row_reduction_floor_gbps + cal.row_reduction_extra_gbps * fall
        return min(cal.stream_gbps, rate)
    if kind is CostClass.CONCATENATION:  # falls with the sticks of a row and the rows
        rate = (
            cal.concatenation_gbps
            - cal.concatenation_per_column_doubling_gbps * log2(max(counts.columns / 64, 1))
            - cal.concatenation_per_row_doubling_gbps * log2(max(counts.rows, 1))
        )
        return max(rate, cal.concatenation_floor_gbps)
    rates = {
        CostClass.BROADCAST: cal.broadcast_gbps,
        CostClass.COLUMN_REDUCTION: cal.column_reduction_gbps,
        CostClass.TRANSPOSE: cal.transpose_gbps,
    }
    return rates.get(kind, cal.stream_gbps)


def core_share(counts: OperationCounts, machine: MachineSpec) -> float:
    """The part of the card's bandwidth that the cores reach, interpolated between measured ones."""
    points = machine.core_share.get(_TESTED[counts.cost_class])
    if points is None:
        return 1.0
    cores, shares = zip(*points, strict=True)
    return float(np.interp(counts.cores, cores, shares))


def runs_ns(counts: OperationCounts, cal: Constants) -> float:
    """Beginning the runs of a loop behind the first, all of them."""
    return cal.run_ns * (counts.runs - 1)


def high_tile_factor(counts: OperationCounts, cal: Constants) -> float:
    """Return the factor of memory time for a high row tile in a loop, with rows reduced in LX."""
    if not _is_tiled(counts):
        return 1.0
    return 1.0 + cal.tile_height_ratio * log2(max(counts.core_rows / cal.tile_height, 1.0))


def low_tile_factor(counts: OperationCounts, cal: Constants) -> float:
    """Return the memory time's factor for a very low row tile in a loop, larger for narrow rows."""
    if not _is_tiled(counts):
        return 1.0
    # As published: a curve over height and width of a tile (hardware reference §3.5 B).
    wide = max(counts.columns, 1) / cal.low_tile_columns
    low = sqrt(counts.core_rows / cal.low_tile_height) * pow(wide, cal.low_tile_column_power)
    return 1.0 / min(1.0, low)


def _is_tiled(counts: OperationCounts) -> bool:
    return counts.runs > 1 and counts.core_rows > 0 and counts.product is None


def product_terms(
    counts: OperationCounts, shape: ProductShape, terms: Terms, machine: MachineSpec
) -> Terms:
    """The terms of a product. Its cores read operands while the pt array works and partial sums
    pass from core to core; afterwards they write the result.
    """
    cal, work = machine.calibration, counts.counters
    again = repeated_bytes(counts, shape, machine) * counts.runs / cal.product_gbps
    read = work.rdmem_bytes / cal.product_gbps
    pt = calibrated_pt_ns(counts, shape, machine)
    elements = shape.batch * shape.m * shape.n * counts.runs if shape.k_cores > 1 else 0
    hidden = cal.partial_sum_ns * elements or ring_ns(counts, machine.hardware)
    passed = 0.0
    if machine.hardware.lx_fraction < cal.accumulator_lx_fraction:
        passed = cal.partial_sum_doubling_ns * elements * log2(shape.k_cores)
    return replace(
        terms,
        memory=read + work.wrmem_bytes / cal.stream_gbps,
        turnaround=cal.product_turnaround_ns_per_byte * min(work.rdmem_bytes, work.wrmem_bytes),
        spill=again,
        split=split_ns(shape, cal) * counts.runs,
        pt=pt,
        ring=hidden + passed,
        overlap=max(read + again, pt + hidden, terms.sfu, terms.lx)
        - (read + again + pt + hidden + terms.sfu + terms.lx),
    )


def repeated_bytes(counts: OperationCounts, shape: ProductShape, machine: MachineSpec) -> float:
    """Bytes that one run moves beyond its operands, in bytes of contiguous reads.

    One read serves ``multicast_cores`` cores. Where little of LX is free, the second operand is
    read again for every ``accumulator_rows`` rows of a core, at most once per stick of its columns
    or of the reduced dim. A core that has some of the batches whose sticks alternate moves short
    runs; of reads and writes the slower count.
    """
    cal = machine.calibration
    is_small = machine.hardware.lx_fraction < cal.accumulator_lx_fraction
    batches = shape.batch / shape.batch_cores
    again, pieces = 1.0, 1.0 + cal.interleaved_run_large_lx / batches
    if is_small:
        pieces = cal.interleaved_ratio * (1.0 + cal.interleaved_run / batches)
        depth = shape.k / shape.k_cores / STICK_ELEMENTS
        rows, columns = _rows_per_core(shape), shape.n / shape.n_cores / STICK_ELEMENTS
        if any(shape.interleaved[:2]):
            # of two batches that alternate, each displaces the other's sticks of a column
            rows, columns = rows * batches, max(columns, 2.0)
        again = max(1.0, min(rows / cal.accumulator_rows, columns, depth))
    row_bytes = shape.batch * shape.k * FORMATS[counts.mac_format].bits / 8
    operands = (
        (row_bytes * shape.m, multicast_reads(shape.n_cores, cal)),
        (
            row_bytes * shape.n / (shape.batch if shape.shared else 1),
            multicast_reads(shape.m_cores, cal) * again,
        ),
        (counts.counters.wrmem_bytes / counts.runs, 1.0),
    )
    places = zip(operands, shape.interleaved, shape.in_hbm, strict=True)
    first, second, result = (
        size * (factor * (pieces if interleaved else 1.0) - 1.0) if in_hbm else 0.0
        for (size, factor), interleaved, in_hbm in places
    )
    return max(first + second, result)


def multicast_reads(cores: int, cal: Constants) -> float:
    """Return the number of reads of an operand that ``cores`` cores share: a smooth maximum of one
    and one per ``multicast_cores``; a single core is slower.
    """
    if cores == 1:
        return 1.0 + cal.unshared_ratio
    power = cal.multicast_power
    return pow(1.0 + pow(cores / cal.multicast_cores, power), 1.0 / power)


def calibrated_pt_ns(counts: OperationCounts, shape: ProductShape, machine: MachineSpec) -> float:
    """The busiest core's pt array: sustained rate, and rows that fill the array per tile."""
    cal = machine.calibration
    per_ns = cal.pt_macs_per_ns * machine.hardware.format_speed(counts.mac_format)
    filled = 1.0 + cal.pt_fill_rows / _rows_per_core(shape)
    return counts.counters.multiply_adds * counts.busiest / per_ns * filled


def _rows_per_core(shape: ProductShape) -> float:
    rows = shape.m / shape.m_cores
    return rows * (shape.batch / shape.batch_cores if shape.shared else 1)


def split_ns(shape: ProductShape, cal: Constants) -> float:
    """Return the nanoseconds per run that large tiles add if many cores share an operand."""
    sides = sorted(((shape.m, shape.m_cores), (shape.n, shape.n_cores)))
    short_cores, long_cores = sides[0][1], sides[1][1]
    per_element = cal.split_long_ns * max(log2(long_cores / cal.split_long_from), 0.0)
    per_element += cal.split_short_ns * max(log2(short_cores / cal.split_short_from), 0.0)
    area = _rows_per_core(shape) * shape.n / shape.n_cores
    return per_element * max(area - cal.split_area, 0.0)


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
