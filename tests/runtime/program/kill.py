"""Compilers killed at random moments: what they leave is nothing, the old, or the new, whole.

``python -m tests.runtime.program.kill --count 100`` prints what readers found. A worker compiles
two states of one bundle in turn and keeps their plans anew each time; every fourth process is
``spyre-compile`` itself.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from spyre.errors import BundleError
from spyre.runtime.program.plan_cache import (
    CompiledBundle,
    PlanCache,
    compile_bundle,
    read_bundle_files,
)
from spyre.runtime.spyrecode.code_directory import read_code_directory
from spyre.runtime.spyrecode.compile import compile_directory
from spyre.runtime.spyrecode.init_binary import unpack_bundle
from tests.runtime import bundles

ROOT = Path(__file__).resolve().parents[3]
REAL_EVERY = 4
MAX_WORK_SECONDS = 0.12
MAX_COMPILER_SECONDS = 1.2


class Place(msgspec.Struct, frozen=True):
    """A bundle that changes between two states, and a cache of plans."""

    root: Path

    @property
    def bundle(self) -> Path:
        return self.root / "bundle"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def plans(self) -> Path:
        return self.cache / "plans"

    def make(self) -> None:
        """Both states; the first one is in the bundle."""
        bundles.abs_of_sum(self.bundle)
        self.plans.mkdir(parents=True)
        for state in range(2):
            (self.root / f"state{state}").write_bytes(
                (self.bundle / "sdsc_0.json").read_bytes() + b"\n" * state
            )

    def change_to(self, state: int) -> None:
        """Give the bundle a state, in one step."""
        temporary = self.root / "next"
        shutil.copy(self.root / f"state{state}", temporary)
        os.replace(temporary, self.bundle / "sdsc_0.json")


def work(place: Place) -> None:
    """Compile and keep, for ever."""
    compile_directory(place.bundle)
    print("ready", flush=True)
    state = 0
    while True:
        state = 1 - state
        place.change_to(state)
        for plan in place.plans.glob("*.plan"):
            if state:
                plan.unlink()
        compile_directory(place.bundle)


@contextmanager
def compiler(place: Place, real: bool) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that has begun, or spyre-compile that has just been started."""
    words = ["-m", "tests.runtime.program.kill", "--work", str(place.root)]
    if real:
        words = ["-m", "spyre.cli.compile", "--bundle", "-d", str(place.bundle)]
    environment = {**os.environ, "SPYRE_CACHE_DIR": str(place.cache)}
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        if not real:
            assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def kill_once(place: Place, rng: random.Random, real: bool) -> None:
    """Start one, kill it some time later."""
    if real:
        place.change_to(rng.randrange(2))
        for plan in place.plans.glob("*.plan"):
            plan.unlink()
    with compiler(place, real):
        time.sleep(rng.uniform(0, MAX_COMPILER_SECONDS if real else MAX_WORK_SECONDS))


class Expected(msgspec.Struct, frozen=True):
    """The states as they have to be found."""

    files: tuple[dict[str, bytes], ...]
    kernels: tuple[CompiledBundle, ...]


def expected(place: Place) -> Expected:
    """Both states, read and compiled without any cache."""
    files, kernels = [], []
    for state in range(2):
        place.change_to(state)
        read = read_bundle_files(place.bundle)
        assert read is not None
        files.append(dict(read.files))
        kernels.append(compile_bundle(place.bundle))
    return Expected(tuple(files), tuple(kernels))


def code_found(place: Place, states: Expected) -> str:
    """Read the SpyreCode directory: "no code" or "whole code"; AssertionError for a partial one."""
    try:
        read = read_code_directory(place.bundle / "spyreCodeDir")
    except BundleError as error:
        if error.code not in ("SPY820", "SPY821"):
            raise AssertionError("half a directory is there") from error
        return "no code"
    files = unpack_bundle(read.binaries[0])
    assert files in states.files
    assert read.launch_spec == states.kernels[0].launch_spec
    return "whole code"


def plans_found(place: Place, states: Expected) -> list[str]:
    """Read the cache; return "no plan" or "whole plan" for each kernel."""
    plans = PlanCache(place.plans)
    found = []
    for kernel in states.kernels:
        kept = plans.get(kernel.digest, place.bundle)
        assert kept is None or kept == kernel
        found.append("no plan" if kept is None else "whole plan")
    assert plans.counts["damaged"] == 0, "entries are renamed only when they are whole"
    return found


def kill_often(count: int, seed: int) -> Counter[str]:
    """Kill ``count`` compilers and count the readers' findings. AssertionError for a wrong one."""
    found: Counter[str] = Counter()
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        place = Place(Path(root))
        place.make()
        states = expected(place)
        for k in range(count):
            kill_once(place, rng, real=k % REAL_EVERY == REAL_EVERY - 1)
            found[code_found(place, states)] += 1
            found.update(plans_found(place, states))
            found["unfinished files"] += sum(
                1 for _ in (*Path(root).rglob("*.tmp"), *place.plans.glob(".*"))
            )
        place.change_to(0)
        compile_directory(place.bundle)
        assert code_found(place, states) == "whole code"
        assert not list(place.bundle.rglob("*.tmp"))
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    if given.work is not None:
        work(Place(given.work))
    found = kill_often(given.count, given.seed)
    print(f"{given.count} compilers killed, nothing wrong was found:", dict(sorted(found.items())))


if __name__ == "__main__":
    main()
