"""Side-by-side timing: both sides alternate in one process, with pauses so that neither side's
spinning threads disturb the other; the lower quartile of all rounds is quoted, because other
tenants of the machine only add time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.progress import progress
from benchmarks.reference import reference

PAUSE_SECONDS = 0.08
QUICK_PAUSE_SECONDS = 0.02
ROUNDS = 15
SAMPLE_SECONDS, MOST_CALLS = 0.02, 9


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
    """Seconds of every round of every side, one call each, as of `alternate`."""
    return sweeps({"": sides}, rounds, pause_seconds, 0.0)[""]


def sweeps(
    groups: Mapping[str, Mapping[str, Callable[[], object]]],
    rounds: int | Mapping[str, int] = ROUNDS,
    pause_seconds: float = PAUSE_SECONDS,
    sample_seconds: float = SAMPLE_SECONDS,
) -> dict[str, dict[str, list[float]]]:
    """`samples` of several groups of sides, a round of every group in turn.

    The samples of a quantity are spread over the whole time, so that they differ as the machine
    does. A sample is the best of as many calls as end within ``sample_seconds``, one to
    MOST_CALLS. ``rounds``: of all groups or by group. Reference loops are timed between the groups.
    """
    seconds: dict[str, dict[str, list[float]]] = {
        group: {name: [] for name in sides} for group, sides in groups.items()
    }
    counts = {group: rounds if isinstance(rounds, int) else rounds[group] for group in groups}
    for number in range(max(counts.values(), default=0)):
        for group, sides in groups.items():
            if number < counts[group]:
                _round(group, sides, seconds[group], pause_seconds, sample_seconds)
    return seconds


def _round(
    group: str,
    sides: Mapping[str, Callable[[], object]],
    seconds: Mapping[str, list[float]],
    pause_seconds: float,
    sample_seconds: float,
) -> None:
    for number, (name, call) in enumerate(sides.items()):
        progress.at(f"{group} {name}".strip())
        time.sleep(pause_seconds)
        if not number:
            reference.tick()
        call()
        seconds[name].append(_sample(call, sample_seconds))


def _sample(call: Callable[[], object], sample_seconds: float) -> float:
    found: list[float] = []
    while not found or (sum(found) + found[-1] < sample_seconds and len(found) < MOST_CALLS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def _summary(values: list[float]) -> Timing:
    ordered = sorted(values)
    count = len(ordered)
    return Timing(ordered[count // 4], ordered[count // 2], ordered[0], count)
