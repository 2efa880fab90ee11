"""Run torch's own tests for the CPU with and without this package, and compare the outcomes.

Exit codes: 0 when every test and call has the same outcome, 1 when one differs twice in a row, 2
when nothing could run. A test that fails in both is a failure of torch, not of the package.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

from qa.neighbour.runs import Choice, Difference, compare_file, differences
from qa.neighbour.wheel import run_wheel
from qa.opinfo.__main__ import piece_of

VARIABLE = "PYTORCH_CHECKOUT"
FILES = (
    *("test_autocast.py", "test_autograd.py", "test_serialization.py", "test_overrides.py"),
    *("test_tensor_creation_ops.py", "test_torch.py", "test_dlpack.py", "test_type_hints.py"),
    *("test_view_ops.py", "test_type_promotion.py", "test_indexing.py", "test_module_tracker.py"),
    *("test_modules.py", "test_optim.py", "test_dataloader.py", "test_utils.py"),
    *("profiler/test_profiler.py", "test_accelerator.py", "test_namedtensor.py", "test_futures.py"),
)
"""Files of torch's test folder that this package may affect; some releases lack some of them."""


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    files = _files(options)
    if files is None:
        return 2
    found: list[Difference] = []
    if options.wheel:
        found += _compare_wheel(options)
    for file in files:
        found += _compare(file, options)
    for one in found:
        print(f"{one.test}: without the package {one.without.result} {one.without.why}, ", end="")
        print(f"with it {one.with_package.result} {one.with_package.why}")
    print(f"{len(found)} differences")
    return 1 if found else 0


def _files(options: argparse.Namespace) -> list[Path] | None:
    """Return the test files to run; print the reason and return None if one is missing."""
    if options.pytorch is None:
        print(f"torch's test folder is not run: no --pytorch, and {VARIABLE} is not set")
        return [] if options.wheel else None
    folder = Path(options.pytorch) / "test"
    wanted = [folder / name for name in options.files or FILES]
    missing = [path for path in wanted if not path.is_file()]
    if not folder.is_dir() or (options.files and missing):
        print(f"not there: {folder if not folder.is_dir() else missing[0]}", file=sys.stderr)
        return None
    for path in missing:
        print(f"{path.name}: not in this checkout")
    return [path for path in wanted if path not in missing]


def _compare_wheel(options: argparse.Namespace) -> list[Difference]:
    deadline = time.monotonic() + 2 * options.timeout
    without, with_package = (run_wheel(options.sample, p, deadline) for p in (False, True))
    print(f"calls of the wheel: {len(without)}", flush=True)
    return [*differences(without, with_package)]


def _compare(file: Path, options: argparse.Namespace) -> list[Difference]:
    start = time.monotonic()
    choice = Choice(options.sample, options.expression, seconds=options.timeout)
    without, found = compare_file(file, choice)
    counts = Counter(outcome.result for outcome in without.values())
    told = ", ".join(f"{count} {result}" for result, count in counts.most_common())
    seconds = time.monotonic() - start
    print(
        f"{file.name}: {told}; {len(found)} differ with the package ({seconds:.0f} s)", flush=True
    )
    return found


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m qa.neighbour", description=__doc__)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="of the test folder (default: those that matter)")
    add("--pytorch", default=os.environ.get(VARIABLE), metavar="PATH", help=f"or ${VARIABLE}")
    add("--no-wheel", dest="wheel", action="store_false", help="no calls of what the wheel has")
    add("--sample", type=piece_of, default=(1, 1), metavar="K/N", help="piece K of N of each file")
    add("-k", dest="expression", default="", metavar="EXPRESSION", help="as pytest's")
    add("--timeout", type=float, default=3600.0, metavar="SECONDS", help="per file and run")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
