"""Compile times: `python -m benchmarks.compile [--json] [--block]`.

Seconds of the first call of a compiled function, after torch, Dynamo, Inductor and the device are
imported and an operation has run eagerly: *cold* with empty caches, *cached* in a new process that
finds Inductor's caches; each is the median of five processes. Garbage is collected before, because
a collection of torch's objects takes 0.2 s and would come at an unpredictable moment.
``--block``: also a Llama block of transformers, once. Targets in brackets.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.results import NO_TARGET, Figure, parser, show
from benchmarks.sampling import reference

ROUNDS = 5
SMALL = """
def function(a, b, c):
    return (a + b) * c
inputs = [torch.randn(100, 200).half().to("spyre") for _ in range(3)]
"""
BLOCK = """
from transformers import LlamaConfig, LlamaModel
config = LlamaConfig(
    hidden_size=512, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=4,
    num_hidden_layers=1, vocab_size=256,
)
model = LlamaModel(config).eval().to("spyre", torch.float16)
inputs = [torch.arange(32)[None].to("spyre")]
def function(ids):
    with torch.no_grad():
        return model(ids).last_hidden_state
"""
PROGRAM = """
import gc
import time
import torch
import torch._dynamo
import torch._inductor.compile_fx
from spyre.torch_backend import autoload
autoload()
{case}
function(*inputs)
torch.spyre.synchronize()
gc.collect()
start = time.perf_counter()
torch.compile(function)(*inputs)
torch.spyre.synchronize()
print("seconds", time.perf_counter() - start)
"""


def seconds(case: str, cache: Path) -> float:
    """Run ``case`` in a new process and return the seconds of the first call."""
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "SPYRE_FALLBACK": "silent"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(case=case)],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split("seconds ")[1])


def cold_and_cached(name: str, case: str, cold: float, cached: float, rounds: int) -> list[Figure]:
    """Measure one case cold and cached; return figures with their targets."""
    first, later = [], []
    for _ in range(rounds):
        reference.tick()
        reference.start_process()
        with tempfile.TemporaryDirectory() as place:
            first.append(seconds(case, Path(place)))
            later.append(seconds(case, Path(place)))
    return [
        Figure(f"{name}: cold", statistics.median(first), "s", cold),
        Figure(f"{name}: cached, new process", statistics.median(later), "s", cached),
    ]


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Measure the small function."""
    return cold_and_cached("(a+b)*c", SMALL, 3.0, 0.5, rounds)


def main() -> int:
    """Run the benchmark; always exits 0, since a slow machine is not an error."""
    options = parser(__doc__)
    options.add_argument("--block", action="store_true", help="a Llama block too")
    chosen = options.parse_args()
    figures = measure()
    if chosen.block:
        figures += cold_and_cached("Llama block, hidden 512", BLOCK, 40.0, NO_TARGET, 1)
    show(figures, chosen.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
