"""Side-by-side timing: both sides alternate in one process, with pauses so that neither side's
spinning threads disturb the other; the lower quartile of all rounds is quoted, because other
tenants of the machine only add time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PAUSE_SECONDS = 0.08
ROUNDS = 15


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one side: lower quartile, median and best of ``rounds``."""

    lower_quartile: float
    median: float
    best: float
    rounds: int


def alternate(
    sides: Mapping[str, Callable[[], object]],
    rounds: int = ROUNDS,
    pause_seconds: float = PAUSE_SECONDS,
) -> dict[str, Timing]:
    """Time every side ``rounds`` times in turn.

    Before each timed call the same side runs once untimed, so that caches and threads are in the
    state that repeated use leaves them in.
    """
    seconds = samples(sides, rounds, pause_seconds)
    return {name: _summary(values) for name, values in seconds.items()}


def samples(
    sides: Mapping[str, Callable[[], object]],
    rounds: int = ROUNDS,
    pause_seconds: float = PAUSE_SECONDS,
) -> dict[str, list[float]]:
    """Seconds of every round of every side, as of `alternate`."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            time.sleep(pause_seconds)
            call()
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def _summary(values: list[float]) -> Timing:
    ordered = sorted(values)
    count = len(ordered)
    return Timing(ordered[count // 4], ordered[count // 2], ordered[0], count)
