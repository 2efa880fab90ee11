"""Groups of real functions that are compiled alike, checked by several processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from qa.conformance_compiled.check import FunctionChecks
from qa.conformance_compiled.outcome import Outcome, Setting
from qa.conformance_compiled.real_functions import read_function


def groups(root: Path, pattern: str) -> list[tuple[Path, ...]]:
    """Directories of the cases in ``root`` whose names match, those compiled alike together."""
    found: dict[object, list[Path]] = {}
    for path in sorted(root.glob("*/case.json")):
        if re.search(pattern, path.parent.name):
            found.setdefault(read_function(path.parent).key, []).append(path.parent)
    return [tuple(paths) for paths in found.values()]


def check(paths: Sequence[Path], settings: Sequence[Setting]) -> list[Outcome]:
    """The outcomes of one group."""
    with tempfile.TemporaryDirectory() as directory:
        count = itertools.count()
        functions = [read_function(path) for path in paths]
        checks = FunctionChecks(functions, lambda: Path(directory) / str(next(count)))
        return list(checks.outcomes(settings))


def run_groups(
    wanted: Sequence[tuple[Path, ...]], settings: Sequence[Setting], jobs: int
) -> Iterator[list[Outcome]]:
    """The outcomes group by group, as they are finished."""
    if jobs == 1:
        yield from (check(paths, settings) for paths in wanted)
        return
    context = multiprocessing.get_context("spawn")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = [pool.submit(check, paths, settings) for paths in wanted]
        yield from (future.result() for future in as_completed(futures))
