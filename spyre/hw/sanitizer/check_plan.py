"""The tables of the compiled checks, made once per linked program.

Everything that is the same for all instances of an execute statement is a row or a box; what
differs is one base per instance. Ranges that several cores read are looked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spyre.errors import UnsupportedError
from spyre.hw.access import Box, canonical_cores, core_boxes, is_indirect
from spyre.hw.linking import Allocation, LinkedProgram, Variant, variants_of
from spyre.hw.sanitizer.findings import Check
from spyre.hw.spec import LX_BASE, LX_BYTES, REGION_BITS, REGION_SKEW_BYTES, STICK_BYTES
from spyre.hw.table import checks as ct
from spyre.layout import AccessMap, Axis, Int64Array, drop_unit_axes, join_axes
from spyre.mlir.operation import Component, Tensor, footprint


def host_sticks(addresses: Int64Array) -> Int64Array:
    """Number in the host reservation of the stick that holds each device address."""
    mapped: Int64Array = addresses + (addresses >> REGION_BITS) * REGION_SKEW_BYTES
    return mapped // STICK_BYTES


@dataclass(frozen=True)
class OperandBoxes:
    """One operand of one execute: its boxes, and where they begin (bytes, [instance, core]).

    ``ranges``: per core, sticks before its box and from first to last of what the box is part of.
    """

    index: int
    tensor: Tensor
    begins: Int64Array
    boxes: tuple[Box | None, ...]
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, variant: Variant, index: int) -> OperandBoxes:
        """Operand ``index`` of ``variant``."""
        tensor = variant.op.tensors[index]
        boxes = core_boxes(variant.op, tensor)
        firsts = np.array([box.first_bytes if box else 0 for box in boxes], np.int64)
        begins = variant.starts[:, index, :] + firsts
        return cls(index, tensor, begins, boxes, _box_ranges(variant, index, boxes))

    @property
    def is_aligned(self) -> bool:
        """True if every box begins at a stick."""
        return not (self.begins % STICK_BYTES).any()

    @property
    def low(self) -> int:
        """Lowest address any core touches."""
        return int(self.begins.min())

    @property
    def high(self) -> int:
        """End of the highest byte any core touches."""
        spans = np.array([box.span_bytes if box else 0 for box in self.boxes], np.int64)
        return int((self.begins + spans).max())


def _box_ranges(
    variant: Variant, index: int, boxes: Sequence[Box | None]
) -> tuple[tuple[int, int], ...]:
    """Per core, sticks before its box and from first to last: of a cell those of its whole slice.

    A cell's tensor has the start of the slice it lies in, see :mod:`spyre.hw.plans.normalise`.
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
    """A scattered output as all that its indices may reach: the rest of its tensor, or of LX.

    Which sticks it really writes depends on data; all of them count as written, by no known core.
    """
    starts, cores = operand.begins, len(operand.boxes)
    if operand.tensor.component is Component.LX:
        ends = starts - (starts - LX_BASE) % LX_BYTES + LX_BYTES
    else:
        starts = np.repeat(starts.min(axis=1)[:, None], cores, axis=1)
        ends = starts + STICK_BYTES
        for a in allocations:
            inside = (starts >= a.address_bytes) & (starts < a.end_bytes)
            ends = np.where(inside, np.maximum(ends, a.end_bytes), ends)
    sticks = int((ends - starts).min()) // STICK_BYTES
    box = Box(AccessMap((0,), (Axis(sticks, (STICK_BYTES,)),)), ())
    ranges = ((0, sticks - 1),) * cores
    return OperandBoxes(operand.index, operand.tensor, starts, (box,) * cores, ranges)


def overlap(a: OperandBoxes, b: OperandBoxes) -> bool:
    """True if cores might meet: both in HBM, their ranges not apart.

    In LX a core writes its own scratchpad only, and an output that overlaps what other cores read
    is refused before (SPY261).
    """
    if Component.LX in (a.tensor.component, b.tensor.component):
        return False
    return a.low < b.high and b.low < a.high


@dataclass(frozen=True)
class RowSource:
    """What a row was made from: execute statement, what it runs, operand, and each box's core.

    ``positions``: of the boxes' cores in the operation's.
    """

    static: int
    variant: Variant
    operand: int
    role: int
    positions: tuple[int, ...]


@dataclass(frozen=True)
class CheckPlan:
    """Tables of :mod:`spyre.hw.table.checks`; ``sources`` explains the rows."""

    executions: Int64Array
    heads: Int64Array
    rows: Int64Array
    boxes: Int64Array
    nests: Int64Array
    bases: Int64Array
    patterns: Int64Array
    offsets: Int64Array
    sources: tuple[RowSource, ...]

    @property
    def execution_count(self) -> int:
        """Executions of one launch."""
        return int(self.executions.max(initial=-1)) + 1


def make_check_plan(linked: LinkedProgram, checks: frozenset[Check]) -> CheckPlan:
    """The tables for ``linked``; without INIT and LX nothing is read, but writes are recorded."""
    builder = _Builder(linked, checks)
    heads = [0]
    for static in range(len(linked.program.executes)):
        if linked.plans[static]:
            builder.add_execute(static)
        heads.append(len(builder.rows))
    return CheckPlan(
        execution_numbers(linked.dispatch),
        np.array(heads, np.int64),
        _rows_table(builder.rows, ct.ROW_WORDS),
        _rows_table(builder.boxes, ct.BOX_WORDS),
        _rows_table(builder.nests, ct.NEST_WORDS),
        _flat(builder.bases),
        _flat(builder.patterns),
        _flat(builder.offsets),
        tuple(builder.sources),
    )


def execution_numbers(dispatch: Int64Array) -> Int64Array:
    """Per dispatch the number of the execution it begins, -1 where it continues one."""
    if not len(dispatch):
        return np.zeros(0, np.int64)
    begins = np.ones(len(dispatch), np.bool_)
    begins[1:] = (dispatch[1:, 1:3] != dispatch[:-1, 1:3]).any(axis=1)
    return np.where(begins, np.cumsum(begins) - 1, -1)


def _rows_table(rows: Sequence[Sequence[int]], words: int) -> Int64Array:
    return np.array(rows, np.int64).reshape(len(rows), words)


def _flat(parts: Sequence[Int64Array]) -> Int64Array:
    return np.concatenate([np.zeros(0, np.int64), *parts])


@dataclass
class _Builder:
    linked: LinkedProgram
    checks: frozenset[Check]
    rows: list[list[int]] = field(default_factory=list)
    boxes: list[list[int]] = field(default_factory=list)
    nests: list[list[int]] = field(default_factory=list)
    bases: list[Int64Array] = field(default_factory=list)
    patterns: list[Int64Array] = field(default_factory=list)
    offsets: list[Int64Array] = field(default_factory=list)
    sources: list[RowSource] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("b", "p", "o"), 0))
    known_nests: dict[tuple[int, ...], int] = field(default_factory=dict)

    def add_execute(self, static: int) -> None:
        """Rows of one execute statement: reads, writes, inputs that overlap an output."""
        for variant in variants_of(self.linked, static):
            self._add_variant(static, variant)

    def _add_variant(self, static: int, variant: Variant) -> None:
        op = variant.op
        operands = [OperandBoxes.of(variant, k) for k in range(len(op.tensors))]
        first_output = len(op.tensors) - len(op.outputs)
        inputs, outputs = operands[:first_output], operands[first_output:]
        # What an index leads to depends on data: the kernels check indices, nothing is known here.
        for operand in inputs:
            if not is_indirect(operand.tensor) and self.checks & {Check.INIT, Check.LX}:
                self._add(static, variant, operand, ct.READ)
        for operand in outputs:
            # Rather too much counts as written than that a later read is reported wrongly.
            if is_indirect(operand.tensor):
                operand = reachable(operand, self.linked.binding.allocations)
            self._add(static, variant, operand, ct.WRITE)
        # Only inputs that may meet an output have to be looked at again after the writes.
        for operand in inputs:
            if not is_indirect(operand.tensor) and any(overlap(operand, o) for o in outputs):
                self._add(static, variant, operand, ct.REREAD)

    def _add(self, static: int, variant: Variant, operand: OperandBoxes, role: int) -> None:
        op, count = variant.op, len(self.linked.schedule.loop_indices[static])
        tags = canonical_cores(op)
        positions = [p for p, box in enumerate(operand.boxes) if box is not None]
        starts = host_sticks(operand.begins)
        same = [self._nest(b, operand.is_aligned) if b else -1 for b in operand.boxes]
        # A read that several cores share is checked once; writes also differ by who makes them.
        positions = _distinct(starts, positions, same, None if role == ct.READ else tags)
        if not positions:
            return
        chosen = starts[:, positions]
        base = chosen[:, 0]
        relative, pattern = _patterns(chosen - base[:, None])
        # One core cannot race with itself: without a second one the compiled check has less to do.
        clash = role == ct.REREAD or (
            not is_indirect(operand.tensor) and len({tags[p] for p in positions}) > 1
        )
        self.rows.append(
            [
                role,
                len(self.boxes),
                len(positions),
                self._put("b", self.bases, _of_all(base, variant, count)),
                -1
                if pattern is None
                else self._put("p", self.patterns, _of_all(pattern, variant, count)),
                self._put("o", self.offsets, relative.ravel()),
                int(operand.tensor.component is Component.LX),
                int(clash and Check.RACE in self.checks),
            ]
        )
        for p in positions:
            tag = ct.UNKNOWN_CORE if is_indirect(operand.tensor) else op.cores[tags[p]] + 1
            before, length = operand.ranges[p]
            self.boxes.append([tag, same[p], before, length + (not operand.is_aligned)])
        self.sources.append(RowSource(static, variant, operand.index, role, tuple(positions)))

    def _put(self, name: str, parts: list[Int64Array], values: Int64Array) -> int:
        offset = self.sizes[name]
        parts.append(values)
        self.sizes[name] += values.size
        return offset

    def _nest(self, box: Box, aligned: bool) -> int:
        words = tuple(nest_words(box, aligned))
        if words not in self.known_nests:
            self.known_nests[words] = len(self.nests)
            self.nests.append(list(words))
        return self.known_nests[words]


def _of_all(values: Int64Array, variant: Variant, count: int) -> Int64Array:
    """``values`` of the variant's instances among all ``count`` of the statement, -1 elsewhere."""
    spread = np.full(count, -1, np.int64)
    spread[variant.instances] = values
    return spread


def nest_words(box: Box, aligned: bool) -> list[int]:
    """A box as runs of evenly spaced sticks; unaligned runs touch one stick more.

    UnsupportedError SPY737 for more than MAX_RANK axes around the runs.
    """
    axes = join_axes(drop_unit_axes(box.walk.picked((0,)).axes))
    merged = [(axis.extent, axis.pitches[0] // STICK_BYTES) for axis in axes]
    run, stride = 1, 1
    # The innermost axis becomes the run. Unaligned runs touch a stick more at their end, which
    # is right only where their sticks are neighbours.
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
    """The first of the positions that touch the same in every instance (with equal tags, if given).

    ``starts``: [instance, position]; ``nests``: by position.
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
    """Distinct rows of ``relative``, and which of them each instance has (None: all the first)."""
    if (relative == relative[:1]).all():
        return relative[:1], None
    distinct, which = np.unique(relative, axis=0, return_inverse=True)
    return distinct, which.reshape(-1).astype(np.int64)


def new_results(plan: CheckPlan) -> npt.NDArray[np.int64]:
    """Empty findings for one launch: int64 [row, slot, word]."""
    return np.zeros((len(plan.rows), ct.SLOTS, ct.RESULT_WORDS), np.int64)
