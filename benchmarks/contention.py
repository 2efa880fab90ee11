"""Card and torch's CPU threads by turns: `python -m benchmarks beside`.

A multiplication on the card and the same on torch's CPU threads, each alone and right after the
other. If the workers of one pool kept spinning on the CPUs after their work, the other side would
be slower. A sample is one call. The operands of both sides do not fit into the cache together,
which alone makes the card's call slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.results import Measurement, ratio
from benchmarks.sampling import progress

SIZES, QUICK_SIZES = (2048, 4096), (512, 1024)
ROUNDS, QUICK_ROUNDS = 40, 10
PAUSE_SECONDS = 0.01
Call = Callable[[], object]


def measure(quick: bool) -> Iterator[Measurement]:
    """Measure both sides alone, and after each other."""
    from spyre.torch_backend import autoload

    autoload()
    sizes = QUICK_SIZES if quick else SIZES
    host = [torch.randn(sizes) for _ in range(2)]
    card = [tensor.half().to("spyre") for tensor in host]

    def on_card() -> None:
        torch.mul(*card)
        torch.accelerator.synchronize()

    def on_cpu() -> None:
        torch.mul(*host)

    for name, own, other in (("card", on_card, on_cpu), ("torch CPU", on_cpu, on_card)):
        progress.at(f"{name}, alone and after the other")
        rounds = QUICK_ROUNDS if quick else ROUNDS
        pairs = [(_after(own, own), _after(other, own)) for _ in range(rounds)]
        alone, after = ([pair[k] for pair in pairs] for k in range(2))
        for title, seconds in ((f"{name}: alone", alone), (f"{name}: after the other", after)):
            yield Measurement(title, "ms", tuple(s * 1e3 for s in seconds))
        yield ratio(f"{name}: alone over after the other", alone, after)


def _after(first: Call, timed: Call) -> float:
    """Return the seconds of ``timed`` right after ``first``."""
    time.sleep(PAUSE_SECONDS)
    first()
    begin = time.perf_counter()
    timed()
    return time.perf_counter() - begin
