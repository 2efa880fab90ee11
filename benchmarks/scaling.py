"""Times by size, cores, executes and threads: `python -m benchmarks scaling`.

The same linked operations at several sizes, and divided among 1 to 32 cores: host time of the
driver and simulated time. Host time of many small executes, in a loop and written out. Host time on
the machine's threads, and modelled time on up to 16 (`modelled_seconds`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.results import Measurement
from benchmarks.sampling import sweeps
from benchmarks.workloads import link_operations, upload
from spyre.hw import plan_table as tb
from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.models import kernel_ns
from spyre.hw.counters.program import operation_counts
from spyre.hw.device.device import Device
from spyre.hw.kernels.driver import PARALLEL_NS
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction

SIZES, QUICK_SIZES = (512, 1024, 2048, 4096), (256, 512)
CORES, QUICK_CORES = (1, 2, 4, 8, 16, 32), (1, 32)
EXECUTES, QUICK_EXECUTES = (1, 10, 100, 1000), (1, 100)
THREADS = (1, 2, 4, 8, 16)
ROUNDS, QUICK_ROUNDS = 9, 5
PAUSE_SECONDS = 0.02
LARGEST_PRODUCT = 2048

ASSUMED_BYTES_PER_SECOND = 100e9
"""Bandwidth of the modelled machine's memory for all threads: eight channels of DDR4."""
ASSUMED_WAKE_SECONDS = 10e-6
"""Time from the call to the last worker's start on an idle machine (it varies from 5 to 50 µs)."""


@dataclass(frozen=True)
class Case:
    """A linked operation over size x size (x size), divided among ``cores``."""

    operation: str
    size: int
    cores: int
    program: LinkedProgram

    @property
    def title(self) -> str:
        return f"{self.operation}, side {self.size}, {self.cores} cores"


def measure(quick: bool) -> Iterator[Measurement]:
    """Measure sizes on 32 cores, then cores at one size; then executes, then threads."""
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
    rounds = QUICK_ROUNDS if quick else ROUNDS
    yield from _executes(QUICK_EXECUTES if quick else EXECUTES, rounds)
    yield from _threads(sizes[-2], values, rounds)


def _executes(counts: Sequence[int], rounds: int) -> Iterator[Measurement]:
    """Measure one-stick adds, in a loop and written out."""
    device = Device()
    a, b, y = (HostOperand(region * REGION_BYTES) for region in range(3))
    spec = pointwise("add", (1, 64), [a, b], y, {"mb": 1})
    programs = {
        (form, count): link_operations(device, [spec] * written, looped)
        for count in counts
        for form, written, looped in (("in a loop", 1, count), ("written out", count, 1))
    }
    groups = {
        f"{count} one-stick adds {form}": {"": partial(device.executor.run, program)}
        for (form, count), program in programs.items()
    }
    times = sweeps(groups, rounds, PAUSE_SECONDS)
    for (form, count), title in zip(programs, groups, strict=True):
        samples = tuple(value * 1e6 for value in times[title][""])
        labels = {"form": form, "executes": count}
        yield Measurement(f"{title}: host", "us", samples, labels=labels)


def _threads(size: int, values: np.ndarray, rounds: int) -> Iterator[Measurement]:
    """Measure operations on available threads, and model them on the other `THREADS`."""
    most = Device().threads
    devices = {count: Device(threads=count) for count in THREADS}
    programs: dict[tuple[str, int], LinkedProgram] = {}
    groups = {}
    for count, device in devices.items():
        for name, spec in operations(size, 32).items():
            programs[name, count] = link_operations(device, [spec])
        if count <= most:
            for region in range(2):
                upload(device, region, values)
            for name in operations(size, 32):
                run = partial(device.executor.run, programs[name, count])
                groups[f"{name}, side {size}, {count} threads"] = {"": run}
    times = sweeps(groups, rounds, PAUSE_SECONDS)
    for (name, count), program in programs.items():
        title = f"{name}, side {size}, {count} threads"
        if count <= most:
            labels = {"form": f"{name}, measured", "threads": count}
            samples = tuple(value * 1e3 for value in times[title][""])
            yield Measurement(f"{title}: host", "ms", samples, labels=labels)
        alone = times[f"{name}, side {size}, 1 threads"][""]
        modelled = tuple(modelled_seconds(value, program, count) * 1e3 for value in alone)
        labels = {"form": f"{name}, modelled", "threads": count}
        yield Measurement(f"{title}: modelled", "ms", modelled, compared=False, labels=labels)


def modelled_seconds(alone_seconds: float, program: LinkedProgram, threads: int) -> float:
    """Model the seconds of one execute on ``threads`` from its time on one thread.

    ``program``: linked for that number of threads.

    Every thread computes whole pieces of the work as fast as one thread alone. All threads share
    a bandwidth of ASSUMED_BYTES_PER_SECOND, through which operands and result pass once. Workers
    take ASSUMED_WAKE_SECONDS to start. Threads that share a core, and a clock that falls under
    load, are not modelled.
    """
    table = program.tables[program.dispatch[0, 0]]
    units, cost_ns = int(table[tb.UNITS]), int(table[tb.COST_NS])
    if threads == 1 or units < 2 or cost_ns < PARALLEL_NS:
        return alone_seconds
    pieces = min(units, threads * tb.CHUNKS_PER_THREAD)
    computing = alone_seconds * -(-pieces // threads) / pieces
    moved = sum(each.counters.memory_bytes for each in operation_counts(program.view))
    return max(computing, moved / ASSUMED_BYTES_PER_SECOND) + ASSUMED_WAKE_SECONDS


def operations(size: int, cores: int) -> dict[str, OperationSpec]:
    """Return operations over size x size (x size), rows divided among ``cores``."""
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
