"""Overhead of the runtime over a kernel: `python -m benchmarks.streams`.

Enqueue: time until `launch` returns. Completion: launch and synchronize of a one-stick add, less
the time of the same linked kernel in the driver. Tiles: a launch of 1,000 tiles against the sum of
its kernels, each run by itself, alternating. Plan: `load_compiled` of an example in new processes
that find it on disk. Medians; targets in brackets.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.results import Figure, run
from spyre.hw.device.device import Device
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.flex.steps import JobPlan
from spyre.runtime.memory.allocator import SpyreTensor
from tests.runtime.flex import kernels

EXAMPLES = Path(__file__).parents[1] / "examples"
ROUNDS = 2000
TILES = 1000
PAIRS = 15
_PLAN = """
import sys, time
import numpy  # as every process that runs a plan
from spyre.runtime.program.plan_cache import load_compiled
begin = time.perf_counter_ns()
load_compiled(sys.argv[1])
print(time.perf_counter_ns() - begin, "spyre.mlir.text.parser" in sys.modules)
"""


def one_stick(directory: Path) -> list[Figure]:
    """Measure enqueue and completion of a warm one-stick add."""
    card = FlexDevice(Device())
    plan = kernels.load(card, kernels.add(directory / "stick"))
    ones = np.ones(kernels.STICK, np.float16)
    tensors = [card.to_device(ones) for _ in range(3)]
    stream = card.default_stream
    stream.synchronize()
    linked = _linked(plan, card, tensors)
    executor = card.device.executor
    enqueue, complete, kernel = [], [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        stream.launch(plan, tensors)
        queued = time.perf_counter_ns()
        stream.synchronize()
        done = time.perf_counter_ns()
        executor.run(linked)
        kernel.append(time.perf_counter_ns() - done)
        enqueue.append(queued - begin)
        complete.append(done - begin)
    bursts = []
    for _ in range(PAIRS):
        begin = time.perf_counter_ns()
        for _ in range(ROUNDS):
            stream.launch(plan, tensors)
        bursts.append((time.perf_counter_ns() - begin) / ROUNDS)
        stream.synchronize()
    burst = statistics.median(bursts)
    card.close()
    beyond = statistics.median(complete) - statistics.median(kernel)
    return [
        Figure("enqueue of a launch", statistics.median(enqueue) / 1e3, "us", 15),
        Figure("enqueue, mean of 2000 in a row", burst / 1e3, "us", 15),
        Figure("launch to completion beyond its kernel", beyond / 1e3, "us", 60),
    ]


def _linked(plan: JobPlan, card: FlexDevice, tensors: list[SpyreTensor]):
    launch = plan.bind(card, tensors)
    whole = launch.launch_plan
    return whole.kernel.link_at(whole.signature, launch.bases, whole.names)


def tiles(directory: Path) -> list[Figure]:
    """Measure a launch of 1,000 tiles against its kernels one by one."""
    card = FlexDevice(Device())
    figures = []
    shape = (64, 512)
    total = (TILES * shape[0], shape[1])
    plan = kernels.load(card, kernels.add(directory / "add", shape, {"mb": 2}))
    values = np.ones(total, np.float16)
    tensors = [card.to_device(values), card.to_device(values), card.empty(total)]
    figures.append(_tiled("1000 tiles of a 64x512 add", card, plan, tensors))
    m, k, n = 32, 256, 256
    plan = kernels.load(card, kernels.product(directory / "product", m, k, n, {"mb": 2}))
    a = card.to_device(np.ones((TILES * m, k), np.float16))
    b = card.to_device(np.ones((k, n), np.float16))
    tensors = [a, b, card.empty((TILES * m, n))]
    figures.append(_tiled("1000 tiles of a 32x256x256 matmul", card, plan, tensors))
    card.close()
    return figures


def _tiled(name: str, card: FlexDevice, plan: JobPlan, tensors: list[SpyreTensor]) -> Figure:
    launch = plan.bind(card, tensors)
    tiled, executor = launch.launch_plan, card.device.executor
    kernel, signature, names = tiled.kernel, tiled.signature, tiled.names
    rows = launch.addresses(0, TILES).tolist()
    linked = [kernel.link_at(signature, tuple(row), names) for row in rows]
    ratios = []
    for _ in range(PAIRS):
        card.synchronize()
        begin = time.perf_counter_ns()
        card.default_stream.launch(plan, tensors)
        card.synchronize()
        launched = time.perf_counter_ns()
        for program in linked:
            executor.run(program)
        ratios.append((launched - begin) / (time.perf_counter_ns() - launched))
    return Figure(f"{name} against its kernels", statistics.median(ratios), "x", 1.15)


def plan_on_disk() -> Figure:
    """Measure `load_compiled` in new processes after one that compiled."""
    times = []
    for _ in range(6):
        command = [sys.executable, "-c", _PLAN, str(EXAMPLES / "softmax")]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        times.append((int(out[0]), out[1]))
    assert all(parsed == "False" for _, parsed in times[1:]), "the plan was not found on disk"
    return Figure(
        "compiled plan found by a new process",
        statistics.median(t for t, _ in times[1:]) / 1e6,
        "ms",
        5,
    )


def measure() -> list[Figure]:
    """Measure all figures."""
    with tempfile.TemporaryDirectory() as directory:
        return [*one_stick(Path(directory)), *tiles(Path(directory)), plan_on_disk()]


if __name__ == "__main__":
    raise SystemExit(run(__doc__, measure))
