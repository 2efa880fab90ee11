"""Runs one test file, or the calls of the wheel, in processes with and without the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from qa.neighbour.recording import BEGUN, CHOSEN, RECORD

ROOT = Path(__file__).resolve().parents[2]
CRASHED, TIMEOUT = "crashed", "timed out"
NOTHING_RAN = "(file)"
"""Name of the outcome of a process that ended before a test began."""


EXPECTED = {
    "test_autograd.py::TestAutograd::test_thread_shutdown": "torch's autograd engine has threads "
    "to end where there is an accelerator of any kind, and the test knows of three kinds",
    "test_overrides.py::TestTorchFunctionOverride::test_TensorBase_data___get__": "torch names it "
    "after the C++ property, and with the package after a property of Python",
}
"""Tests that must differ with the package, and the reasons."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a test: passed, failed, skipped, crashed or timed out, and the reason."""

    result: str
    why: str = ""


@dataclass(frozen=True)
class Choice:
    """Selection of a file's tests: piece K of N, pytest's ``-k``, or the names ``only``.

    ``seconds``: time limit of the file; ``limit``: of a test, which then counts as crashed.
    """

    piece: tuple[int, int] = (1, 1)
    expression: str = ""
    only: tuple[str, ...] | None = None
    seconds: float = 3600.0
    limit: float = 240.0


@dataclass(frozen=True)
class Difference:
    """A test whose outcomes differed in two runs."""

    test: str
    without: Outcome
    with_package: Outcome


Outcomes = dict[str, Outcome]


def differences(without: Outcomes, with_package: Outcomes) -> Iterator[Difference]:
    """Yield tests whose results differ or that ran once only, except for `EXPECTED`.

    Passing tests that torch generates for the package's additions do not count.
    """
    none = Outcome("not run")
    for test in {**without, **with_package}:
        one, other = without.get(test, none), with_package.get(test, none)
        is_added = one is none and other.result == "passed"
        if one.result != other.result and not is_added and test not in EXPECTED:
            yield Difference(test, one, other)


def compare_file(file: Path, choice: Choice) -> tuple[Outcomes, list[Difference]]:
    """Return the outcomes without the package, and the differences that also a rerun shows."""
    without, with_package = (run_file(file, choice, package) for package in (False, True))
    differing = [one.test for one in differences(without, with_package)]
    if not differing:
        return without, []
    again = Choice(only=tuple(differing), seconds=choice.seconds, limit=choice.limit)
    both = (run_file(file, again, package) for package in (False, True))
    return without, [one for one in differences(*both) if one.test in differing]


def run_file(
    file: Path, choice: Choice, package: bool, environment: dict[str, str] | None = None
) -> Outcomes:
    """Run a file; return outcomes by test name, including tests that ended their process."""
    found: Outcomes = {}
    deadline = time.monotonic() + choice.seconds
    with tempfile.TemporaryDirectory(prefix="neighbour-") as place:
        record = Path(place, "outcomes")
        record.touch()
        while True:
            chosen = json.dumps({**asdict(choice), "done": [*found]})
            variables = {RECORD: str(record), CHOSEN: chosen, **(environment or {})}
            ended = _pytest(file, choice, package, deadline, variables)
            fresh = read_record(record, TIMEOUT if ended is None else CRASHED)
            found |= fresh
            is_whole = ended in range(6) and all(one.result != CRASHED for one in fresh.values())
            if is_whole or ended is None or not _advanced(record):
                break
            record.write_text("", encoding="utf-8")
    return found or {NOTHING_RAN: Outcome(CRASHED if ended else "no tests")}


def _advanced(record: Path) -> bool:
    return bool(record.read_text(encoding="utf-8"))


def read_record(record: Path, interrupted: str) -> Outcomes:
    """Read the outcomes of a process; a test that did not end has outcome ``interrupted``."""
    found: Outcomes = {}
    for line in record.read_text(encoding="utf-8").splitlines():
        test, result, why = json.loads(line)
        known = found.get(test)
        if known is None or known.result in (BEGUN, "passed"):
            found[test] = Outcome(result, why)
    return {
        test: Outcome(interrupted) if outcome.result == BEGUN else outcome
        for test, outcome in found.items()
    }


def _pytest(
    file: Path, choice: Choice, package: bool, deadline: float, variables: dict[str, str]
) -> int | None:
    """Run pytest and return its exit code, or None at the time limit."""
    options = ["-q", "-p", "qa.neighbour.recording", "-p", "no:cacheprovider", "--noconftest"]
    options += ["-c", os.devnull, "--rootdir", str(file.parent)]
    options += ["-k", choice.expression] if choice.expression else []
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    place = Path(variables[RECORD]).parent
    return run_process(command, package, place, deadline, variables)


def run_process(
    command: list[str],
    package: bool,
    place: Path,
    deadline: float,
    environment: dict[str, str] | None = None,
) -> int | None:
    """Run a command on the CPU only, in directory ``place``; return its exit code or None."""
    variables = {
        **os.environ,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(package)),
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONWARNINGS": "ignore",
        **(environment or {}),
    }
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=place,
            env=variables,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
        try:
            return process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()
