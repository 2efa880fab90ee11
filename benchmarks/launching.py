"""Cost of launches from Python: `python -m benchmarks.launching [--json]`, run from the repository.

Linking a launch at new addresses, a launch at known addresses, and tiles run as one batch.
Medians, one thread; kernels are small, so nearly all of the time is overhead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.workloads import link_operations
from spyre.hw.device.device import Device
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import Bundle, load_bundle, write_bundle
from spyre.runtime.arguments.read import read_arguments
from spyre.runtime.kernel.kernel import Kernel, Launch, PoolBuffer

EXECUTES = 1000
ROUNDS = 9


@dataclass(frozen=True)
class Overheads:
    """Median nanoseconds per execute of a one-stick add."""

    driver_ns: float
    python_ns: float


def measure_overheads(device: Device) -> Overheads:
    """Return medians of nine runs; nearly all is overhead, since a stick holds 64 elements."""
    operands = [HostOperand(region * REGION_BYTES) for region in range(3)]
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


SOFTMAX = Path(__file__).parents[1] / "examples" / "softmax"
STEP_BYTES = 1 << 20
PLACES = 300
TILES = 1000


@dataclass(frozen=True)
class Row:
    """Microseconds of one program."""

    name: str
    link_new_us: float
    launch_us: float
    run_us: float


@dataclass(frozen=True)
class Batch:
    """Microseconds of TILES one-stick adds as one batch: binding addresses, running."""

    tiles: int
    link_us: float
    run_us: float


def add(directory: Path, rows: int, cores: int) -> Bundle:
    """Write and load the bundle of x + y with one stick per row."""
    builder = BundleBuilder()
    x, y, z = (HostOperand(builder.argument(rows * 128).at()) for _ in range(3))
    builder.add(pointwise("add", (rows, 64), [x, y], z, {"mb": cores}))
    write_bundle(builder.build(), directory)
    return load_bundle(directory)


def loop(directory: Path, count: int) -> Bundle:
    """Write and load the bundle of -x in a loop, one stick per iteration."""
    builder = BundleBuilder()
    x, y = (builder.argument(count * 128) for _ in range(2))
    with builder.loop(count) as i:
        source, target = (HostOperand(a.at(0, {i: 128})) for a in (x, y))
        builder.add(pointwise("neg", (1, 64), [source], target))
    write_bundle(builder.build(), directory)
    return load_bundle(directory)


def launches(bundle: Bundle, count: int) -> list[Launch]:
    """Return launches at ``count`` places, every argument in a separate region."""
    arguments = read_arguments(bundle)
    tensors = {
        a.arg_index: DeviceTensor(a.name, 0, a.layout, a.dtype_name, a.shape, a.strides)
        for a in arguments.arguments
    }
    size = arguments.pool_bytes

    def at(place: int) -> Launch:
        offset = place * STEP_BYTES
        placed = {
            k: replace(t, address_bytes=region * REGION_BYTES + offset)
            for region, (k, t) in enumerate(tensors.items())
        }
        pool = PoolBuffer(6 * REGION_BYTES + offset, size) if size else None
        return Launch(placed, pool)

    return [at(place) for place in range(count)]


def median_us(calls: Iterable[Callable[[], object]]) -> float:
    """Make each of ``calls`` once and return their median microseconds."""
    times = []
    for call in calls:
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def measure(name: str, bundle: Bundle, device: Device) -> Row:
    """Measure one program at PLACES places."""
    kernel, (first, *others) = Kernel(bundle, device), launches(bundle, PLACES)
    kernel.launch(first)
    kernel.launch(others.pop())
    new = median_us([lambda launch=launch: kernel.link(launch) for launch in others])  # type: ignore[misc]
    kernel.launch(first)
    linked = kernel.link(first)
    warm = median_us([lambda: kernel.launch(first)] * 1000)
    return Row(name, new, warm, median_us([lambda: device.executor.run(linked)] * 1000))


def measure_batch(bundle: Bundle, device: Device) -> Batch:
    """Measure a batch of TILES tiles of consecutive sticks."""
    kernel, (first,) = Kernel(bundle, device), launches(bundle, 1)
    shape = kernel.signature_of(first)
    rows = np.array(first.addresses, np.int64) + 128 * np.arange(TILES)[:, None]
    batch = kernel.link_batch_at(shape, rows)
    device.executor.run_batch(batch)
    link = median_us([lambda: kernel.link_batch_at(shape, rows)] * 100)
    return Batch(TILES, link, median_us([lambda: device.executor.run_batch(batch)] * 100))


def measure_all() -> tuple[list[Row], Batch]:
    """Measure all programs, and the batch."""
    device = Device(threads=1)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        one = add(place / "one", 1, 1)
        rows = [
            measure("add, 1 core", one, device),
            measure("add, 32 cores", add(place / "many", 32, 32), device),
            measure("softmax, 5 executes", load_bundle(SOFTMAX), device),
            measure("loop of 1000 executes", loop(place / "loop", 1000), device),
        ]
        batch = measure_batch(one, device)
    return rows, batch


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; always exits 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launching", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    rows, batch = measure_all()
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "batch": asdict(batch)}))
        return 0
    for row in rows:
        print(
            f"{row.name:22} link at a new address {row.link_new_us:7.1f} us, launch at a known one "
            f"{row.launch_us:7.1f} us, of which running {row.run_us:7.1f} us"
        )
    print(
        f"batch of {TILES} one-stick adds: link {batch.link_us:.0f} us, run {batch.run_us:.0f} us"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
