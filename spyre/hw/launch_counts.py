"""Counting what a card runs: how often each linked program, and from that its counters."""

from __future__ import annotations

from functools import reduce
from operator import add

from spyre.hw.counters import Counters
from spyre.hw.linked_program import LinkedPlaces, LinkedProgram


class LaunchCounts:
    """Launches that ran to their end, by what was linked for them.

    `Executor` notes on the thread that runs launches; read it when nothing runs. Counters are
    computed when they are read, once per program.
    """

    def __init__(self) -> None:
        self._launches: dict[int, int] = {}
        """id of the places a program was linked for → launches there and where it was moved to."""
        self._held: dict[int, LinkedPlaces] = {}

    def note(self, linked: LinkedProgram, launches: int = 1) -> None:
        """``linked`` ran, ``launches`` times."""
        origin = linked.places.origin
        key = id(origin)
        if key in self._launches:
            self._launches[key] += launches
        else:
            self._launches[key] = launches
            self._held[key] = origin

    @property
    def launches(self) -> int:
        """Number of launches."""
        return sum(self._launches.values())

    @property
    def counters(self) -> Counters:
        """The work of all of them."""
        found = (
            each.times(count)
            for key, count in self._launches.items()
            for each in self._held[key].counters
        )
        return reduce(add, found, Counters())
