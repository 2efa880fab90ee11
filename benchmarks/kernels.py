"""Kernel benchmark: `python -m benchmarks.kernels [--only TEXT] [--threads N] [--json]`.

Each workload goes through the whole engine and alternates, in one process and with pauses of
150 ms, with numpy or torch CPU in float32 on the same number of threads; the lower quartile of at
least 15 rounds counts. A ratio above 1 means that the simulated card is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass

os.environ.pop("OPENBLAS_CORETYPE", None)  # a forced core type may halve numpy's matmul

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.launching import Overheads, measure_overheads
from benchmarks.sampling import PAUSE_SECONDS, ROUNDS, alternate
from benchmarks.workloads import Workload, Workloads
from spyre import config
from spyre.hw.device.device import Device


@dataclass(frozen=True)
class Row:
    """One line of the result: milliseconds are lower quartiles."""

    name: str
    milliseconds: float
    against: str
    reference_milliseconds: float
    ratio: float
    target: float
    gigabytes_per_second: float
    gigaflops: float
    rounds: int


def measure(workload: Workload, rounds: int) -> Row:
    """Time both sides of ``workload`` in turn."""
    timings = alternate({"card": workload.run, "reference": workload.reference}, rounds)
    card, reference = timings["card"].lower_quartile, timings["reference"].lower_quartile
    return Row(
        workload.name,
        card * 1e3,
        workload.against,
        reference * 1e3,
        reference / card,
        workload.target,
        workload.bytes_moved / card / 1e9,
        workload.operations / card / 1e9,
        rounds,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; always exits 0, since a slow machine is not an error."""
    options = _parse(arguments)
    device = Device(threads=options.threads)
    rows = []
    for workload in Workloads(device).all():
        if options.only and options.only not in workload.name:
            continue
        rows.append(measure(workload, max(options.rounds, ROUNDS)))
        if not options.json:
            print(f"  {rows[-1].name}: {rows[-1].ratio:.2f}x", file=sys.stderr, flush=True)
    overheads = measure_overheads(device)
    if options.json:
        print(json.dumps(_as_json(rows, overheads, device)))
    else:
        _print(rows, overheads)
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", help="workloads whose name contains TEXT")
    parser.add_argument("--threads", type=int, default=config.thread_count())
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"at least {ROUNDS}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def _as_json(rows: list[Row], overheads: Overheads, device: Device) -> dict[str, object]:
    return {
        "rows": [asdict(row) for row in rows],
        "overheads": asdict(overheads),
        "machine": platform.processor() or platform.machine(),
        "threads": device.threads,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "method": f"alternating, pauses of {PAUSE_SECONDS * 1e3:.0f} ms, lower quartile",
    }


def _print(rows: list[Row], overheads: Overheads) -> None:
    table = Table(title="simulated card against the host, lower quartile of alternating runs")
    for heading in ("workload", "ms", "GB/s", "GFLOP/s", "against", "ms", "ratio", "target"):
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    for row in rows:
        style = "" if row.ratio >= row.target else "yellow"
        table.add_row(
            row.name,
            f"{row.milliseconds:.3f}",
            f"{row.gigabytes_per_second:.1f}",
            f"{row.gigaflops:.0f}" if row.gigaflops else "",
            row.against,
            f"{row.reference_milliseconds:.3f}",
            f"{row.ratio:.2f}",
            f"{row.target:g}",
            style=style,
        )
    console = Console(width=110)
    console.print(table)
    console.print(
        f"fixed cost of a one-stick add: {overheads.driver_ns:.0f} ns in the compiled driver, "
        f"{overheads.python_ns:.0f} ns driven from Python"
    )


if __name__ == "__main__":
    raise SystemExit(main())
