"""Compile the functions of real bundles in every form, with every number of cores.

Every function is compiled with symbolic and with baked addresses for 1, 2, 4, 8, 16 and 32 cores.
It has to match the CPU within its case's tolerance, and the first setting bit by bit (within that
tolerance where K of a matmul is divided otherwise). Its bundles must pass ``--check``, and are run
once more on a card that checks every access. Exit codes: 0 if all pass, 1 if not, 2 if no function
was selected.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console

from qa.conformance_compiled.jobs import groups, run_groups
from qa.conformance_compiled.outcome import CORES, FORMS, SETTINGS, Outcome
from qa.conformance_compiled.report import as_json, print_report


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    settings = [s for s in SETTINGS if s.form in options.forms and s.cores in options.cores]
    wanted = groups(Path(options.directory), options.filter)
    if not wanted or not settings:
        print("nothing to compile", file=sys.stderr)
        return 2
    start = time.perf_counter()
    found: list[Outcome] = []
    for number, outcomes in enumerate(run_groups(wanted, settings, options.jobs), 1):
        found += outcomes
        failed = sorted({outcome.name for outcome in outcomes if outcome.faults})
        if failed and not options.quiet:
            print(f"{number}/{len(wanted)} {', '.join(failed)}", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - start
    if options.json:
        Path(options.json).write_text(json.dumps(as_json(found, seconds)), encoding="utf-8")
    print_report(found, Console(width=None if sys.stdout.isatty() else 140))
    print(f"{seconds:.0f} s", file=sys.stderr)
    return 1 if any(outcome.faults for outcome in found) else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m qa.conformance_compiled")
    parser.description = __doc__
    add = parser.add_argument
    add("directory", metavar="DIR", help="of directories with a case.json each")
    add("--filter", metavar="REGEX", default="", help="only cases whose name matches")
    add("--cores", metavar="N", type=int, nargs="+", default=CORES, choices=CORES)
    add("--forms", metavar="NAME", nargs="+", default=list(FORMS), choices=FORMS)
    add("--jobs", type=int, default=1, metavar="N", help="processes")
    add("--json", metavar="FILE", help="write everything")
    add("--quiet", action="store_true", help="no lines while it runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
