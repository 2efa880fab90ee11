"""Runs seeds in worker processes, half of them in each number mode."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qa.random_programs.comparison import Failure

NUMERICS = ("dl16", "ieee")
PROGRAMS_PER_PROCESS = 100
FINDS = ("different", "crashed")
"""Kinds of outcomes that are defects of this package."""
KINDS = ("functions", "training")
"""Kinds of programs: a function (:mod:`.generate`) or a training step (:mod:`.training`)."""


@dataclass(frozen=True)
class Outcome:
    """``kind`` is empty for a program that agrees, else that of a `comparison.Failure`."""

    seed: int
    numerics: str
    kind: str = ""
    text: str = ""
    program: str = ""


def run_seed(kind: str, seed: int) -> Outcome:
    """Generate and run a program and shrink a failing one; runs in a worker process."""
    numerics = os.environ["SPYRE_NUMERICS"]
    text, failure = _run_step(seed) if kind == "training" else _run_function(seed)
    if failure is None:
        return Outcome(seed, numerics)
    return Outcome(seed, numerics, failure.kind, str(failure), text)


def _run_function(seed: int) -> tuple[str, Failure | None]:
    from qa.random_programs.comparison import first_failure
    from qa.random_programs.generate import random_program
    from qa.random_programs.shrink import shrunk

    program = random_program(seed)
    failure = first_failure(program)
    if failure is not None and failure.kind in FINDS:
        program, failure = shrunk(program, failure)
    return str(program), failure


def _run_step(seed: int) -> tuple[str, Failure | None]:
    from qa.random_programs.training import first_failure, random_step, shrunk

    step = random_step(seed)
    failure = first_failure(step)
    if failure is not None and failure.kind in FINDS:
        step, failure = shrunk(step, failure)
    return str(step), failure


def _start_worker(numerics: str) -> None:
    os.environ["SPYRE_NUMERICS"] = numerics
    os.environ["SPYRE_FALLBACK"] = "silent"
    import torch
    from torch._dynamo import guards

    torch.set_num_threads(1)
    torch._inductor.config.force_disable_caches = True
    # Dynamo empties the processor's caches to measure its guards, and collections visit permanent
    # objects: without both, a program takes a third less time.
    guards.profile_guard_manager = lambda *_: 0.0
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def outcomes(first: int, count: int, jobs: int, kind: str = KINDS[0]) -> Iterator[Outcome]:
    """Yield outcomes of ``count`` seeds from ``first``, half of them in each number mode."""
    for turn, numerics in enumerate(NUMERICS):
        seeds = range(first + turn, first + count, len(NUMERICS))
        # Fresh processes now and then: compiled code is never unloaded. Fresh pools, because one
        # that replaces its processes (max_tasks_per_child) may wait for ever, as of Python 3.11.
        for batch in batches(seeds, jobs * PROGRAMS_PER_PROCESS):
            context = get_context("spawn")
            with ProcessPoolExecutor(jobs, context, _start_worker, (numerics,)) as pool:
                yield from pool.map(partial(run_seed, kind), batch)


def batches(seeds: range, size: int) -> Iterator[range]:
    """Split ``seeds`` into pieces of ``size``; the last one may be shorter."""
    for first in range(0, len(seeds), size):
        yield seeds[first : first + size]
