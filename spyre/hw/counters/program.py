"""The interface of a program to its observers.

Counters, cost models, profiles, traces and the sanitizer's messages depend on `ProgramView` only,
not on linked programs. The programs of any compute engine that implements it can be counted,
profiled and traced; :mod:`spyre.hw.linking.view` implements it for linked bundles.
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
        """Name of the operation in its source."""

    @property
    def shape(self) -> str:
        """The iteration space in elements, e.g. ``mb 512, out 1024``."""

    @property
    def source(self) -> str:
        """The file that defines the operation."""

    @property
    def location(self) -> SourceLocation | None:
        """Location of the execute statement, if the program is a file."""

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
        """The same with class and shape of the operation, for the cost models."""


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
    """Units of work that the engine runs one after another: executions, or parts of them.

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

    Launches of the same view differ by addresses only.
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
