"""Tiled against untiled: `python -m benchmarks tiled`.

Every workload is compiled without tiles and with 2 to 32 of a dim; all forms and torch on the CPU
(float32) take turns. Per form: host time, and from what was launched modelled time, HBM bytes and
LX peak. A ratio above 1 means that tiles are faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.results import Measurement, ratio
from benchmarks.timing import samples
from spyre.hw.cost.machine_file import default_machine
from spyre.hw.cost.program_counts import ProgramCounts
from spyre.torch_backend.inductor.design_point import (
    ExampleTensor,
    call_seconds,
    compiled_with,
    counted_call,
    example_tensors,
    forget_compiled,
)

COUNTS, QUICK_COUNTS = (2, 4, 8, 16, 32), (4,)
ROUNDS, QUICK_ROUNDS = 5, 3
MOST_CALL_SECONDS = 1.0
"""Workloads whose calls take longer get QUICK_ROUNDS."""
CPU = "torch CPU"
Function = Callable[..., Any]


@dataclass(frozen=True)
class Workload:
    """``tensors``: (dims, sizes) each, dims by name. ``tiled``: names of the dims that are tiled,
    a form of the workload for each.
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
    """Large ones, or small ones of the same kinds."""
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


def measure(quick: bool) -> Iterator[Measurement]:
    """All workloads. A number of tiles that cannot be is left out."""
    for workload in workloads(quick):
        for dim in workload.tiled:
            yield from _measure(workload, dim, quick)
            forget_compiled()


def _measure(workload: Workload, dim: str, quick: bool) -> Iterator[Measurement]:
    tensors = example_tensors(workload.examples)
    host = [tensor.cpu().float() for tensor in tensors]
    forms: dict[int, Function] = {}
    counts: dict[int, ProgramCounts] = {}
    for tiles in (1, *(QUICK_COUNTS if quick else COUNTS)):
        if _fits(workload, dim, tiles):
            forms[tiles] = compiled_with(workload.function, {}, {dim: tiles})
            counts[tiles] = counted_call(forms[tiles], tensors)
    sides: dict[str, Callable[[], object]] = {
        str(tiles): partial(call_seconds, form, tensors) for tiles, form in forms.items()
    }
    sides[CPU] = partial(workload.function, *host)
    slow = call_seconds(forms[1], tensors) > MOST_CALL_SECONDS
    found = samples(sides, QUICK_ROUNDS if quick or slow else ROUNDS)
    name = f"{workload.name}, {dim}"
    yield from _described(name, workload.name, dim, counts, found)


def _fits(workload: Workload, dim: str, tiles: int) -> bool:
    """Tiles are whole; of a dim along sticks they are whole sticks."""
    of_sticks = any(list(tensor)[-1] == dim for tensor in workload.tensors)
    size = next(tensor[dim] for tensor in workload.tensors if dim in tensor)
    return size % (tiles * (64 if of_sticks else 1)) == 0


def _described(
    name: str,
    workload: str,
    dim: str,
    counts: Mapping[int, ProgramCounts],
    found: Mapping[str, Sequence[float]],
) -> Iterator[Measurement]:
    whole = found["1"]
    for tiles, counted in counts.items():
        labels = {"workload": workload, "dim": dim, "tiles": tiles}
        title, host = f"{name}: {tiles} tiles", found[str(tiles)]
        modelled = counted.time(default_machine()).total_ns / 1e3
        times = tuple(seconds * 1e3 for seconds in host)
        yield Measurement(f"{title}: host", "ms", times, labels=labels)
        yield Measurement(f"{title}: modelled", "us", (modelled,), exact=True, labels=labels)
        yield Measurement(f"{title}: HBM", "bytes", (counted.hbm_bytes,), exact=True, labels=labels)
        yield Measurement(
            f"{title}: LX peak", "bytes", (counted.lx_peak_bytes,), exact=True, labels=labels
        )
        if tiles > 1:
            yield ratio(f"{title}: host, against untiled", whole, host, labels=labels)
    yield ratio(f"{name}: untiled against {CPU}", found[CPU], whole)
