"""Overhead of counters and sanitizer: `python -m benchmarks.observers`.

Counting: the same launches with counters off and on, in turn: a large elementwise kernel, one in a
loop, a matmul, and a stream of 1,000 launches of a one-stick add. On: launches are counted
(`FlexDevice.counting`) and the counters read at the end. For comparison they are also recorded, as
for a profile or trace. CPU time of the process; ratios are medians over pairs.

The sanitizer: two devices, one with a sanitizer, run a linked program in turn; medians are
compared. Targets: at most 2.5 times for a 2048 x 4096 add, at most 1.6 times for a 1024 x 1024 x
1024 matmul.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.results import Figure, run
from benchmarks.sampling import alternate
from benchmarks.workloads import link_operations, upload
from spyre.hw.device.device import Device
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.flex.steps import JobPlan
from spyre.runtime.kernel.kernel import run_recorded
from tests.runtime.flex import kernels

EXAMPLES = Path(__file__).parents[1] / "examples"
PAIRS = 15
ROUNDS = 21
TARGET = 1.05
Call = Callable[[], object]


def workloads(card: FlexDevice, directory: Path) -> dict[str, Call]:
    """Return calls that take 10 to 50 ms each, by name."""
    rows, side = {"mb": 32}, {"mb": 8, "out": 4}
    add = kernels.load(card, kernels.add(directory / "add", (2048, 4096), rows))
    looped = kernels.load(card, EXAMPLES / "add_loop")
    product = kernels.load(card, kernels.product(directory / "product", 1024, 1024, 1024, side))
    stick = kernels.load(card, kernels.add(directory / "stick"))
    return {
        "add 2048x4096, 4 launches": _launches(card, add, 4),
        "add in a loop, 200 launches": _launches(card, looped, 200),
        "matmul 1024^3, 2 launches": _launches(card, product, 2),
        "one-stick add, 1000 launches": _launches(card, stick, 1000),
    }


def _launches(card: FlexDevice, plan: JobPlan, count: int) -> Call:
    tensors = [card.empty(shape) for shape in plan.expected_input_shapes]
    stream = card.default_stream

    def call() -> None:
        with (
            card.scheduler.held()
        ):  # or enqueuing and running would wait for the interpreter in turn
            for _ in range(count):
                stream.launch(plan, tensors)
        stream.synchronize()

    return call


def plainly(card: FlexDevice, call: Call) -> None:
    """Call without observers, like the first side, to measure the machine's noise."""
    call()


def counted(card: FlexDevice, call: Call) -> None:
    """Call with counters on, and read them."""
    with card.counting() as counts:
        call()
    assert counts.counters.executions


def recorded(card: FlexDevice, call: Call) -> None:
    """Call with records as for a profile, without making the profile."""
    with card.recording():
        card.runner = run_recorded
        call()
    card.runner = None


WAYS = {"plainly again": plainly, "counted": counted, "recorded": recorded}


def ratios(sides: Mapping[str, Call], pairs: int) -> tuple[float, float]:
    """Return the median ratio of the second side's CPU time to the first's; the first's median."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    for number in range(pairs):
        order = list(sides.items())
        for name, call in order if number % 2 else reversed(order):
            begin = time.process_time()
            call()
            times[name].append(time.process_time() - begin)
    first, second = times.values()
    found = [b / a for a, b in zip(first, second, strict=True)]
    return statistics.median(found), statistics.median(first)


def measure_counting(pairs: int = PAIRS) -> Iterator[Figure]:
    """Measure each workload in each way of observing."""
    card = FlexDevice(Device(threads=1))
    with tempfile.TemporaryDirectory() as directory:
        for name, call in workloads(card, Path(directory)).items():
            for title, on in WAYS.items():
                sides = {"off": call, "on": lambda on=on, call=call: on(card, call)}
                ratio, seconds = ratios(sides, pairs)
                target = {"target": TARGET} if title == "counted" else {}
                yield Figure(f"{name}: {title}", ratio, "x", **target)
            yield Figure(f"{name}: off", seconds * 1e3, "ms")
    card.close()


# --- sanitizer ----------------------------------------------------------------------------------


def sanitized_workloads() -> list[tuple[str, tuple[int, int], OperationSpec, float]]:
    """Return name, shape of both inputs, operation and target of every workload."""
    a, b, y = (HostOperand(region * REGION_BYTES) for region in range(3))
    add = pointwise("add", (2048, 4096), [a, b], y, {"mb": 32})
    product = matmul(1024, 1024, 1024, a, b, y, (), {"mb": 8, "out": 4})
    return [
        ("add 2048x4096", (2048, 4096), add, 2.5),
        ("matmul 1024x1024x1024", (1024, 1024), product, 1.6),
    ]


def measure_sanitizer(threads: int | None = None, rounds: int = ROUNDS) -> Iterator[Figure]:
    """Measure every workload on a plain and on a sanitizing device."""
    for name, shape, spec, target in sanitized_workloads():
        devices = {
            "plain": Device(threads=threads),
            "sanitized": Device(None, threads, sanitize=True),
        }
        values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        sides = {side: _linked(device, [spec], values) for side, device in devices.items()}
        times = alternate(sides, rounds)
        findings = devices["sanitized"].sanitizer.take()
        assert not findings, findings
        plain, sanitized = times["plain"].median, times["sanitized"].median
        yield Figure(f"{name}: plain", plain * 1e3, "ms")
        yield Figure(f"{name}: sanitized", sanitized / plain, "x", target)


def _linked(device: Device, specs: Sequence[OperationSpec], values: np.ndarray) -> Call:
    for region in range(2):
        upload(device, region, values)
    linked = link_operations(device, specs)
    return lambda: device.executor.run(linked)


def measure() -> list[Figure]:
    """Measure all figures."""
    return [*measure_counting(), *measure_sanitizer()]


if __name__ == "__main__":
    raise SystemExit(run(__doc__, measure))
