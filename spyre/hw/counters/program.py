"""The interface of a program to its observers: its statements, and the counts of its launches.

Counters, cost models, profiles, traces and the sanitizer's messages depend on `ProgramView` only,
not on linked programs. The programs of any compute engine that implements it can be counted,
profiled and traced; :mod:`spyre.hw.linking.linked_program` implements it for linked bundles.

A range of LX is *live* during an execution that touches it, and while a later one will read its
content: from a write to the last read before the next write, or from the beginning for content from
before the launch. Ranges are those of operands, relative to the begin of a core's scratchpad and
merged over the cores, to which planners give the same addresses; if addresses differ, the range is
from the lowest to the highest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import Protocol

import msgspec
import numpy as np

from spyre.errors import SourceLocation
from spyre.hw.counters.counts import Counters, OperationCounts
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


class Executions(msgspec.Struct, frozen=True, eq=False):
    """The executions of a launch in program order, int64 [execution] each.

    ``statement``: index of the statement; ``instance``: which of its executions, from 0.
    """

    statement: Int64Array
    instance: Int64Array

    def __len__(self) -> int:
        return len(self.statement)


class Dispatches(msgspec.Struct, frozen=True, eq=False):
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
    """A linked program, immutable, for any thread. Launches of a view differ by addresses only."""

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


# --- launches ---------------------------------------------------------------------------------


class ExecuteLabels(msgspec.Struct, frozen=True):
    """Numbers and names of a launch's executes in findings.

    ``first_execute``: number of its first execute statement; ``directory``: before SDSC files.
    """

    first_execute: int = 0
    directory: str = ""

    def sdsc(self, file: str) -> str:
        """Name of an SDSC file in findings."""
        return f"{self.directory}/{file}" if self.directory not in ("", ".") else file


UNLABELLED = ExecuteLabels()
"""Executes numbered from 0, SDSC files without a directory."""


class LaunchCounts:
    """Number of finished launches of each program, and the counts of all of them.

    `Executor` adds launches on the thread that runs them; read it when nothing runs. Counts are
    computed when they are read, once per program.
    """

    def __init__(self, launched: Iterable[ProgramView] = ()) -> None:
        self._counted: dict[int, tuple[ProgramView, int]] = {}
        """Views, which stay alive so that their ids are not reused, and launches of each."""
        for view in launched:
            self.note(view)

    def note(self, view: ProgramView, launches: int = 1) -> None:
        """Add ``launches`` of a program."""
        _, before = self._counted.get(id(view), (view, 0))
        self._counted[id(view)] = view, before + launches

    @property
    def launches(self) -> int:
        """Number of launches."""
        return sum(count for _, count in self._counted.values())

    @property
    def counters(self) -> Counters:
        """The work of all of them."""
        counted = self._counted.values()
        work = (s.counters.times(count) for view, count in counted for s in view.statements)
        return reduce(add, work, Counters())

    @property
    def operations(self) -> tuple[OperationCounts, ...]:
        """Operations of all launches, program by program, for the cost models."""
        counted = self._counted.values()
        return tuple(each for view, count in counted for each in operation_counts(view) * count)

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
        return max((view.lx_accesses.highest for view, _ in self._counted.values()), default=0)

    @property
    def lx_peak_bytes(self) -> int:
        """Most bytes of a scratchpad alive in one of them."""
        return max((lx_peak_bytes(view) for view, _ in self._counted.values()), default=0)


def operation_counts(view: ProgramView) -> tuple[OperationCounts, ...]:
    """Operations of one launch for the cost models: one per statement that ran."""
    return tuple(s.operation_counts for s in view.statements if s.counters.executions)


def lx_peak_bytes(view: ProgramView) -> int:
    """Most bytes of a scratchpad alive during one execution."""
    return int(live_bytes(view.lx_accesses, len(view.executions)).max(initial=0))


# --- use of the scratchpads ----------------------------------------------------------------------


class LxAccesses(msgspec.Struct, frozen=True, eq=False):
    """Every use of a range of LX by an execution, as arrays over uses.

    ``low``, ``high``: bytes; ``position``: of the execution in the launch; ``statement``: index of
    its statement; ``writes``: 1 if it writes the range.
    """

    low: Int64Array
    high: Int64Array
    position: Int64Array
    statement: Int64Array
    writes: Int64Array

    @property
    def highest(self) -> int:
        """End of the highest range, bytes."""
        return int(self.high.max(initial=0))


NO_ACCESSES = LxAccesses(*(np.zeros(0, np.int64) for _ in range(5)))


class LxLifetimes(msgspec.Struct, frozen=True, eq=False):
    """Contents of ranges of LX, from the execution that writes them to the last that reads them.

    ``first``, ``last``: positions of executions; ``writer``, ``reader``: indices of their
    statements. Content from before the launch begins at its first use; ``written`` is 0 for it.
    """

    low: Int64Array
    high: Int64Array
    first: Int64Array
    last: Int64Array
    writer: Int64Array
    reader: Int64Array
    written: Int64Array

    def __len__(self) -> int:
        return len(self.low)


def live_bytes(accesses: LxAccesses, executions: int) -> Int64Array:
    """Bytes of one scratchpad that are live during each of the executions, int64 [execution]."""
    live = np.zeros(executions, np.int64)
    ranges = np.stack([accesses.low, accesses.high], axis=1)
    distinct, which = np.unique(ranges, axis=0, return_inverse=True)
    which = which.reshape(-1)
    for number, (low, high) in enumerate(distinct.tolist()):
        mine = which == number
        position, writes = accesses.position[mine], accesses.writes[mine] == 1
        written, read = np.unique(position[writes]), np.unique(position[~writes])
        live += (high - low) * is_live(written, read, executions)
    return live


def is_live(written: Int64Array, read: Int64Array, count: int) -> Int64Array:
    """1 for every of ``count`` executions that touches a range or has its next read before it.

    ``written``, ``read``: executions that write and that read it, ascending.
    """
    touched = np.union1d(written, read)
    # a range whose next access is a read is live until then; after its last access it is not
    reads = np.append(np.isin(touched, read), False)
    live: Int64Array = reads[np.searchsorted(touched, np.arange(count), side="right")] * np.int64(1)
    live[touched] = 1
    return live


def lifetimes(accesses: LxAccesses) -> LxLifetimes:
    """Uses of the same range, cut where it is written without being read by the same execution."""
    if not len(accesses.low):
        return LxLifetimes(*(np.zeros(0, np.int64) for _ in range(7)))
    order = np.lexsort((accesses.writes, accesses.position, accesses.high, accesses.low))
    low, high = accesses.low[order], accesses.high[order]
    position, writes = accesses.position[order], accesses.writes[order]
    statement = accesses.statement[order]
    other_range = (np.diff(low) != 0) | (np.diff(high) != 0)
    # of one execution the read sorts first, so its write at the same position cuts nothing
    begins = np.append(True, other_range | ((writes[1:] == 1) & (np.diff(position) != 0)))
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order)) - 1
    return LxLifetimes(
        low[first],
        high[first],
        position[first] * writes[first],
        position[last],
        statement[first],
        statement[last],
        writes[first],
    )
