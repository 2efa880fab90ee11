"""How times grow with size and cores: `python -m benchmarks scaling`.

The same linked operations at several sizes, and divided among 1 to 32 cores: host time of the
driver and simulated time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.results import Measurement
from benchmarks.sampling import sweeps
from benchmarks.workloads import link_operations, upload
from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.models import kernel_ns
from spyre.hw.counters.launches import operation_counts
from spyre.hw.device.device import Device
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction

SIZES, QUICK_SIZES = (512, 1024, 2048, 4096), (256, 512)
CORES, QUICK_CORES = (1, 2, 4, 8, 16, 32), (1, 32)
ROUNDS, QUICK_ROUNDS = 9, 5
PAUSE_SECONDS = 0.02
LARGEST_PRODUCT = 2048


@dataclass(frozen=True)
class Case:
    """A linked operation over size x size (x size) on so many cores."""

    operation: str
    size: int
    cores: int
    program: LinkedProgram

    @property
    def title(self) -> str:
        return f"{self.operation}, side {self.size}, {self.cores} cores"


def measure(quick: bool) -> Iterator[Measurement]:
    """Sizes on 32 cores, then cores at one size."""
    device = Device()
    sizes, cores = (QUICK_SIZES, QUICK_CORES) if quick else (SIZES, CORES)
    values = np.random.default_rng(0).standard_normal((max(sizes),) * 2, dtype=np.float32)
    for region in range(2):
        upload(device, region, values)
    pairs = [(size, 32) for size in sizes] + [(sizes[-2], count) for count in cores]
    cases = [
        Case(name, size, count, link_operations(device, [spec]))
        for size, count in dict.fromkeys(pairs)
        for name, spec in operations(size, count).items()
    ]
    groups = {case.title: {"": partial(device.executor.run, case.program)} for case in cases}
    times = sweeps(groups, QUICK_ROUNDS if quick else ROUNDS, PAUSE_SECONDS)
    for case in cases:
        yield from _measurements(case, times[case.title][""])


def operations(size: int, cores: int) -> dict[str, OperationSpec]:
    """Over size x size (x size), rows divided among ``cores``."""
    a, b, y = (HostOperand(region * REGION_BYTES) for region in range(3))
    split = {"mb": cores}
    found = {
        "add": pointwise("add", (size, size), [a, b], y, split),
        "exp": pointwise("exp", (size, size), [a], y, split),
        "row sum": reduction("sum", (size, size), (1,), a, y, split),
    }
    if size <= LARGEST_PRODUCT:
        found["matmul"] = matmul(size, size, size, a, b, y, (), split)
    return found


def _measurements(case: Case, seconds: Sequence[float]) -> Iterator[Measurement]:
    simulated = kernel_ns(operation_counts(case.program.view), default_machine()).total_ns / 1e3
    labels = {"operation": case.operation, "size": case.size, "cores": case.cores}
    times = tuple(value * 1e3 for value in seconds)
    yield Measurement(f"{case.title}: host", "ms", times, labels=labels)
    yield Measurement(f"{case.title}: simulated", "us", (simulated,), exact=True, labels=labels)
