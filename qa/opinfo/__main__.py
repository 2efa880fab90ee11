"""Run PyTorch's operator database on a device in several ways and compare with the CPU.

Exit code 0: in each way, the share of supported operators that pass with all samples reaches the
way's bar, no result is wrong, no operator hangs or crashes, and the operators that must run on the
simulated cores do. 1: otherwise. 2: nothing could run. Failures listed in ``known.toml`` are
allowed; where it has a table for the way and the dtype, no others are.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from rich.console import Console

from qa.opinfo.outcome import OpResult
from qa.opinfo.pool import Job, Journal, PoolOptions, run_jobs
from qa.opinfo.process import WorkerDied
from qa.opinfo.report import as_json, print_report, write_json
from qa.opinfo.samples import DATABASE, DTYPES, load_database
from qa.opinfo.summary import shortcomings
from qa.opinfo.ways import WAYS, selected


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    database = load_database(options.database)
    jobs = [
        Job(op, dtype, way)
        for way in options.ways
        for dtype in options.dtype
        for op in selected(database, dtype, way, options.ops)
    ]
    piece, pieces = options.sample
    jobs = jobs[piece - 1 :: pieces]
    if options.list:
        print("\n".join(f"{job.way} {job.dtype} {job.op}" for job in jobs))
        return 0
    start = time.perf_counter()
    try:
        results = _run(jobs, options)
    except WorkerDied as error:
        print(f"no worker starts: {error}", file=sys.stderr)
        return 2
    _report(results, options, time.perf_counter() - start)
    return 1 if shortcomings(results) else 0


def _run(jobs: list[Job], options: argparse.Namespace) -> list[OpResult]:
    """Return the results already in the file ``--keep``, then those of the other jobs."""
    journal = Journal(options.keep)
    earlier = [journal.results[job] for job in jobs if job in journal.results]
    jobs = [job for job in jobs if job not in journal.results]
    progress = _Progress(len(jobs), options.quiet)

    def done(result: OpResult) -> None:
        journal.add(result)
        progress(result)

    pool = PoolOptions(
        options.device, options.jobs, options.timeout, options.limit, options.database
    )
    return earlier + run_jobs(jobs, pool, done)


EVERY = 50
"""Number of operators between two lines of progress."""


class _Progress:
    """Prints a line with the progress per operator that fails, and one per `EVERY` operators."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total, self.quiet, self.count = total, quiet, 0

    def __call__(self, result: OpResult) -> None:
        self.count += 1
        failed = result.counted and not result.passes
        if not self.quiet and (failed or self.count % EVERY == 0):
            where = f"{self.count}/{self.total} {result.way} {result.dtype} {result.op}"
            why = f"{result.outcome}: {result.reason}" if failed else result.outcome
            print(f"{where}: {why}", file=sys.stderr, flush=True)


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


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a function that reads a list of names of ``known``, separated by commas."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name}: one of {', '.join(known)}")
        return names

    return read


def piece_of(text: str) -> tuple[int, int]:
    """Return (K, N) of the text "K/N"."""
    piece, _, pieces = text.partition("/")
    if not (piece.isdecimal() and pieces.isdecimal() and 1 <= int(piece) <= int(pieces)):
        raise argparse.ArgumentTypeError(f"{text}: a piece and their number, such as 2/10")
    return int(piece), int(pieces)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m qa.opinfo", description=__doc__)
    add = parser.add_argument
    add("--ways", type=_names(WAYS), default=[*WAYS], metavar="NAMES", help=f"of {', '.join(WAYS)}")
    add("--dtype", type=_names(DTYPES), default=["float16", "float32"], metavar="NAMES")
    add("--device", default="spyre", metavar="NAME", help="device under test (default: spyre)")
    add("--json", nargs="?", const="-", metavar="FILE", help="write everything (default: print it)")
    add("--keep", metavar="FILE", help="note each result there; skip operators it has one of")
    add("--ops", metavar="REGEX", help="only operators whose name/variant matches")
    add("--limit", type=int, metavar="N", help="at most N samples per operator")
    add("--sample", type=piece_of, default=(1, 1), metavar="K/N", help="piece K of N of the run")
    add("--jobs", type=int, default=1, metavar="N", help="worker processes")
    add("--timeout", type=float, default=120.0, metavar="SECONDS", help="per sample")
    add("--database", default=DATABASE, metavar="MODULE:NAME", help="other operators")
    add("--list", action="store_true", help="print the operators and stop")
    add("--quiet", action="store_true", help="no lines while it runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
