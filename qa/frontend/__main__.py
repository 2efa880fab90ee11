"""``python -m qa.frontend --torch-spyre PATH``: run torch-spyre's tests on the simulator.

Every test file that the checkout's configuration names is run in a separate process, forked from
one that has imported torch, with limits on memory (collecting one of them takes 7 GB) and on the
seconds of a test. A process that dies is followed by one that continues behind the failed test.
Other configurations (``--configs``) are run by torch-spyre's ``run_test.sh``. Each outcome is
compared with torch-spyre's expectation for the card. Exit codes: 0 all as expected, 1 some
differ, 2 the tests could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from qa.frontend.expectations import ALL_CONFIGS, MANDATORY, Expectations
from qa.frontend.plugin.spyre_recording import append, read_outcomes
from qa.frontend.processes import GIB, Forks, run_configuration

MOST_DEATHS = 20
FAILING = ("unexpected failure", "unexpected pass")


@dataclass(frozen=True)
class Result:
    """Outcome of a test, and torch-spyre's expectation for the card."""

    id: str
    outcome: str
    expected: str
    seconds: float
    error: str
    place: str
    findings: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Comparison of outcome and expectation. A strict expected failure must fail."""
        if self.outcome == "skipped":
            return "skipped"
        strict = self.expected == "xfail_strict" and self.outcome in ("passed", "unexpected pass")
        if self.outcome == "strict pass" or strict:
            return "unexpected pass"
        if self.outcome == "unexpected pass":
            return "passes, not demanded"
        if self.expected == MANDATORY:
            return {"passed": "passed", "expected failure": "expected failure"}.get(
                self.outcome, "unexpected failure"
            )
        if self.outcome == "passed":
            return "passes, not demanded"
        return "expected failure" if self.expected != "unconfigured" else "fails, not demanded"

    @property
    def cause(self) -> str:
        """Class of a failure: the code of a refusal, or the error's type and source file."""
        if code := re.search(r"\bSPY\d{3}", self.error):
            return code[0]
        kind = self.error.partition(":")[0] or "no error"
        return f"{kind} in {Path(self.place.rpartition(':')[0]).name}" if self.place else kind


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    checkout = options.checkout = Path(options.torch_spyre).resolve()
    if (problem := _problem(checkout)) is not None:
        print(problem, file=sys.stderr)
        return 2
    expectations = Expectations(checkout)
    files = [f for f in expectations.test_files(checkout) if _chosen(f, options.files)]
    if options.sanitize:
        os.environ["SPYRE_SANITIZE"] = os.environ.get("SPYRE_SANITIZE") or "1"
    if options.configs is not None:
        files = _configurations(checkout, options.configs)
    results: list[Result] = []
    forks = Forks(checkout, options.memory * GIB, options.seconds)
    with _record(options) as record, closing(forks):
        if options.again:
            _forget_failures(record, expectations)
        for file in files:
            found = [_result(row, expectations) for row in _run_file(file, record, forks, options)]
            results += found
            if found:
                print(f"{file}: {_counted(found)}", flush=True)
    _print(results)
    if options.json:
        rows = [vars(r) | {"verdict": r.verdict, "cause": r.cause} for r in results]
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    if not results:
        print("no tests were run", file=sys.stderr)
        return 2
    return int(any(r.verdict in FAILING for r in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m qa.frontend", description=__doc__)
    add = parser.add_argument
    add("--torch-spyre", metavar="PATH", default=os.environ.get("SPYRE_TORCH_SPYRE", ""))
    add("--files", nargs="*", metavar="PATTERN", help="test files, as tests/tensor/*")
    add(
        "--configs",
        nargs="+",
        metavar="NAME",
        help="in place of test files: configurations by file or folder, as distributed_tests, "
        "model_ops_tests, upstream_tests, by torch-spyre's own run_test.sh",
    )
    add("--ranks", type=int, default=2, help="processes of a distributed test")
    add("--torch-root", metavar="PATH", default="", help="PyTorch's sources, for upstream_tests")
    add("--sample", type=_share, default=(0, 1), metavar="K/N", help="the K-th of N parts")
    add("--json", metavar="FILE", help="write all outcomes")
    add("--resume", metavar="FILE", help="outcomes as they come; what is there is not run again")
    add("--again", action="store_true", help="but for what failed unexpectedly")
    add("--seconds", type=int, default=300, help="limit of one test")
    add("--memory", type=float, default=12, metavar="GIB", help="limit of a process")
    add("--total", type=int, default=0, metavar="SECONDS", help="begin no test file after that")
    add("--sanitize", action="store_true", help="with the sanitizer; findings are printed")
    add("--keyword", metavar="EXPRESSION", help="pytest's -k")
    return parser


def _share(text: str) -> tuple[int, int]:
    share, _, parts = text.partition("/")
    if not (share.isdigit() and parts.isdigit() and int(share) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K below N")
    return int(share), int(parts)


def _problem(checkout: Path) -> str | None:
    """Return the reason why nothing can be run, or None."""
    if not (checkout / "torch_spyre").is_dir():
        return f"no checkout of torch-spyre at {checkout}: give --torch-spyre PATH"
    return None


def _chosen(file: str, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fnmatch(file, pattern) for pattern in patterns)


# --- running --------------------------------------------------------------------------------------


@contextmanager
def _record(options: argparse.Namespace) -> Iterator[Path]:
    """Yield the file that outcomes are appended to: that of ``--resume``, or a temporary one."""
    if options.resume:
        record = Path(options.resume).resolve()
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch()
        yield record
        return
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "outcomes.jsonl"
        record.touch()
        yield record


def _forget_failures(record: Path, expectations: Expectations) -> None:
    for row in read_outcomes(record).rows.values():
        if _result(row, expectations).verdict in FAILING:
            append(record, {"id": row["id"], "again": True})


def _run_file(
    file: str, record: Path, forks: Forks, options: argparse.Namespace
) -> Iterable[dict[str, Any]]:
    """Return rows of all tests of a file or configuration; a process that dies is followed by
    another.
    """
    complete = {"file": file, "complete": [*options.sample, options.keyword]}
    outcomes = read_outcomes(record).of(file)
    if complete in outcomes.complete:
        return outcomes.rows.values()
    if options.total and time.monotonic() - _BEGIN > options.total:
        return outcomes.rows.values()
    for _ in range(MOST_DEATHS):
        death = _run_process(file, record, forks, options)
        outcomes = read_outcomes(record).of(file)
        if death is None:
            append(record, complete)
            break
        append(record, _died(outcomes.begun or file, death))
        if outcomes.begun is None:
            break
    return read_outcomes(record).of(file).rows.values()


_BEGIN = time.monotonic()


def _run_process(file: str, record: Path, forks: Forks, options: argparse.Namespace) -> str | None:
    """Run a file's tests; return the reason if the process ended before they did, else None."""
    settings = {
        "results": str(record),
        "sample": options.sample,
        "seconds": options.seconds,
        "sanitize": options.sanitize,
    }
    if file.startswith(ALL_CONFIGS):
        settings["config"] = file
        return run_configuration(
            options.checkout, file, settings, options.ranks, options.torch_root
        )
    return forks.run([*(["-k", options.keyword] if options.keyword else []), file], settings)


def _configurations(checkout: Path, names: Sequence[str]) -> list[str]:
    """Return the files of ``tests/configs`` with these names or in folders with these names."""
    root = checkout / ALL_CONFIGS
    found = [path for name in names for path in (root / name, *(root / name).rglob("*.yaml"))]
    return [str(path.relative_to(checkout)) for path in sorted(found) if path.is_file()]


def _died(node: str, death: str) -> dict[str, Any]:
    return {"id": node, "outcome": "failed", "error": f"the process {death}", "seconds": 0}


def _result(row: dict[str, Any], expectations: Expectations) -> Result:
    outcome = row["outcome"]
    if row.get("strict_pass"):
        outcome = "strict pass"
    elif row.get("expected_failure"):
        outcome = "expected failure" if outcome == "skipped" else "unexpected pass"
    expected = expectations.mode(row["id"])
    texts = (row.get("error", ""), row.get("place", ""))
    findings = tuple(row.get("findings", ()))
    return Result(row["id"], outcome, expected, row["seconds"], *texts, findings)


# --- printing -------------------------------------------------------------------------------------


def _counted(results: Sequence[Result]) -> str:
    counts = Counter(result.verdict for result in results)
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))


def _print(results: Sequence[Result]) -> None:
    unexpected = [r for r in results if r.verdict in FAILING]
    for result in unexpected:
        first = result.error.splitlines()[0] if result.error else ""
        print(f"UNEXPECTED {result.id}\n    {first[:200]}")
    for result in results:
        for finding in result.findings:
            print(f"SANITIZER {result.id}\n    {finding.splitlines()[0]}")
    for cause, count in Counter(r.cause for r in unexpected).most_common():
        print(f"{count:6} {cause}")
    print(f"{len(results)} tests: {_counted(results)}")
    mandatory = [r for r in results if r.expected == MANDATORY]
    print(f"{len(mandatory)} of them mandatory: {_counted(mandatory)}")


if __name__ == "__main__":
    sys.exit(main())
