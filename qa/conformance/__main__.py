"""Command line: `python -m qa.conformance DIR… [--only PATTERN] [--numerics MODE] [--json]`."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
import traceback
from pathlib import Path

from qa.conformance.cases import find_cases
from spyre.errors import SpyreError
from spyre.hw.device.device import Device
from spyre.runtime.cases import read_case
from spyre.runtime.compare.outputs import format_comparison
from spyre.runtime.run.session import run


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    cases = [path for root in options.directories for path in find_cases(Path(root))]
    if options.only:
        pattern = options.only if "*" in options.only else f"*{options.only}*"
        cases = [path for path in cases if fnmatch.fnmatch(path.name, pattern)]
    if not cases:
        print("no cases found", file=sys.stderr)
        return 2
    start = time.perf_counter()
    device = Device(numerics=options.numerics, threads=options.threads)
    failed = []
    for path in cases:
        reason = _run(path, device)
        if reason is not None:
            failed.append({"case": path.name, "reason": reason})
            if not options.json:
                print(f"FAILED {path.name}: {reason}", flush=True)
    seconds = round(time.perf_counter() - start, 3)
    passed, total = len(cases) - len(failed), len(cases)
    if options.json:
        print(json.dumps({"passed": passed, "total": total, "failed": failed, "seconds": seconds}))
    else:
        print(f"{passed}/{total}")
        print(f"{seconds} s", file=sys.stderr)
    return 0 if passed == total else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m qa.conformance", description=__doc__)
    parser.add_argument("directories", nargs="+", metavar="DIR")
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name matches (glob or part)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--numerics", default="dl16", metavar="MODE", help="number mode")
    parser.add_argument("--threads", type=int, default=None, help="host threads")
    return parser.parse_args(arguments)


def _run(path: Path, device: Device) -> str | None:
    try:
        result = run(read_case(path), device=device)
        reports = [
            format_comparison(comparison, result.output_tensors[k].name, result.places[k])
            for k, comparison in result.comparisons.items()
            if not comparison.ok
        ]
        return "\n".join(reports) or None
    except SpyreError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()


if __name__ == "__main__":
    raise SystemExit(main())
