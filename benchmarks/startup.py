"""Start-up times of whole processes: `python -m benchmarks startup`.

`spyre-run --help`, `import spyre`, a small bundle that was run before, and a softmax with an empty
cache, whose kernels are compiled in the background; each sample waits for that to end.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

from benchmarks.results import ROOT, Measurement
from benchmarks.sampling import progress, reference

ROUNDS, QUICK_ROUNDS = 9, 4
FIRST_RUNS, QUICK_FIRST_RUNS = 3, 1
RUN = ("-m", "spyre.cli.run")


def measure(quick: bool) -> Iterator[Measurement]:
    """Measure the seconds of each; the bundle is run once before."""
    small = (*RUN, str(ROOT / "examples" / "add_loop"), "--quiet")
    cases: dict[str, tuple[tuple[str, ...], float | None]] = {
        "import spyre": (("-c", "import spyre"), None),
        "spyre-run --help": ((*RUN, "--help"), 0.25),
        "spyre-run of a small bundle, not the first": (small, 0.9),
    }
    _seconds(small)
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(QUICK_ROUNDS if quick else ROUNDS):
        for name, (arguments, _) in cases.items():
            progress.at(name)
            reference.tick()
            reference.start_process()
            times[name].append(_seconds(arguments))
    for name, (_, target) in cases.items():
        yield Measurement(name, "s", tuple(times[name]), target=target)
    name = "spyre-run of a softmax, no kernels in the cache"
    progress.at(name)
    first = tuple(_first_run() for _ in range(QUICK_FIRST_RUNS if quick else FIRST_RUNS))
    yield Measurement(name, "s", first, target=3.0)


def _first_run() -> float:
    reference.tick()
    reference.start_process()
    with tempfile.TemporaryDirectory() as cache:
        arguments = (*RUN, str(ROOT / "examples" / "softmax"), "--quiet")
        seconds = _seconds(arguments, {"SPYRE_CACHE_DIR": cache, "SPYRE_MEANWHILE": "1"})
        directory = os.open(cache, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)  # whoever compiles holds it
        os.close(directory)
    return seconds


def _seconds(arguments: tuple[str, ...], variables: Mapping[str, str] | None = None) -> float:
    environment = {**os.environ, **(variables or {})}
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], check=True, capture_output=True, cwd=ROOT, env=environment
    )
    return time.perf_counter() - begin
