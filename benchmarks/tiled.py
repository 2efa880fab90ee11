"""Tiled against untiled: `python -m benchmarks tiled`.

Every workload is compiled without tiles and with 2 to 32 tiles of a dim; all forms and torch on the
CPU (float32) take turns, a round of every workload at a time. Per form: host time, and simulated
time, HBM bytes and LX peak of its launches; :mod:`.report` makes a row of them. A ratio above 1
means that tiles are faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.report import Kind
from benchmarks.results import Measurement, ratio
from benchmarks.sampling import PAUSE_SECONDS, QUICK_PAUSE_SECONDS, progress, reference, sweeps
from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.models import kernel_ns
from spyre.hw.counters.program import LaunchCounts
from spyre.torch_backend.inductor.design_point import (
    ExampleTensor,
    call_seconds,
    compiled_with,
    counted_call,
    example_tensors,
    forget_compiled,
)

COUNTS, QUICK_COUNTS = (2, 4, 8, 16, 32), (4,)
ROUNDS, SLOW_ROUNDS, QUICK_ROUNDS = 7, 4, 5
MOST_CALL_SECONDS = 0.5
"""Workloads whose calls take longer get SLOW_ROUNDS."""
CPU = "torch CPU"
Function = Callable[..., Any]
Call = Callable[[], object]


@dataclass(frozen=True)
class Workload:
    """``tensors``: sizes by name of the dim, for each argument. ``tiled``: names of the dims that
    are tiled, one at a time.
    """

    name: str
    function: Function
    tensors: tuple[Mapping[str, int], ...]
    tiled: tuple[str, ...]

    @property
    def examples(self) -> list[ExampleTensor]:
        return [ExampleTensor(tuple(t.values()), tuple(t)) for t in self.tensors]


def chain(x: Any, y: Any) -> Any:
    return ((x + y) * y + x) * y


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def rms_norm(x: Any, weight: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def mlp(x: Any, up: Any, down: Any) -> Any:
    return torch.relu(x @ up) @ down


def attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def matmul(a: Any, b: Any) -> Any:
    return a @ b


def workloads(quick: bool) -> list[Workload]:
    """Return large workloads, or small ones of the same kinds."""
    side = 512 if quick else 8192
    square = {"rows": side, "columns": side}
    rows, width, inner = (256, 128, 256) if quick else (4096, 1024, 4096)
    heads, length = (4, 128) if quick else (32, 1024)
    m = 512 if quick else 2048
    head = {"heads": heads, "length": length, "depth": 64}
    return [
        Workload(f"add-mul chain {side}x{side}", chain, (square, square), ("rows",)),
        Workload(f"softmax {side}x{side}", softmax, (square,), ("rows",)),
        Workload(f"rms_norm {side}x{side}", rms_norm, (square, {"columns": side}), ("rows",)),
        Workload(
            f"MLP {rows}x{width}x{inner}",
            mlp,
            ({"rows": rows, "width": width}, {"width": width, "inner": inner},
             {"inner": inner, "width": width}),
            ("rows",),
        ),
        Workload(f"attention {heads}x{length}x64", attention, (head, head, head), ("heads",)),
        Workload(
            f"matmul {m}x{m}x{m}", matmul, ({"M": m, "K": m}, {"K": m, "N": m}), ("M", "N", "K")
        ),
    ]  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """A compiled workload tiled along a dim: ``forms`` and their ``counts`` by number of tiles."""

    workload: str
    dim: str
    forms: Mapping[int, Call]
    counts: Mapping[int, LaunchCounts]
    on_cpu: Call
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.workload}, {self.dim}"

    def labels(self, tiles: int, kind: Kind) -> dict[str, Any]:
        """Return the labels of a measurement of one form."""
        return {"workload": self.workload, "dim": self.dim, "tiles": tiles, "kind": str(kind)}

    @property
    def sides(self) -> dict[str, Call]:
        return {**{str(tiles): form for tiles, form in self.forms.items()}, CPU: self.on_cpu}


def measure(quick: bool) -> Iterator[Measurement]:
    """Measure all workloads, without numbers of tiles that do not divide the dim."""
    pairs = [(workload, dim) for workload in workloads(quick) for dim in workload.tiled]
    prepared = {}
    for workload, dim in pairs:
        found = prepare(workload, dim, quick)
        prepared[found.name] = found
    times = sweeps(
        {name: found.sides for name, found in prepared.items()},
        {name: found.rounds for name, found in prepared.items()},
        QUICK_PAUSE_SECONDS if quick else PAUSE_SECONDS,
    )
    for name, found in prepared.items():
        yield from measurements(found, times[name])
    forget_compiled()


def prepare(workload: Workload, dim: str, quick: bool) -> Prepared:
    """Compile every form, and count its launches."""
    tensors = example_tensors(workload.examples)
    host = [tensor.cpu().float() for tensor in tensors]
    forms: dict[int, Callable[[], float]] = {}
    counts: dict[int, LaunchCounts] = {}
    for tiles in (1, *(QUICK_COUNTS if quick else COUNTS)):
        if _fits(workload, dim, tiles):
            progress.at(f"compiling {workload.name}, {dim}, {tiles} tiles")
            compiled = compiled_with(workload.function, {}, {dim: tiles})
            counts[tiles] = counted_call(compiled, tensors)
            forms[tiles] = partial(call_seconds, compiled, tensors)
            reference.tick()
    slow = forms[1]() > MOST_CALL_SECONDS
    rounds = QUICK_ROUNDS if quick else SLOW_ROUNDS if slow else ROUNDS
    on_cpu = partial(workload.function, *host)
    return Prepared(workload.name, dim, forms, counts, on_cpu, rounds)


def _fits(workload: Workload, dim: str, tiles: int) -> bool:
    """Return True if the tiles are equal, and consist of whole sticks if the dim is in sticks."""
    of_sticks = any(list(tensor)[-1] == dim for tensor in workload.tensors)
    size = next(tensor[dim] for tensor in workload.tensors if dim in tensor)
    return size % (tiles * (64 if of_sticks else 1)) == 0


def measurements(found: Prepared, times: Mapping[str, Sequence[float]]) -> Iterator[Measurement]:
    """Yield the measurements of each form, and of torch on the CPU."""
    whole, on_cpu = times["1"], times[CPU]
    for tiles, counted in found.counts.items():
        of = partial(_of_form, found, tiles)
        host = times[str(tiles)]
        simulated = kernel_ns(counted.operations, default_machine()).total_ns / 1e3
        yield of(Kind.HOST, "ms", [seconds * 1e3 for seconds in host], False)
        yield of(Kind.SIMULATED, "us", [simulated], True)
        yield of(Kind.HBM, "bytes", [counted.hbm_bytes], True)
        yield of(Kind.LX, "bytes", [counted.lx_peak_bytes], True)
        if tiles > 1:
            labels = found.labels(tiles, Kind.AGAINST)
            yield ratio(f"{found.name}: {tiles} tiles: {Kind.AGAINST}", whole, host, labels=labels)
    milliseconds = tuple(seconds * 1e3 for seconds in on_cpu)
    labels = found.labels(1, Kind.TORCH)
    yield Measurement(f"{found.name}: {CPU}", "ms", milliseconds, compared=False, labels=labels)
    yield ratio(f"{found.name}: untiled against {CPU}", on_cpu, whole)


def _of_form(
    found: Prepared, tiles: int, kind: Kind, unit: str, values: Sequence[float], exact: bool
) -> Measurement:
    return Measurement(
        f"{found.name}: {tiles} tiles: {kind}",
        unit,
        tuple(values),
        exact,
        labels=found.labels(tiles, kind),
    )
