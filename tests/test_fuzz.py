"""Damaged bundles through the whole pipeline: a SpyreError or a clean run, nothing else.

Seeded mutants of real bundles go through load, check, link and execute with the buffers of their
case; mutants of launch_spec.json through a session. No crash, no other exception, at most two
seconds each, at most 64 MiB more memory than the bundles without damage. Long runs, in separate
processes so that a crash is noticed: ``python -m tests.test_fuzz --count 10000``.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from qa import BUNDLES
from qa.conformance.cases import find_cases
from qa.mutations import mutate
from spyre.errors import SpyreError
from spyre.hw import plan_table as tb
from spyre.hw.device.device import Device
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.mlir.bundle import load_bundle
from spyre.runtime.cases import Case, read_case
from spyre.runtime.program.launch_spec import read_launch_spec
from spyre.runtime.run.runs import RunOptions, describe_run
from spyre.runtime.run.session import Session, run, session_of

MOST_BYTES = 400_000
"""Size of a case's text files, above which it is not mutated: copying would take the time."""
BUDGET_NS = 100_000_000
"""Estimated kernel time a mutant may use; the rest of its program is not run."""
MOST_DISPATCHES = 3000
BATCH_SECONDS = 3600
"""Time after which the process of a batch is killed: one of its mutants does not end."""
SLACK_BYTES = 64 << 20
PYTEST_COUNT = 300 * int(os.environ.get("SPYRE_TEST_EXAMPLES", "1"))
BATCH = 250


class Outcome(msgspec.Struct, frozen=True):
    """Result of one mutant: ``clean``, an error code, or a failure to look into."""

    seed: int
    case: str
    file: str
    result: str
    failure: str = ""


# --- one mutant -------------------------------------------------------------------------------


@cache
def sources() -> list[Path]:
    """Directories of the cases that are mutated."""
    found = find_cases(BUNDLES)
    return [path for path in found if _text_bytes(path) <= MOST_BYTES]


def _text_bytes(directory: Path) -> int:
    files = (p for p in directory.rglob("*") if p.suffix in (".json", ".mlir"))
    return sum(p.stat().st_size for p in files)


@cache
def case_of(directory: Path) -> Case:
    return read_case(directory)


@cache
def device() -> Device:
    """One device for all mutants; its kernels are compiled before any is measured."""
    return Device("dl16", threads=1)


def run_mutant(seed: int, scratch: Path) -> Outcome:
    """Make mutant ``seed`` below ``scratch`` and run it."""
    rng = random.Random(seed)
    directory = rng.choice(sources())
    case = case_of(directory)
    launch = rng.choice(case.spec.launches)
    source = directory / launch.bundle
    name = _choose_file(rng, source)
    target = scratch / f"{seed}"
    _copy_with(source, target, name, mutate(rng, name, (source / name).read_bytes()))
    checked = rng.random() < 0.7
    result, failure = _outcome(case, launch.bundle, target, name, checked)
    grown = _peak_bytes() - _known_peak[0]  # the bundles without damage ran before
    if not failure and grown > SLACK_BYTES:
        failure = f"{grown >> 20} MiB more memory"
    _known_peak[0] = _peak_bytes()
    if not failure:
        _remove(target)
    return Outcome(seed, directory.name, f"{launch.bundle}/{name}", result, failure)


_known_peak = [0]


def _choose_file(rng: random.Random, source: Path) -> str:
    sdscs = sorted(p.name for p in source.glob("sdsc_*.json"))
    kind = rng.random()
    if kind < 0.25:
        return "bundle.mlir"
    if kind < 0.35 and (source / "launch_spec.json").is_file():
        return "launch_spec.json"
    return rng.choice(sdscs)


def _copy_with(source: Path, target: Path, name: str, content: bytes) -> None:
    """A copy of the bundle, but for the one file that is changed."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix in (".json", ".mlir") and path.name != name:
            shutil.copyfile(path, target / path.name)
    (target / name).write_bytes(content)


def _remove(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()


def _outcome(case: Case, bundle: str, target: Path, name: str, checked: bool) -> tuple[str, str]:
    """(``clean`` or error code, failure text)."""
    try:
        if name == "launch_spec.json":
            _run_session(target)
        else:
            _run_kernel(case, bundle, target, checked)
    except SpyreError as error:
        return error.code, ""
    except Exception:
        return "exception", traceback.format_exc()
    return "clean", ""


def _run_kernel(case: Case, bundle: str, target: Path, checked: bool) -> None:
    """Load, check, link and execute with the case's buffers, as the conformance runner does."""
    loaded = load_bundle(target)
    loaded.check(raise_on_error=checked)
    launches = tuple(launch for launch in case.spec.launches if launch.bundle == bundle)
    used = replace(case, spec=replace(case.spec, launches=launches))
    session = session_of(device())
    with session.placed(describe_run(used, lambda _: loaded, RunOptions(check=False))) as placement:
        placement.fill()
        for number in range(len(launches)):
            linked = placement.link(number)
            session.device.executor.run_part(linked, 0, _affordable(linked))


def _affordable(linked: LinkedProgram) -> int:
    """Dispatches, from the first on, that fit the budget."""
    costs = linked.tables[linked.dispatch[:, 0], tb.COST_NS].astype(np.float64)
    return int(min((np.cumsum(costs) <= BUDGET_NS).sum(), MOST_DISPATCHES))


def _run_session(target: Path) -> None:
    spec = read_launch_spec(target / "launch_spec.json")
    layouts = [a.layout.device_bytes for a in spec.args if a.layout is not None]
    if sum(layouts) + spec.pool_size > SLACK_BYTES:
        return
    card = device()
    card.reset()
    Session(card).run(target)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- many mutants -----------------------------------------------------------------------------


def warm_up() -> None:
    """Load every kernel the sources use, so that no mutant pays for it."""
    for directory in sources():
        assert run(case_of(directory), device=device()).ok
    _known_peak[0] = _peak_bytes()


def work(first: int, last: int, scratch: Path) -> None:
    """Body of a process: mutants ``first`` .. ``last``, one line each, announced beforehand."""
    warm_up()
    for seed in range(first, last):
        print(f"start {seed}", flush=True)
        outcome = run_mutant(seed, scratch)
        line = f"done {seed} {outcome.result} {outcome.case} {outcome.file}"
        print(line + (f" FAILURE {outcome.failure!r}" if outcome.failure else ""), flush=True)


def run_batch(first: int, last: int, scratch: Path) -> tuple[Counter[str], list[str]]:
    """Run mutants ``first`` .. ``last`` in a new process; return results and failures."""
    command = [
        sys.executable,
        "-m",
        "tests.test_fuzz",
        "--work",
        str(first),
        str(last),
        str(scratch),
    ]
    results: Counter[str] = Counter()
    failures = []
    started = first
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    ) as process:
        try:
            output, errors = process.communicate(timeout=BATCH_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
    for line in output.splitlines():
        kind, *rest = line.split(" ", 3)
        if kind == "start":
            started = int(rest[0])
        elif kind == "done":
            results[rest[1]] += 1
            if "FAILURE" in line:
                failures.append(line)
    if process.returncode:
        failures.append(f"seed {started}: the process ended with {process.returncode}")
        failures.append(errors[-2000:])
    return results, failures


def batches(count: int, first: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(first, first + count, size):
        yield start, min(start + size, first + count)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.test_fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--one", type=int, help="run this seed here, keeping its files")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not BUNDLES.is_dir():
        parser.error(f"no real bundles in {BUNDLES}")
    if options.work:
        work(int(options.work[0]), int(options.work[1]), Path(options.work[2]))
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="spyre-fuzz-"))
    if options.one is not None:
        warm_up()
        print(run_mutant(options.one, scratch), scratch)
        return 0
    return _run_all(options.count, options.first, scratch)


def _run_all(count: int, first: int, scratch: Path) -> int:
    results: Counter[str] = Counter()
    bad = 0
    for start, end in batches(count, first, BATCH):
        found, failures = run_batch(start, end, scratch)
        results += found
        bad += len(failures)
        for failure in failures:
            print(failure, flush=True)
    print(f"{sum(results.values())} mutants, {bad} failures; files of failures in {scratch}")
    print(", ".join(f"{name} {n}" for name, n in results.most_common()))
    return 1 if bad else 0


@pytest.mark.shared
@pytest.mark.slow
def test_mutants_end_in_a_spyre_error_or_a_clean_run(shared_dir: Path, tmp_path: Path):
    assert shared_dir / "bundles" == BUNDLES
    results, failures = run_batch(0, PYTEST_COUNT, tmp_path)
    assert not failures, "\n".join(failures)
    assert sum(results.values()) == PYTEST_COUNT
    assert results["clean"] > PYTEST_COUNT // 20
    assert len(results) > 30, "too few different errors: are the mutants any good?"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    raise SystemExit(main())
