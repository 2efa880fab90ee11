"""Selects faults of all kinds in turn, injects them and reports wrong consequences."""

from __future__ import annotations

import faulthandler
import gc
import random
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from qa.faults.files import Workshop, file_faults, plan_faults
from qa.faults.outcome import Fault
from qa.faults.outputs import Disk, output_faults, small_disk
from qa.faults.processes import (
    cold_faults,
    full_cache_faults,
    kernel_faults,
    memory_faults,
    signal_faults,
    stream_faults,
)
from qa.faults.together import device_memory_faults, fork_faults, thread_faults


@dataclass(frozen=True)
class Place:
    """Targets of faults: good files of every kind, and a disk that can be filled."""

    shop: Workshop
    disk: Disk


@contextmanager
def workshop(root: Path) -> Iterator[Place]:
    """Make the directory ``root`` and yield a place in it."""
    root.mkdir()
    shop = Workshop(root)
    shop.make()
    gc.freeze()  # a collection after every fault would take longer than the fault
    with small_disk(root / "disk") as disk:
        yield Place(shop, disk)
    gc.unfreeze()


KINDS: dict[str, Callable[[Place], Iterable[Fault]]] = {
    "files": lambda at: chain(file_faults(at.shop), plan_faults(at.shop)),
    "outputs": lambda at: output_faults(at.shop, at.disk),
    "streams": lambda at: stream_faults(at.shop),
    "signals": lambda at: signal_faults(at.shop),
    "caches": lambda at: chain(
        kernel_faults(at.shop), cold_faults(at.shop), full_cache_faults(at.shop)
    ),
    "memory": lambda at: chain(memory_faults(at.shop), device_memory_faults(at.shop)),
    "together": lambda at: chain(thread_faults(at.shop), fork_faults(at.shop)),
}
_WEIGHTS = {
    "files": 20, "outputs": 6, "streams": 2, "signals": 2, "caches": 1, "memory": 1, "together": 1,
}  # fmt: skip
"""Faults of a kind per turn: few of the kinds that start processes or compile kernels."""


def chosen(
    place: Place, kinds: Collection[str], count: int | None, seed: int
) -> Iterator[tuple[str, Fault]]:
    """Yield ``count`` faults, kinds in turn and in random order; None: every fault once."""
    rng = random.Random(seed)
    faults = {kind: list(KINDS[kind](place)) for kind in kinds}
    if count is None:
        yield from ((kind, fault) for kind in kinds for fault in faults[kind])
        return
    turns = {kind: _shuffled_for_ever(faults[kind], rng) for kind in kinds}
    while count > 0:
        turn = [(k, f) for k in kinds for f in islice(turns[k], _WEIGHTS[k])]
        rng.shuffle(turn)
        yield from turn[:count]
        count -= len(turn)


def _shuffled_for_ever(faults: list[Fault], rng: random.Random) -> Iterator[Fault]:
    while True:
        yield from rng.sample(faults, len(faults))


def report(faults: Iterable[tuple[str, Fault]], seed: int) -> Iterator[tuple[str, str]]:
    """Inject the faults; yield the kind and problem ("": none) of each. A hang ends the process."""
    for number, (kind, fault) in enumerate(faults):
        faulthandler.dump_traceback_later(fault.seconds, exit=True)
        begin = time.monotonic()
        try:
            found = fault.inject(random.Random(f"{seed} {number} {fault.name}"))
        except Exception:
            found = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        seconds = time.monotonic() - begin
        yield kind, f"{number}: {fault.name} ({seconds:.1f} s)\n{found}" if found else ""
