"""Small models of common kinds, in plain torch, with random weights.

Blocks as their papers define them, one layer each: enough for every kind of operation, small
enough to be compiled in seconds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.results import Measurement, ratio
from benchmarks.sampling import PAUSE_SECONDS, QUICK_PAUSE_SECONDS, progress, reference, sweeps
from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.models import kernel_ns
from spyre.hw.counters.program import LaunchCounts
from spyre.torch_backend import autoload
from spyre.torch_backend.inductor.design_point import (
    call_seconds,
    compiled_with,
    counted_call,
    forget_compiled,
)

DEPTH = 64
"""Elements of a head, as in BERT, ViT and small Llamas."""


@dataclass(frozen=True)
class Model:
    """``make``: makes the model in evaluation mode. ``sizes``: of its input, numbers in [0, 1)."""

    name: str
    make: Callable[[], nn.Module]
    sizes: tuple[int, ...]


def perceptron(width: int) -> nn.Module:
    """Two linear layers with a ReLU between."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


class Attention(nn.Module):
    """Self-attention. ``depth``: elements of a head; ``groups``: heads of keys and values;
    ``rotary``: length of the sequence for causal attention with rotary positions, else 0.
    """

    def __init__(self, width: int, depth: int, groups: int, bias: bool, rotary: int = 0) -> None:
        super().__init__()
        self.depth, self.groups, self.heads = depth, groups, width // depth
        self.query = nn.Linear(width, width, bias)
        self.key = nn.Linear(width, groups * self.depth, bias)
        self.value = nn.Linear(width, groups * self.depth, bias)
        self.output = nn.Linear(width, width, bias)
        self.rotary, self.causal = bool(rotary), bool(rotary)
        if rotary:
            turns = 10_000.0 ** (-torch.arange(0, self.depth, 2) / self.depth)
            angles = torch.outer(torch.arange(rotary), turns).repeat(1, 2)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())
            hidden = torch.full((rotary, rotary), -1e4).triu(1)
            self.register_buffer("hidden", hidden)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        if self.rotary:
            query, key = self._turned(query), self._turned(key)
        if self.groups < self.heads:
            shared = self.heads // self.groups
            key, value = (t.repeat_interleave(shared, 1) for t in (key, value))
        scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(self.depth))
        if self.causal:
            scores = scores + self.hidden
        found = (torch.softmax(scores, -1) @ value).transpose(1, 2)
        return self.output(found.reshape(x.shape))

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1, self.depth).transpose(1, 2)

    def _turned(self, x: Tensor) -> Tensor:
        half = self.depth // 2
        swapped = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * self.cos + swapped * self.sin


class EncoderLayer(nn.Module):
    """A BERT layer: attention and a GELU perceptron, each added and normalised afterwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width, DEPTH, width // DEPTH, bias=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x + self.attention(x))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Norm(nn.Module):
    """RMS norm with a weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5))


class LlamaBlock(nn.Module):
    """Causal attention with rotary positions and half as many key heads; a gated perceptron."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.attention = Attention(width, DEPTH, width // DEPTH // 2, bias=False, rotary=length)
        self.first, self.second = Norm(width), Norm(width)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        y = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class VisionBlock(nn.Module):
    """Flattened patches of an image, projected, with positions; then a BERT layer."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * 16 * 16, width)
        self.positions = nn.Parameter(torch.rand(patches, width) / 10)
        self.layer = EncoderLayer(width)
        self.head = nn.Linear(width, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x) + self.positions).mean(1))


def models(quick: bool) -> list[Model]:
    """Return all models, or two small ones."""
    if quick:
        return [
            Model("perceptron 64x256", lambda: perceptron(256), (64, 256)),
            Model("Llama block 1x64x256", lambda: LlamaBlock(256, 64), (1, 64, 256)),
        ]
    return [
        Model("perceptron 256x512", lambda: perceptron(512), (256, 512)),
        Model("BERT layer 2x256x512", lambda: EncoderLayer(512), (2, 256, 512)),
        Model("Llama block 1x256x512", lambda: LlamaBlock(512, 256), (1, 256, 512)),
        Model("ViT of one layer 2x256x512", lambda: VisionBlock(256, 512), (2, 256, 768)),
    ]


ROUNDS, QUICK_ROUNDS = 9, 5
EAGER, COMPILED, TILED, CPU = "eager", "compiled", "compiled, tiles", "torch CPU"
TOLERANCE = 0.05
Call = Callable[[], object]


@dataclass(frozen=True)
class Prepared:
    """The calls of a model in all forms; ``counts`` and ``errors`` of the forms on the card."""

    sides: Mapping[str, Call]
    counts: Mapping[str, LaunchCounts]
    errors: Mapping[str, float]


def measure(quick: bool) -> Iterator[Measurement]:
    """Measure all models."""
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
    """Compile the forms; count the launches and compute the error of each."""
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
    """Return the largest difference relative to the largest expected value."""
    return float((found.cpu().float() - expected).abs().max() / expected.abs().max())


def measurements(
    name: str, found: Prepared, times: Mapping[str, Sequence[float]]
) -> Iterator[Measurement]:
    """Yield the times, simulated times, bytes, launches and errors of one model."""
    for side, seconds in times.items():
        milliseconds = tuple(s * 1e3 for s in seconds)
        yield Measurement(f"{name}: {side}", "ms", milliseconds, compared=side != CPU)
    for side, counted in found.counts.items():
        simulated = kernel_ns(counted.operations, default_machine()).total_ns / 1e3
        yield Measurement(f"{name}: {side}: simulated", "us", (simulated,), exact=True)
        yield Measurement(f"{name}: {side}: HBM", "bytes", (counted.hbm_bytes,), exact=True)
        yield Measurement(f"{name}: {side}: launches", "", (counted.launches,), exact=True)
        error = (found.errors[side],)
        yield Measurement(f"{name}: {side}: worst error", "", error, exact=True, target=TOLERANCE)
    yield ratio(f"{name}: compiled against eager", times[EAGER], times[COMPILED])
    yield ratio(f"{name}: tiles against compiled", times[COMPILED], times[TILED])
    yield ratio(f"{name}: compiled against {CPU}", times[CPU], times[COMPILED])
