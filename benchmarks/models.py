"""Small models: `python -m benchmarks models`: eager, compiled, and torch on the CPU in turn.

Weights and inputs are random, float16 on the card and float32 on the CPU. A ratio above 1 means
that the card is faster than torch on the CPU, or compiled faster than eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.results import Measurement, ratio
from benchmarks.timing import samples
from spyre.hw.cost.machine_file import default_machine
from spyre.torch_backend import autoload
from spyre.torch_backend.inductor.design_point import call_seconds, counted_call

ROUNDS, QUICK_ROUNDS = 7, 3


def models(quick: bool) -> dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]]:
    """A model and the sizes of its input by name."""
    width = 128 if quick else 512
    rows = 64 if quick else 256

    def perceptron() -> torch.nn.Module:
        wide = torch.nn.Linear(width, 4 * width)
        return torch.nn.Sequential(wide, torch.nn.ReLU(), torch.nn.Linear(4 * width, width))

    def encoder() -> torch.nn.Module:
        return torch.nn.TransformerEncoderLayer(
            width, 4, 4 * width, batch_first=True, norm_first=True, activation="gelu"
        )

    found: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
        f"perceptron {rows}x{width}": (perceptron, (rows, width))
    }
    if not quick:
        found[f"encoder layer 2x{rows}x{width}"] = (encoder, (2, rows, width))
    return found


def measure(quick: bool) -> Iterator[Measurement]:
    """All models."""
    autoload()
    for name, (make, sizes) in models(quick).items():
        torch.manual_seed(0)
        model = make().eval()
        x = torch.rand(sizes)
        yield from _measure(name, model, x, QUICK_ROUNDS if quick else ROUNDS)


def _measure(
    name: str, model: torch.nn.Module, x: torch.Tensor, rounds: int
) -> Iterator[Measurement]:
    import copy

    card: Any = copy.deepcopy(model).half().to("spyre")
    placed = x.half().to("spyre")
    torch.compiler.reset()
    compiled = torch.compile(card)
    counts = {"eager": counted_call(card, [placed]), "compiled": counted_call(compiled, [placed])}
    sides: dict[str, Callable[[], object]] = {
        "eager": partial(call_seconds, card, [placed]),
        "compiled": partial(call_seconds, compiled, [placed]),
        "torch CPU": partial(call_seconds, model, [x]),
    }
    found = samples(sides, rounds)
    for side, seconds in found.items():
        yield Measurement(f"{name}: {side}", "ms", tuple(s * 1e3 for s in seconds))
    for side, counted in counts.items():
        modelled = counted.time(default_machine()).total_ns / 1e3
        yield Measurement(f"{name}: {side}, modelled", "us", (modelled,), exact=True)
        yield Measurement(f"{name}: {side}, launches", "", (counted.launches,), exact=True)
    yield ratio(f"{name}: compiled against eager", found["eager"], found["compiled"])
    yield ratio(f"{name}: compiled against torch CPU", found["torch CPU"], found["compiled"])
