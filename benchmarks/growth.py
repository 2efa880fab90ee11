"""Growth of times with the amount of work: `python -m benchmarks growth`.

Processor time by number of elements, executes, loop trips, simulated cores, launches, streams,
eager steps, and operations of a compiled function; host memory that is kept, by executes, loop
trips and programs. Each curve ends with its exponent: the slope of a line through the logarithms of
its last three points. 1 is linear; a constant part makes it less.
"""

from __future__ import annotations

import gc
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch

from benchmarks.results import Measurement
from benchmarks.sampling import progress, reference
from benchmarks.scaling import operations
from benchmarks.workloads import link_operations, upload
from spyre.hw.device.device import Device
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.runtime.flex.device import FlexDevice
from spyre.torch_backend import autoload
from spyre.torch_backend.inductor.design_point import forget_compiled
from tests.runtime.flex import kernels

MOST = 1.15
"""Largest exponent of work that grows linearly, with the noise of a fit."""
FITTED = 3
"""Last points of a curve that its exponent is fitted to."""
ROUNDS, QUICK_ROUNDS = 5, 2
Curve = Mapping[int, Callable[[], object]]
"""The call to measure, by amount of work."""


def measure(quick: bool) -> Iterator[Measurement]:
    """Measure all curves."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    device = Device(threads=1)
    values = np.random.default_rng(0).standard_normal((2048, 2048), dtype=np.float32)
    for region in range(2):
        upload(device, region, values)
    yield from _curve("elements of an add", _elements(device), rounds)
    for title, looped in (("executes written out", False), ("trips of a loop", True)):
        yield from _curve(f"running {title}", _executes(device, looped), rounds)
        links = _links(device, looped)
        yield from _curve(f"linking {title}", links, rounds)
        if not quick:
            yield from _held(f"memory of {title}", {n: links[n] for n in (50, 200, 800)})
    yield from _curve("simulated cores of an add", _cores(device), rounds, most=0.15)
    with tempfile.TemporaryDirectory() as directory:
        card = FlexDevice(Device(threads=1))
        yield from _curve("launches on a stream", _launches(card, Path(directory), 1), rounds)
        yield from _curve("launches on 32 streams", _launches(card, Path(directory), 32), rounds)
        card.close()
    autoload()
    yield from _curve("eager steps of a decoder", _steps(), rounds)
    if not quick:
        yield from _held("memory of kept programs", _programs())
        yield from _curve("compiled operations", _compiled(), 1)
        forget_compiled()


def _curve(name: str, calls: Curve, rounds: int, most: float = MOST) -> Iterator[Measurement]:
    """Measure each call ``rounds`` times, in turn, and fit the exponent to the best times."""
    progress.at(name)
    times: dict[int, list[float]] = {amount: [] for amount in calls}
    for number in range(rounds + (rounds > 1)):
        for amount, call in calls.items():
            begin = time.process_time()
            call()
            if number or rounds == 1:  # the first call of several prepares
                times[amount].append((time.process_time() - begin) * 1e3)
        reference.tick()
    for amount, milliseconds in times.items():
        yield Measurement(f"{name}: {amount}", "ms", tuple(milliseconds))
    best = [min(milliseconds) for milliseconds in times.values()]
    slope = exponent(tuple(times)[-FITTED:], best[-FITTED:])
    yield Measurement(f"{name}: exponent", "", (slope,), target=most, compared=False)


def _held(name: str, calls: Curve) -> Iterator[Measurement]:
    """Measure the host memory that the result of each call, and all else it leaves, takes."""
    progress.at(name)
    amounts = tuple(calls)
    held = []
    for amount in (amounts[0], *amounts):  # the first call leaves more: what all of them use
        gc.collect()
        tracemalloc.start()
        kept = calls[amount]()
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        del kept
    held = held[1:]
    for amount, size_bytes in zip(amounts, held, strict=True):
        yield Measurement(f"{name}: {amount}", "KiB", (size_bytes / 1024,))
    slope = exponent(amounts[-FITTED:], held[-FITTED:])
    yield Measurement(f"{name}: exponent", "", (slope,), target=MOST, compared=False)
    each = (held[-1] - held[-2]) / (amounts[-1] - amounts[-2])
    yield Measurement(f"{name}: each", "B", (each,))


def exponent(amounts: tuple[int, ...], values: Sequence[float]) -> float:
    """Return the power of the amount that the values grow with, by least squares."""
    slope, _ = np.polyfit(np.log(amounts), np.log(values), 1)
    return float(slope)


def _elements(device: Device) -> Curve:
    sizes = (256, 512, 1024, 2048)
    programs = {n: link_operations(device, [operations(n, 32)["add"]]) for n in sizes}
    return {n * n: partial(_repeated, partial(device.executor.run, p)) for n, p in programs.items()}


def _cores(device: Device) -> Curve:
    counts = (1, 2, 4, 8, 16, 32)
    programs = {n: link_operations(device, [operations(1024, n)["add"]]) for n in counts}
    return {n: partial(_repeated, partial(device.executor.run, p)) for n, p in programs.items()}


def _link(device: Device, count: int, looped: bool):
    a, b, y = (HostOperand(region * REGION_BYTES) for region in range(3))
    spec = pointwise("add", (1, 64), [a, b], y, {"mb": 1})
    return link_operations(device, [spec] * (1 if looped else count), count if looped else 1)


def _executes(device: Device, looped: bool) -> Curve:
    programs = {n: _link(device, n, looped) for n in (50, 200, 800, 3200)}
    return {n: partial(_repeated, partial(device.executor.run, p)) for n, p in programs.items()}


def _links(device: Device, looped: bool) -> Curve:
    return {n: partial(_link, device, n, looped) for n in (50, 200, 800, 3200)}


def _repeated(call: Callable[[], object]) -> None:
    for _ in range(10):
        call()


def _launches(card: FlexDevice, directory: Path, streams: int) -> Curve:
    plan = kernels.load(card, kernels.add(directory / f"stick{streams}"))
    tensors = [card.to_device(np.ones(kernels.STICK, np.float16)) for _ in range(3)]
    chosen = [card.streams.take() for _ in range(streams)]

    def launch(count: int) -> None:
        for number in range(count):
            chosen[number % streams].launch(plan, tensors)
        card.synchronize()

    return {count: partial(launch, count) for count in (64, 256, 1024, 4096)}


def _steps() -> Curve:
    weight = torch.rand(64, 64).half().to("spyre")
    cache = torch.zeros(1024, 64, dtype=torch.float16, device="spyre")

    def decode(count: int) -> None:
        x = torch.ones(1, 64, dtype=torch.float16, device="spyre")
        for number in range(count):
            cache[number] = x[0]
            x = torch.softmax(x @ cache.t(), -1) @ cache @ weight
        torch.spyre.synchronize()

    return {count: partial(decode, count) for count in (16, 64, 256)}


def _programs() -> Curve:
    numbers = count(1)

    def launch(programs: int) -> None:
        for rows in islice(numbers, programs):
            x = torch.ones(32 * rows, 64, dtype=torch.float16, device="spyre")
            x + x
        torch.spyre.synchronize()

    return {programs: partial(launch, programs) for programs in (4, 8, 16)}


def _compiled() -> Curve:
    x = torch.rand(64, 64).half().to("spyre")

    def build(count: int) -> None:
        def chain(x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = torch.softmax(x @ x, -1)
            return x

        torch.compile(chain, dynamic=False, fullgraph=True)(x)
        torch.spyre.synchronize()

    build(1)
    return {count: partial(build, count) for count in (4, 8, 16, 32)}
