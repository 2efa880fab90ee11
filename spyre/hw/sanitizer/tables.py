"""The tables of the compiled checks of a linked program (:mod:`spyre.hw.check_table`).

Rows and boxes are shared by all instances of an execute statement; each instance adds a base
address. A range that several cores read is checked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spyre.errors import UnsupportedError
from spyre.hw import check_table as ct
from spyre.hw.access import Box, canonical_cores, is_indirect
from spyre.hw.linking import Allocation, LinkedProgram, Variant, variants_of
from spyre.hw.sanitizer.findings import Check
from spyre.hw.sanitizer.shadow import host_sticks
from spyre.hw.spec import LX_BASE, LX_BYTES, STICK_BYTES
from spyre.layout import AccessMap, Axis, Int64Array, drop_unit_axes, join_axes
from spyre.mlir.operation import Component, Indirection, Tensor, footprint


@dataclass(frozen=True)
class OperandBoxes:
    """One operand of one execute: the boxes of its cores.

    ``begins``: address of each box, bytes, [instance, core]. ``ranges``: per core, sticks that the
    range the box is part of has before it, and their distance from the first to the last.
    """

    index: int
    tensor: Tensor
    begins: Int64Array
    boxes: tuple[Box | None, ...]
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, variant: Variant, index: int) -> OperandBoxes:
        tensor = variant.op.tensors[index]
        boxes = variant.boxes[index]
        firsts = np.array([box.first_bytes if box else 0 for box in boxes], np.int64)
        begins = variant.starts[:, index, :] + firsts
        return cls(index, tensor, begins, boxes, _box_ranges(variant, index, boxes))

    @property
    def low(self) -> int:
        """Lowest address that a core accesses."""
        return int(self.begins.min())

    @property
    def high(self) -> int:
        """End of the highest byte that a core accesses."""
        spans = np.array([box.span_bytes if box else 0 for box in self.boxes], np.int64)
        return int((self.begins + spans).max())


def _box_ranges(
    variant: Variant, index: int, boxes: Sequence[Box | None]
) -> tuple[tuple[int, int], ...]:
    """`OperandBoxes.ranges`; the range of a cell is its whole work slice.

    A cell's tensor has the start of the slice that contains it, see
    :mod:`spyre.hw.plans.normalise`.
    """
    tensor = variant.op.tensors[index]
    spans = [box.span_bytes if box else STICK_BYTES for box in boxes]
    befores = np.zeros(len(boxes), np.int64)
    if variant.divided is not None and tensor.component is Component.LX:
        spans = [footprint(variant.divided, variant.divided.tensors[index]).span_bytes] * len(boxes)
        offsets = (variant.starts[0, index] - LX_BASE) % LX_BYTES
        befores = (offsets - np.array(tensor.starts, np.int64)) // STICK_BYTES
    return tuple(
        (before, span // STICK_BYTES - 1)
        for before, span in zip(befores.tolist(), spans, strict=True)
    )


def reachable(operand: OperandBoxes, allocations: Sequence[Allocation]) -> OperandBoxes:
    """A scattered output as the range that its indices may reach: the rest of its tensor, or of LX;
    an output that is written by elements as the range of these.

    The sticks it writes depend on data; all of the range counts as written, by an unknown core.
    """
    starts, cores = operand.begins, len(operand.boxes)
    if operand.tensor.indirection is not Indirection.VALUE:
        spans = np.array([box.span_bytes if box else 0 for box in operand.boxes], np.int64)
        ends, starts = starts + spans, starts // STICK_BYTES * STICK_BYTES
    elif operand.tensor.component is Component.LX:
        ends = starts - (starts - LX_BASE) % LX_BYTES + LX_BYTES
    else:
        starts = np.repeat(starts.min(axis=1)[:, None], cores, axis=1)
        ends = starts + STICK_BYTES
        for a in allocations:
            inside = (starts >= a.address_bytes) & (starts < a.end_bytes)
            ends = np.where(inside, np.maximum(ends, a.end_bytes), ends)
    sticks = -(-int((ends - starts).min()) // STICK_BYTES)
    box = Box(AccessMap((0,), (Axis(sticks, (STICK_BYTES,)),)), ())
    ranges = ((0, sticks - 1),) * cores
    return OperandBoxes(operand.index, operand.tensor, starts, (box,) * cores, ranges)


def may_overlap(a: OperandBoxes, b: OperandBoxes) -> bool:
    """True if both are in HBM and the ranges of their cores overlap.

    In LX a core writes its own scratchpad only, and outputs that overlap reads of other cores are
    refused before linking (SPY261).
    """
    if Component.LX in (a.tensor.component, b.tensor.component):
        return False
    return a.low < b.high and b.low < a.high


class CheckTables:
    """The tables of a linked program; without INIT and LX only writes are recorded.

    ``operands``: behind each row an operand: the variant, the operand's number, the role, and the
    positions of its boxes' cores among the operation's. ``executions``: executions of one launch.
    ``arguments``: the tables that `drive_checked` takes, in its order.
    """

    def __init__(self, linked: LinkedProgram, checks: frozenset[Check]) -> None:
        self.operands: list[tuple[Variant, int, int, list[int]]] = []
        self._checks = checks
        self._rows: list[list[int]] = []
        self._boxes: list[list[int]] = []
        self._nests: dict[tuple[int, ...], int] = {}  # index by the words of a nest
        self._bases: list[int] = []
        self._patterns: list[int] = []
        self._offsets: list[int] = []
        first_rows = [0]
        for static in range(len(linked.program.executes)):
            for variant in variants_of(linked, static):
                self._add(variant)
            first_rows.append(len(self._rows))
        numbers = execution_numbers(linked.dispatch)
        self.executions = int(numbers.max(initial=-1)) + 1
        self.arguments = (
            numbers,
            np.array(first_rows, np.int64),
            np.array(self._rows, np.int64).reshape(-1, ct.ROW_WORDS),
            np.array(self._boxes, np.int64).reshape(-1, ct.BOX_WORDS),
            np.array(list(self._nests), np.int64).reshape(-1, ct.NEST_WORDS),
            *(np.array(x, np.int64) for x in (self._bases, self._patterns, self._offsets)),
        )

    def _add(self, variant: Variant) -> None:
        """Add the rows of an operation, in the order of their checks."""
        op = variant.op
        operands = [OperandBoxes.of(variant, k) for k in range(len(op.tensors))]
        first_output = len(op.tensors) - len(op.outputs)
        # Which sticks an index selects depends on data; the kernels check the indices.
        inputs = [o for o in operands[:first_output] if not is_indirect(o.tensor)]
        outputs = operands[first_output:]
        if self._checks & {Check.INIT, Check.LX}:
            for operand in inputs:
                self._add_row(variant, operand, ct.READ)
        for operand in outputs:
            # Recording too many writes hides findings; recording too few would invent some.
            if is_indirect(operand.tensor):
                operand = reachable(operand, variant.binding.allocations)
            self._add_row(variant, operand, ct.WRITE)
        # Only inputs that may overlap an output have to be checked again after the writes.
        for operand in inputs:
            if any(may_overlap(operand, output) for output in outputs):
                self._add_row(variant, operand, ct.REREAD)

    def _add_row(self, variant: Variant, operand: OperandBoxes, role: int) -> None:
        op, tensor = variant.op, operand.tensor
        writers = canonical_cores(op)
        starts = host_sticks(operand.begins)
        is_aligned = not (operand.begins % STICK_BYTES).any()
        words = [tuple(nest_words(box, is_aligned)) if box else None for box in operand.boxes]
        nests = [self._nests.setdefault(w, len(self._nests)) if w else -1 for w in words]
        # A read that several cores share is checked once; writes also differ by their core.
        positions = [p for p, box in enumerate(operand.boxes) if box is not None]
        positions = _distinct(starts, positions, nests, None if role == ct.READ else writers)
        if not positions:
            return
        base = starts[:, positions[0]]
        offsets, pattern = _patterns(starts[:, positions] - base[:, None])
        # A single core cannot race with itself.
        can_race = role == ct.REREAD or (
            not is_indirect(tensor) and len({writers[p] for p in positions}) > 1
        )
        instances = len(variant.schedule.loop_indices[variant.execute.index])
        row = [0] * ct.ROW_WORDS
        row[ct.ROLE] = role
        row[ct.FIRST_BOX], row[ct.BOXES] = len(self._boxes), len(positions)
        row[ct.BASES], row[ct.OFFSETS] = len(self._bases), len(self._offsets)
        row[ct.PATTERNS] = -1 if pattern is None else len(self._patterns)
        row[ct.IS_LX] = int(tensor.component is Component.LX)
        row[ct.CHECKS_CLASHES] = int(can_race and Check.RACE in self._checks)
        self._rows.append(row)
        self._offsets += offsets.ravel().tolist()
        for column, values in ((self._bases, base), (self._patterns, pattern)):
            if values is not None:
                of_all = np.full(instances, -1, np.int64)
                of_all[variant.instances] = values
                column += of_all.tolist()
        for p in positions:
            tag = ct.UNKNOWN_CORE if is_indirect(tensor) else op.cores[writers[p]] + 1
            before, length = operand.ranges[p]
            self._boxes.append([tag, nests[p], before, length + (not is_aligned)])
        self.operands.append((variant, operand.index, role, positions))


def execution_numbers(dispatch: Int64Array) -> Int64Array:
    """Number of the execution that each dispatch begins, -1 where it continues one."""
    if not len(dispatch):
        return np.zeros(0, np.int64)
    begins = np.ones(len(dispatch), np.bool_)
    begins[1:] = (dispatch[1:, 1:3] != dispatch[:-1, 1:3]).any(axis=1)
    return np.where(begins, np.cumsum(begins) - 1, -1)


def nest_words(box: Box, aligned: bool) -> list[int]:
    """A box as runs of evenly spaced sticks; unaligned runs include one stick more.

    UnsupportedError SPY737 for more than MAX_RANK axes around the runs.
    """
    axes = join_axes(drop_unit_axes(box.walk.picked((0,)).axes))
    merged = [(axis.extent, axis.pitches[0] // STICK_BYTES) for axis in axes]
    run, stride = 1, 1
    # The innermost axis becomes the run. Unaligned runs touch one more stick at their end, which
    # is right only if their sticks are neighbours.
    if merged and (aligned or merged[-1][1] == 1):
        run, stride = merged.pop()
    run += not aligned
    if len(merged) > ct.MAX_RANK:
        raise UnsupportedError(
            "SPY737",
            "the sanitizer cannot watch a tensor of this many separate dims",
            expected=f"at most {ct.MAX_RANK + 1}",
            found=str(len(merged) + 1),
        )
    last = (run - 1) * stride + sum((steps - 1) * pitch for steps, pitch in merged)
    words = [0] * ct.NEST_WORDS
    words[ct.RANK], words[ct.RUN], words[ct.LAST] = len(merged), run, last
    words[ct.STRIDE] = stride
    for k, (steps, pitch) in enumerate(merged):
        words[ct.STEPS + k], words[ct.PITCHES + k] = steps, pitch
    return words


def _distinct(
    starts: Int64Array, positions: Sequence[int], nests: Sequence[int], tags: Sequence[int] | None
) -> list[int]:
    """The first of all positions that access the same sticks in every instance.

    ``starts``: [instance, position]; ``nests``, ``tags``: by position. With ``tags``, positions of
    different tags stay distinct.
    """
    columns = starts[:, positions]
    # Where all instances have the same pattern the first one decides: np.unique sorts columns.
    if columns.size and (columns - columns[:, :1] == columns[:1] - columns[0, 0]).all():
        columns = columns[:1]
    for other in (nests, tags):
        if other is not None:
            labels = np.array([[other[p] for p in positions]], np.int64)
            columns = np.concatenate((columns, labels))
    _, first = np.unique(columns, axis=1, return_index=True)
    return [positions[k] for k in sorted(first.tolist())]


def _patterns(relative: Int64Array) -> tuple[Int64Array, Int64Array | None]:
    """Distinct rows of ``relative``, and the row number of each instance (None: always 0)."""
    if (relative == relative[:1]).all():
        return relative[:1], None
    distinct, which = np.unique(relative, axis=0, return_inverse=True)
    return distinct, which.reshape(-1).astype(np.int64)
