"""The ideal model: what the hardware's parameters allow (hardware reference §3.5 A).

Per operation the busiest core's units and the memory interface, which all cores share, are either
*overlapped* (the slowest counts) or *serial* (they add up). Operations follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spyre.hw.cost.machine import Hardware, MachineSpec
from spyre.hw.cost.operation_counts import OperationCounts
from spyre.hw.cost.times import KernelTime, OperationTime, Terms

Overlap = Literal["overlapped", "serial"]


def ideal(
    operations: Sequence[OperationCounts], machine: MachineSpec, overlap: Overlap = "overlapped"
) -> KernelTime:
    """Time of one launch by the hardware's parameters."""
    times = (_operation(counts, machine.hardware, overlap) for counts in operations)
    return KernelTime("ideal", tuple(times))


def _operation(counts: OperationCounts, hw: Hardware, overlap: Overlap) -> OperationTime:
    units = Terms(
        memory=counts.hbm_bytes / hw.hbm_peak_gbps,
        pt=pt_ns(counts, hw),
        sfu=sfu_ns(counts, hw),
        lx=counts.lx_bytes * counts.busiest / lx_gbps(hw),
        ring=ring_ns(counts, hw),
    )
    if overlap == "serial":
        return OperationTime(counts.name, units)
    hidden = max(units.values) - units.total
    return OperationTime(counts.name, units + Terms(overlap=hidden))


def pt_ns(counts: OperationCounts, hw: Hardware) -> float:
    """The busiest core's pt array at its peak, nanoseconds."""
    per_ns = hw.pt_macs_per_cycle * hw.clock_ghz * hw.format_speed(counts.mac_format)
    return counts.multiply_adds * counts.busiest / per_ns


def sfu_ns(counts: OperationCounts, hw: Hardware) -> float:
    """The busiest core's vector units, nanoseconds; functions like exp count several times."""
    weight = hw.transcendental_cycles if counts.transcendental else 1.0
    per_ns = hw.corelets * hw.sfu_lanes * hw.clock_ghz
    return counts.element_operations * weight * counts.busiest / per_ns


def lx_gbps(hw: Hardware) -> float:
    """Bytes per nanosecond between one core and its scratchpad, both directions together."""
    return hw.corelets * hw.lx_bytes_per_cycle * hw.clock_ghz


def ring_ns(counts: OperationCounts, hw: Hardware) -> float:
    """The ring: bytes times links over all links, and the latency of one way, nanoseconds."""
    if not counts.ring_bytes:
        return 0.0
    links = counts.cores * hw.ring_directions
    per_ns = hw.ring_bytes_per_cycle * hw.clock_ghz * links
    hops = counts.ring_byte_hops / counts.ring_bytes
    return counts.ring_byte_hops / per_ns + hops * hw.ring_hop_cycles / hw.clock_ghz
