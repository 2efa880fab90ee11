"""Sections whose times depend on the process: `python -m benchmarks.apart loops|launching`.

How fast a loop over one-stick executes is depends on where a process's memory lies: the same code
takes 130 ns in one process and 220 in the next, steadily. So these are measured once in each of
several processes, which print what they found as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

from benchmarks.results import ROOT, Measurement

PROCESSES, QUICK_PROCESSES = 7, 5


def loops() -> Iterator[Measurement]:
    """Nanoseconds per execute."""
    from benchmarks.overhead import measure_overheads
    from spyre.hw.device import Device

    found = measure_overheads(Device())
    yield Measurement("one-stick add in a loop, driver", "ns", (found.driver_ns,))
    yield Measurement("one-stick add, driven from Python", "ns", (found.python_ns,))


def launching() -> Iterator[Measurement]:
    """Microseconds of linking, launching and running."""
    from benchmarks.launching import measure_all

    rows, batch = measure_all()
    for row in [*map(asdict, rows), {"name": f"batch of {batch.tiles}", **asdict(batch)}]:
        name = row.pop("name")
        for key, value in row.items():
            if key.endswith("_us"):
                title = key.removesuffix("_us").replace("_", " ")
                yield Measurement(f"{name}: {title}", "us", (value,))


SECTIONS: dict[str, Callable[[], Iterator[Measurement]]] = {"loops": loops, "launching": launching}


def measured_apart(name: str) -> list[Measurement]:
    """One of SECTIONS in a new process."""
    command = [sys.executable, "-m", "benchmarks.apart", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return [
        Measurement(**{**row, "values": tuple(row["values"])}) for row in json.loads(done.stdout)
    ]


if __name__ == "__main__":
    print(json.dumps([asdict(row) for row in SECTIONS[sys.argv[1]]()]))
