"""Putting the tables of all executes one behind another, and their dispatches in program order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spyre.hw import table as tb
from spyre.hw.anchors import FIXED, UNKNOWN
from spyre.hw.binding import Binding
from spyre.hw.chains import mark_chains
from spyre.hw.kernels.opcodes import DISPATCH_BASES, DISPATCH_WORDS
from spyre.hw.linked_program import LinkedCode, LinkedPlaces, LinkedProgram
from spyre.hw.nest import Int64Array
from spyre.hw.plan_run import PlanRun
from spyre.hw.spec import (
    MAX_OPERANDS,
)
from spyre.mlir.program import LoopProgram, Schedule


@dataclass
class ExecutePart:
    """Tables and instance bases of one part of a static execute."""

    instances: int
    runs: list[PlanRun] = field(default_factory=list)
    tables: list[Int64Array] = field(default_factory=list)

    def add(self, run: PlanRun, tables: Int64Array) -> None:
        """``tables`` run for the instances of ``run``."""
        self.runs.append(run)
        self.tables.append(tables)


def assemble(
    program: LoopProgram,
    schedule: Schedule,
    linked: Sequence[Sequence[ExecutePart]],
    binding: Binding,
    movable: bool,
) -> LinkedProgram:
    """Put all dispatches in program order; ``linked``: the parts of each static execute.

    ``movable``: other allocation starts change nothing but symbols.
    """
    layout = _TableLayout()
    for parts in linked:
        for part in parts:
            layout.add(part)
    stacked = np.concatenate(layout.tables) if layout.tables else np.zeros((0, tb.WORDS), np.int64)
    dispatch, anchors = _dispatches(schedule, layout, [len(parts) for parts in linked])
    dispatch[:, 0] = np.concatenate(layout.heads)[dispatch[:, 0]]
    runs = tuple(tuple(run for part in parts for run in part.runs) for parts in linked)
    rows = np.array(layout.run_rows, np.int64)
    known = all((run.anchors != UNKNOWN).all() for group in runs for run in group)
    chained = mark_chains(stacked, dispatch)
    code = LinkedCode(stacked, program, rows, anchors, movable and known, chained)
    return LinkedProgram(code, LinkedPlaces(dispatch, schedule, runs, binding))


@dataclass
class _TableLayout:
    """Tables of all parts one behind another.

    ``heads``: rows that begin a table. Per part and instance: ``first`` of its heads, how many
    (``count``), ``bases`` and what they move with (``anchors``).
    """

    tables: list[Int64Array] = field(default_factory=list)
    heads: list[Int64Array] = field(default_factory=lambda: [np.zeros(0, np.int64)])
    first: list[Int64Array] = field(default_factory=list)
    count: list[Int64Array] = field(default_factory=list)
    bases: list[Int64Array] = field(default_factory=list)
    anchors: list[Int64Array] = field(default_factory=list)
    run_rows: list[int] = field(default_factory=list)
    rows: int = 0
    total: int = 0

    def add(self, part: ExecutePart) -> None:
        """Append the tables of ``part``."""
        first = np.zeros(part.instances, np.int64)
        count = np.zeros(part.instances, np.int64)
        bases = np.zeros((part.instances, MAX_OPERANDS), np.int64)
        anchors = np.full((part.instances, MAX_OPERANDS), FIXED, np.int64)
        for run, rows in zip(part.runs, part.tables, strict=True):
            head = np.flatnonzero(rows[:, tb.KIND] != tb.EXTRA)
            self.tables.append(rows)
            self.run_rows.append(self.rows)
            self.heads.append(self.rows + head)
            first[run.instances] = self.total
            count[run.instances] = len(head)
            bases[run.instances, : run.bases.shape[1]] = run.bases
            anchors[run.instances, : run.bases.shape[1]] = run.anchors
            self.rows += len(rows)
            self.total += len(head)
        self.first.append(first)
        self.count.append(count)
        self.bases.append(bases)
        self.anchors.append(anchors)


def _dispatches(
    schedule: Schedule, layout: _TableLayout, parts: Sequence[int]
) -> tuple[Int64Array, npt.NDArray[np.int32]]:
    """Every dispatch in program order, and what its bases move with, [dispatch, operand].

    ``parts``: how many each static execute has.
    """
    if not layout.first:
        return np.zeros((0, DISPATCH_WORDS), np.int64), np.zeros((0, MAX_OPERANDS), np.int32)
    executes, part = _execute_parts(schedule, np.array(parts, np.int64))
    offsets = np.cumsum([0] + [len(f) for f in layout.first])[:-1]
    row = offsets[part] + schedule.instance[executes]
    first = np.concatenate(layout.first)[row]
    count = np.concatenate(layout.count)[row]
    bases = np.concatenate(layout.bases)[row]
    repeat = np.repeat(np.arange(len(row)), count)
    within = np.arange(len(repeat)) - np.repeat(np.cumsum(count) - count, count)
    dispatch = np.zeros((len(repeat), DISPATCH_WORDS), np.int64)
    dispatch[:, 0] = first[repeat] + within
    dispatch[:, 1] = schedule.order[executes][repeat]
    dispatch[:, 2] = schedule.instance[executes][repeat]
    dispatch[:, DISPATCH_BASES:] = bases[repeat]
    anchors = np.concatenate(layout.anchors)[row][repeat]
    return np.ascontiguousarray(dispatch), np.ascontiguousarray(anchors, np.int32)


def _execute_parts(schedule: Schedule, parts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Dynamic executes repeated once per part of theirs, and that part's number."""
    count = parts[schedule.order]
    executes = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(executes)) - np.repeat(np.cumsum(count) - count, count)
    first = np.cumsum(parts) - parts
    return executes, first[schedule.order[executes]] + within
