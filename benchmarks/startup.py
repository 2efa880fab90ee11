"""What starting costs: `python -m benchmarks startup`, whole processes.

`spyre-run --help`, `import spyre`, and a small bundle that was run before.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.results import ROOT, Measurement

ROUNDS, QUICK_ROUNDS = 7, 3
RUN = ("-m", "spyre.cli.run")


def measure(quick: bool) -> Iterator[Measurement]:
    """Seconds; the bundle is run once before."""
    cases = {
        "import spyre": (("-c", "import spyre"), None),
        "spyre-run --help": ((*RUN, "--help"), 0.25),
        "spyre-run of a small bundle, not the first": (
            (*RUN, str(ROOT / "examples" / "add_loop"), "--quiet"),
            0.9,
        ),
    }
    for name, (arguments, target) in cases.items():
        _seconds(arguments)
        rounds = QUICK_ROUNDS if quick else ROUNDS
        times = tuple(_seconds(arguments) for _ in range(rounds))
        yield Measurement(name, "s", times, target=target)


def _seconds(arguments: tuple[str, ...]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=ROOT)
    return time.perf_counter() - begin
