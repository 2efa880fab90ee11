"""Run PyTorch's operator database on a device and compare with the CPU in float32.

Exit codes: 0 when at least 97 % of the operators of every dtype pass with all their samples,
nothing is wrong, hangs or crashes, and the operators that must run on the simulated cores do;
1 when not; 2 when nothing could run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console

from tests.opinfo.outcome import OpResult
from tests.opinfo.pool import Job, PoolOptions, run_jobs
from tests.opinfo.process import WorkerDied
from tests.opinfo.report import as_json, print_report, write_json
from tests.opinfo.samples import DATABASE, DTYPES, load_database, selected
from tests.opinfo.summary import shortcomings


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    database = load_database(options.database)
    keys = {dtype: selected(database, dtype, options.ops) for dtype in options.dtype}
    jobs = [Job(op, dtype) for dtype in options.dtype for op in keys[dtype]]
    if options.list:
        print("\n".join(f"{job.dtype} {job.op}" for job in jobs))
        return 0
    start = time.perf_counter()
    pool = PoolOptions(
        options.device, options.jobs, options.timeout, options.limit, options.database
    )
    try:
        results = run_jobs(jobs, pool, _Progress(len(jobs), options.quiet))
    except WorkerDied as error:
        print(f"no worker starts: {error}", file=sys.stderr)
        return 2
    _report(results, options, time.perf_counter() - start)
    return 1 if shortcomings(results) else 0


class _Progress:
    """One line per operator that does not pass, with how far the run is."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total, self.quiet, self.count = total, quiet, 0

    def __call__(self, result: OpResult) -> None:
        self.count += 1
        if not self.quiet and result.counted and not result.passes:
            where = f"{self.count}/{self.total} {result.dtype} {result.op}"
            print(f"{where}: {result.outcome}: {result.reason}", file=sys.stderr, flush=True)


def _report(results: list[OpResult], options: argparse.Namespace, seconds: float) -> None:
    shown = {name: value for name, value in vars(options).items() if name != "json"}
    data = as_json(results, shown, seconds)
    if options.json == "-":
        print(json.dumps(data))
        return
    if options.json:
        write_json(Path(options.json), data)
    print_report(results, Console(width=None if sys.stdout.isatty() else 160))
    print(f"{seconds:.0f} s", file=sys.stderr)


def _dtypes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(f"{name}: one of {', '.join(DTYPES)}")
    return names


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    add = parser.add_argument
    add("--dtype", type=_dtypes, default=["float16", "float32"], metavar="NAMES")
    add("--device", default="spyre", metavar="NAME", help="device under test (default: spyre)")
    add("--json", nargs="?", const="-", metavar="FILE", help="write everything (default: print it)")
    add("--ops", metavar="REGEX", help="only operators whose name/variant matches")
    add("--limit", type=int, metavar="N", help="at most N samples per operator")
    add("--jobs", type=int, default=1, metavar="N", help="worker processes")
    add("--timeout", type=float, default=300.0, metavar="SECONDS", help="per operator")
    add("--database", default=DATABASE, metavar="MODULE:NAME", help="other operators")
    add("--list", action="store_true", help="print the operators and stop")
    add("--quiet", action="store_true", help="no lines while it runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
