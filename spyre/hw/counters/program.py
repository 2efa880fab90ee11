"""A program as observers see it.

Counters, cost models, profiles, traces and the sanitizer's messages take a `ProgramView` and
nothing else of what was linked. So whatever a compute engine runs can be counted, profiled and
traced by saying this much about itself; :mod:`spyre.hw.linking.view` says it of linked bundles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spyre.errors import SourceLocation
from spyre.hw.counters.counts import Counters, OperationCounts
from spyre.hw.counters.scratchpad import LxAccesses
from spyre.layout import Int64Array


class StatementView(Protocol):
    """A statement of a program: one operation, executed once per trip of the loops around it.

    All of it is of one launch. Counts of a statement that no execution reaches are zero, and it has
    no `operation_counts`.
    """

    @property
    def index(self) -> int:
        """Number of the statement in its program, from 0."""

    @property
    def name(self) -> str:
        """The operation, as its source calls it."""

    @property
    def shape(self) -> str:
        """The iteration space in elements, e.g. ``mb 512, out 1024``."""

    @property
    def source(self) -> str:
        """The file that says what it computes."""

    @property
    def location(self) -> SourceLocation | None:
        """Where the program executes it, if that is written in a file."""

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores that take part, ascending."""

    @property
    def counters(self) -> Counters:
        """The work of all its executions."""

    @property
    def core_counts(self) -> Int64Array:
        """The same core by core, int64 [CORES, len(CORE_COLUMNS)]."""

    @property
    def operation_counts(self) -> OperationCounts:
        """The same with its class and shape: what the cost models take."""


@dataclass(frozen=True, eq=False)
class Executions:
    """The executions of a launch in program order, int64 [execution] each.

    ``statement``: index of the statement; ``instance``: which of its executions, from 0.
    """

    statement: Int64Array
    instance: Int64Array

    def __len__(self) -> int:
        return len(self.statement)


@dataclass(frozen=True, eq=False)
class Dispatches:
    """What the engine is given at once, one behind another: executions, or parts of them.

    ``statement``, ``instance``: of which execution, int64 [dispatch]; ``part``: which of the
    program's parts it is, int64 [dispatch]; ``cores``: by part, the cores that take part.
    """

    statement: Int64Array
    instance: Int64Array
    part: Int64Array
    cores: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.statement)


class ProgramView(Protocol):
    """A linked program. Immutable; any thread may read it.

    Launches with the same view differ by addresses only: one object stands for all of them.
    """

    @property
    def statements(self) -> Sequence[StatementView]:
        """In the order of the text; the place of each is its index."""

    @property
    def executions(self) -> Executions:
        """In the order they run, however many dispatches each has."""

    @property
    def dispatches(self) -> Dispatches:
        """In the order they run; a timed launch has a time for each."""

    @property
    def lx_accesses(self) -> LxAccesses:
        """Every use of a range of the scratchpads."""

    def loop_indices(self, statement: int, instance: int) -> tuple[int, ...]:
        """Indices of the loops around an execution, outermost first."""
