"""Command line: `python -m qa.sanitize_operators [--numerics dl16] [--sample K/N]`.

Exit code 0: no finding. 1: a finding, or no program ran.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from qa.opinfo.__main__ import piece_of

WAYS = ("eager", "compiled")
WIDTHS = (1, 3, 5)


@dataclass(frozen=True)
class Job:
    """One operator in one dtype, way and width in sticks."""

    op: str
    dtype: str
    way: str
    sticks: int

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} {self.way}, {self.sticks} sticks"


@dataclass
class Tally:
    """Programs that ran on the card, needed the CPU or were refused, by way and width.

    ``operators``: those with a program that ran on the card.
    """

    ran: Counter[tuple[str, int]] = field(default_factory=Counter)
    on_cpu: Counter[tuple[str, int]] = field(default_factory=Counter)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    operators: set[str] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    # A card reads them when it is made.
    os.environ.update(SPYRE_SANITIZE="1", SPYRE_NUMERICS=options.numerics, SPYRE_FALLBACK="silent")
    warnings.filterwarnings("ignore")
    faulthandler.enable()
    start = time.perf_counter()
    tally = run(options, lambda line: print(line, flush=True))
    for key in sorted(tally.ran.keys() | tally.on_cpu.keys() | tally.refused.keys()):
        way, sticks = key
        counts = f"{tally.ran[key]} ran, {tally.on_cpu[key]} in part on the CPU, "
        counts += f"{tally.refused[key]} refused"
        print(f"{options.numerics} {way}, {sticks} sticks: {counts}")
    ran, seconds = sum(tally.ran.values()), time.perf_counter() - start
    counts = f"{ran} programs of {len(tally.operators)} operators"
    print(f"{counts}, {len(tally.findings)} findings, {seconds:.0f} s")
    return 1 if tally.findings or not ran else 0


def run(options: argparse.Namespace, say: Callable[[str], None]) -> Tally:
    """Run the chosen share; ``say`` gets a line per finding and one per 50 operators."""
    from qa.opinfo.samples import load_database
    from qa.opinfo.target import Target

    database, target = load_database(), Target("spyre")
    tally = Tally()
    piece, pieces = options.sample
    jobs = list(_jobs(database, options))[piece - 1 :: pieces]
    for number, job in enumerate(jobs):
        if number % 50 == 49:
            say(f"{number + 1}/{len(jobs)} {job}: {sum(tally.ran.values())} programs")
        for finding in _findings(database[job.op], job, target, options.limit, tally):
            tally.findings.append(f"{job}: {finding}")
            say(tally.findings[-1])
    return tally


def _jobs(database: dict[str, Any], options: argparse.Namespace) -> Iterator[Job]:
    from qa.opinfo.rules import EMPTY
    from qa.opinfo.ways import selected

    # Operators innermost, so that every piece of the run has all widths, ways and dtypes.
    for sticks in map(int, options.widths.split(",")):
        for way in options.ways.split(","):
            for dtype in options.dtype.split(","):
                for op in selected(database, dtype, "forward", options.ops):
                    if op not in EMPTY:  # a result without values is rightly reported when read
                        yield Job(op, dtype, way, sticks)


def _findings(op: Any, job: Job, target: Any, limit: int, tally: Tally) -> Iterator[str]:
    """Run samples of one job; yield the findings of each, with the sample."""
    import torch

    from qa.opinfo.samples import seed_all
    from qa.opinfo.trees import leaves
    from qa.sanitize_operators.widened import widened

    key = job.way, job.sticks
    for sample in widened(op, job.dtype, job.sticks, limit):
        function = op.op
        if job.way == "compiled":
            torch._dynamo.reset()
            function = torch.compile(_called(op.op), dynamic=False)
        seed_all(0)
        before = target.fallbacks()
        try:
            args, kwargs = target.arguments((sample.args, sample.kwargs))
            result = target.run(function, args, kwargs)
            for leaf in leaves(result):
                if isinstance(leaf, torch.Tensor):
                    target.fetch(leaf)
        except Exception:  # refusals and their reasons are measured by qa.opinfo
            tally.refused[key] += 1
            torch.spyre.sanitizer_findings()
            continue
        if target.fallbacks() == before:
            tally.ran[key] += 1
            tally.operators.add(job.op)
        else:
            tally.on_cpu[key] += 1
        for finding in torch.spyre.sanitizer_findings():
            yield f"{sample.summary()}: {finding}"


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m qa.sanitize_operators", description=__doc__)
    add = parser.add_argument
    add("--numerics", default="dl16", choices=("dl16", "ieee"))
    add("--ways", default=",".join(WAYS), help="eager, compiled or both")
    add("--dtype", default="float16,float32")
    add("--widths", default=",".join(map(str, WIDTHS)), help="sticks of a row of 16-bit elements")
    add("--ops", metavar="REGEX", help="only operators whose name/variant matches")
    add("--limit", type=int, default=2, metavar="N", help="at most N samples of an operator")
    add("--sample", type=piece_of, default=(1, 1), metavar="K/N", help="piece K of N of the run")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
