"""Launches as they are counted and reported: how their executes are numbered, and how often each
program ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

from spyre.hw.counters.counts import Counters
from spyre.hw.linking.linked_program import LinkedProgram, OriginalAddresses


@dataclass(frozen=True, slots=True)
class ExecuteLabels:
    """How a launch's executes are numbered and named in findings.

    ``first_execute``: number of its first execute statement; ``directory``: before SDSC files.
    """

    first_execute: int = 0
    directory: str = ""

    def sdsc(self, file: str) -> str:
        """Name of an SDSC file in findings."""
        return f"{self.directory}/{file}" if self.directory not in ("", ".") else file


class LaunchCounts:
    """Launches that ran to their end, by what was linked for them.

    `Executor` notes on the thread that runs launches; read it when nothing runs. Counters are
    computed when they are read, once per program.
    """

    def __init__(self) -> None:
        self._launches: dict[int, int] = {}
        """id of the places a program was linked for → launches there and where it was moved to."""
        self._held: dict[int, OriginalAddresses] = {}

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
