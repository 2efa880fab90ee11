"""How times grow with size and cores: `python -m benchmarks scaling`.

The same linked operations at several sizes, and divided among 1 to 32 cores: host time of the
driver and modelled time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.results import Measurement
from benchmarks.timing import samples
from benchmarks.workloads import link_operations, upload
from spyre.hw.cost.machine_file import default_machine
from spyre.hw.cost.program_counts import program_counts
from spyre.hw.device import Device
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.sdsc_builder import OperationSpec
from spyre.mlir.sdsc_recipes import Operand, matmul, pointwise, reduction

SIZES, QUICK_SIZES = (512, 1024, 2048, 4096), (256, 512)
CORES, QUICK_CORES = (1, 2, 4, 8, 16, 32), (1, 32)
ROUNDS, QUICK_ROUNDS = 7, 3
PAUSE_SECONDS = 0.02
LARGEST_PRODUCT = 2048


def measure(quick: bool) -> Iterator[Measurement]:
    """Sizes on 32 cores, then cores at one size."""
    device = Device()
    sizes, cores = (QUICK_SIZES, QUICK_CORES) if quick else (SIZES, CORES)
    values = np.random.default_rng(0).standard_normal((max(sizes),) * 2, dtype=np.float32)
    for region in range(2):
        upload(device, region, values)
    cases = [(size, 32) for size in sizes] + [(sizes[-2], count) for count in cores]
    for size, count in dict.fromkeys(cases):
        for name, spec in operations(size, count).items():
            yield from _measure(device, name, spec, size, count, quick)


def operations(size: int, cores: int) -> dict[str, OperationSpec]:
    """Over size x size (x size), rows divided among ``cores``."""
    a, b, y = (Operand(region * REGION_BYTES) for region in range(3))
    split = {"mb": cores}
    found = {
        "add": pointwise("add", (size, size), [a, b], y, split),
        "exp": pointwise("exp", (size, size), [a], y, split),
        "row sum": reduction("sum", (size, size), (1,), a, y, split),
    }
    if size <= LARGEST_PRODUCT:
        found["matmul"] = matmul(size, size, size, a, b, y, (), split)
    return found


def _measure(
    device: Device, name: str, spec: OperationSpec, size: int, cores: int, quick: bool
) -> Iterator[Measurement]:
    linked = link_operations(device, [spec])
    run = partial(device.executor.run, linked)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    times = samples({"run": run}, rounds, PAUSE_SECONDS)["run"]
    modelled = program_counts([linked]).time(default_machine()).total_ns / 1e3
    labels = {"operation": name, "size": size, "cores": cores}
    title = f"{name}, side {size}, {cores} cores"
    yield Measurement(f"{title}: host", "ms", tuple(t * 1e3 for t in times), labels=labels)
    yield Measurement(f"{title}: modelled", "us", (modelled,), exact=True, labels=labels)
