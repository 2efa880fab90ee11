"""Launches as they are reported and counted: numbers of their executes, and the counts of many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

from spyre.hw.counters.counts import Counters, OperationCounts
from spyre.hw.counters.program import ProgramView
from spyre.hw.counters.scratchpad import live_bytes


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
    """Number of finished launches of each program, and the counts of all of them.

    `Executor` adds launches on the thread that runs them; read it when nothing runs. Counts are
    computed when they are read, once per program.
    """

    def __init__(self, launched: Iterable[ProgramView] = ()) -> None:
        self._launches: dict[int, int] = {}
        """Launches by id of the view, which ``_views`` keeps alive, so that ids are not reused."""
        self._views: dict[int, ProgramView] = {}
        for view in launched:
            self.note(view)

    def note(self, view: ProgramView, launches: int = 1) -> None:
        """Add ``launches`` of a program."""
        key = id(view)
        if key in self._launches:
            self._launches[key] += launches
        else:
            self._launches[key] = launches
            self._views[key] = view

    @property
    def launches(self) -> int:
        """Number of launches."""
        return sum(self._launches.values())

    @property
    def counters(self) -> Counters:
        """The work of all of them."""
        work = (s.counters.times(count) for view, count in self._counted() for s in view.statements)
        return reduce(add, work, Counters())

    @property
    def operations(self) -> tuple[OperationCounts, ...]:
        """Operations of all launches, program by program, for the cost models."""
        return tuple(
            counts for view, count in self._counted() for counts in operation_counts(view) * count
        )

    @property
    def executes(self) -> int:
        """Executions of all statements."""
        return sum(operation.runs for operation in self.operations)

    @property
    def hbm_bytes(self) -> int:
        """Bytes over the memory interface, both directions."""
        return sum(operation.hbm_bytes for operation in self.operations)

    @property
    def cores(self) -> int:
        """Cores of the operation that uses the most."""
        return max((operation.cores for operation in self.operations), default=0)

    @property
    def lx_high_water_bytes(self) -> int:
        """End of the highest range of a scratchpad that any of them touches."""
        return max((view.lx_accesses.highest for view in self._views.values()), default=0)

    @property
    def lx_peak_bytes(self) -> int:
        """Most bytes of a scratchpad alive in one of them."""
        return max(map(lx_peak_bytes, self._views.values()), default=0)

    def _counted(self) -> Iterator[tuple[ProgramView, int]]:
        for key, view in self._views.items():
            yield view, self._launches[key]


def operation_counts(view: ProgramView) -> tuple[OperationCounts, ...]:
    """Operations of one launch for the cost models: one per statement that ran."""
    return tuple(s.operation_counts for s in view.statements if s.counters.executions)


def lx_peak_bytes(view: ProgramView) -> int:
    """Most bytes of a scratchpad alive during one execution."""
    return int(live_bytes(view.lx_accesses, len(view.executions)).max(initial=0))
