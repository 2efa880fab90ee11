"""What starting costs: `python -m benchmarks startup`, whole processes.

`spyre-run --help`, `import spyre`, and a small bundle that was run before.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.results import ROOT, Measurement
from benchmarks.sampling import progress, reference

ROUNDS, QUICK_ROUNDS = 9, 4
RUN = ("-m", "spyre.cli.run")


def measure(quick: bool) -> Iterator[Measurement]:
    """Seconds; the bundle is run once before."""
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


def _seconds(arguments: tuple[str, ...]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=ROOT)
    return time.perf_counter() - begin
