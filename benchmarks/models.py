"""Small models: `python -m benchmarks models`: eager, compiled, tiled, and torch CPU in turn.

Weights and inputs are random, float16 on the card and float32 on the CPU; *compiled, tiles* is with
automatic tiling (`spyre.auto_tile`). Of every form on the card also simulated time, HBM bytes and
launches, and how far its result is from the CPU's. A ratio above 1 means that the card is faster
than torch on the CPU, or compiled faster than eager.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.progress import progress
from benchmarks.reference import reference
from benchmarks.results import Measurement, ratio
from benchmarks.small_models import Model, models
from benchmarks.timing import PAUSE_SECONDS, QUICK_PAUSE_SECONDS, sweeps
from spyre.hw.cost.machine_file import default_machine
from spyre.hw.cost.program_counts import ProgramCounts
from spyre.torch_backend import autoload
from spyre.torch_backend.inductor.design_point import (
    call_seconds,
    compiled_with,
    counted_call,
    forget_compiled,
)

ROUNDS, QUICK_ROUNDS = 9, 5
EAGER, COMPILED, TILED, CPU = "eager", "compiled", "compiled, tiles", "torch CPU"
TOLERANCE = 0.05
Call = Callable[[], object]


@dataclass(frozen=True)
class Prepared:
    """A model in all its forms; ``counts`` and ``errors`` of those on the card."""

    sides: Mapping[str, Call]
    counts: Mapping[str, ProgramCounts]
    errors: Mapping[str, float]


def measure(quick: bool) -> Iterator[Measurement]:
    """All models."""
    autoload()
    prepared = {model.name: prepare(model) for model in models(quick)}
    times = sweeps(
        {name: found.sides for name, found in prepared.items()},
        QUICK_ROUNDS if quick else ROUNDS,
        QUICK_PAUSE_SECONDS if quick else PAUSE_SECONDS,
    )
    for name, found in prepared.items():
        yield from measurements(name, found, times[name])
    forget_compiled()


def prepare(model: Model) -> Prepared:
    """Compile the forms, and note what each launches and how far off its result is."""
    torch.manual_seed(0)
    on_cpu, x = model.make().eval(), torch.rand(model.sizes)
    card: Any = copy.deepcopy(on_cpu).half().to("spyre")
    forms = {
        EAGER: card,
        COMPILED: compiled_with(card, {}, {}),
        TILED: compiled_with(card, {"auto_tile": True}, {}),
    }
    placed = [x.half().to("spyre")]
    with torch.no_grad():
        expected = on_cpu(x)
    counts, errors = {}, {}
    for side, form in forms.items():
        progress.at(f"{model.name}, {side}: first call")
        counts[side] = counted_call(form, placed)
        with torch.no_grad():
            errors[side] = worst(form(*placed), expected)
        reference.tick()
    sides = {side: partial(call_seconds, form, placed) for side, form in forms.items()}
    return Prepared({**sides, CPU: partial(call_seconds, on_cpu, [x])}, counts, errors)


def worst(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return float((found.cpu().float() - expected).abs().max() / expected.abs().max())


def measurements(
    name: str, found: Prepared, times: Mapping[str, Sequence[float]]
) -> Iterator[Measurement]:
    """What is known of one model."""
    for side, seconds in times.items():
        milliseconds = tuple(s * 1e3 for s in seconds)
        yield Measurement(f"{name}: {side}", "ms", milliseconds, compared=side != CPU)
    for side, counted in found.counts.items():
        simulated = counted.time(default_machine()).total_ns / 1e3
        yield Measurement(f"{name}: {side}: simulated", "us", (simulated,), exact=True)
        yield Measurement(f"{name}: {side}: HBM", "bytes", (counted.hbm_bytes,), exact=True)
        yield Measurement(f"{name}: {side}: launches", "", (counted.launches,), exact=True)
        error = (found.errors[side],)
        yield Measurement(f"{name}: {side}: worst error", "", error, exact=True, target=TOLERANCE)
    yield ratio(f"{name}: compiled against eager", times[EAGER], times[COMPILED])
    yield ratio(f"{name}: tiles against compiled", times[COMPILED], times[TILED])
    yield ratio(f"{name}: compiled against {CPU}", times[CPU], times[COMPILED])
