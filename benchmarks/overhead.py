"""Fixed costs per execute: a loop of 1,000 one-stick adds, in the driver and from Python."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.workloads import link_operations
from spyre.hw.device import Device
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.sdsc_recipes import Operand, pointwise

EXECUTES = 1000
ROUNDS = 9


@dataclass(frozen=True)
class Overheads:
    """Median nanoseconds per execute of a one-stick add."""

    driver_ns: float
    python_ns: float


def measure_overheads(device: Device) -> Overheads:
    """Median of nine runs each; nearly all of it is overhead, since a stick holds 64 elements."""
    operands = [Operand(region * REGION_BYTES) for region in range(3)]
    spec = pointwise("add", (1, 64), operands[:2], operands[2])
    looped = link_operations(device, [spec], EXECUTES)
    single = link_operations(device, [spec])

    def in_driver() -> None:
        device.executor.run(looped)

    def from_python() -> None:
        for _ in range(EXECUTES):
            device.executor.run(single)

    return Overheads(_median_ns(in_driver), _median_ns(from_python))


def _median_ns(call: object) -> float:
    assert callable(call)
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / EXECUTES)
    return sorted(times)[ROUNDS // 2]
