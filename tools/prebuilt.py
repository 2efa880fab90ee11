"""Compiles the kernels of a wheel: run ``python -m tools.prebuilt`` before it is built.

Compiles for the third and fourth level of x86-64 into ``spyre/prebuilt``. An installation with the
same sources, Python and numba loads kernels from there that its cache lacks, instead of compiling
them. The examples are run too, so the machine must have the highest requested level.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spyre.hw.kernels.machine_code import LEVELS, SHIPPED, x86_level

EXAMPLES = ("softmax", "add_loop")
RUN = (sys.executable, "-m", "spyre.cli.run")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; exit with 2 if this machine cannot run a requested level."""
    parser = argparse.ArgumentParser(prog="python -m tools.prebuilt", description=__doc__)
    parser.add_argument("levels", nargs="*", help=f"default: {' '.join(LEVELS)}")
    asked = parser.parse_args(arguments).levels or list(LEVELS)
    highest = x86_level()
    runnable = list(LEVELS)[list(LEVELS).index(highest) :] if highest else []
    if refused := [level for level in asked if level not in runnable]:
        here = " and ".join(runnable) or "no level"
        parser.error(f"this machine runs {here}, not {' '.join(refused)}")
    with tempfile.TemporaryDirectory() as cache:
        for level in asked:
            print(f"compiling for {level}", flush=True)
            compile_for(level, Path(cache))
        shutil.rmtree(SHIPPED, ignore_errors=True)
        size_bytes = sum(ship(file) for file in Path(cache).glob("kernels-*/*.o"))
    print(f"{SHIPPED}: {size_bytes / 1e6:.1f} MB")
    return 0


def compile_for(level: str, cache: Path) -> None:
    """Compile every kernel and the driver of programs into ``cache``."""
    target = {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": "", "SPYRE_CACHE_DIR": str(cache)}
    environment = {**os.environ, **target, "SPYRE_VECTOR_WIDTH": ""}
    examples = SHIPPED.parent.parent / "examples"
    for command in (("--warm",), *((str(examples / name),) for name in EXAMPLES)):
        subprocess.run([*RUN, "--quiet", *command], env=environment, check=True)


def ship(file: Path) -> int:
    """Copy ``file`` of a cache into the package; return its size in bytes."""
    directory = SHIPPED / file.parent.name
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, directory)
    return file.stat().st_size


if __name__ == "__main__":
    raise SystemExit(main())
