"""Shadow memory, and the tables of the compiled checks that read it (:mod:`spyre.hw.check_table`).

The last writer of every stick of HBM and LX is in a lazily committed mapping, one uint32 per stick:
0 if the stick is unwritten, else ``record << 6 | core + 1``. A *record* is the number of an upload,
or of one execution of an execute statement, in the `RecordLog`.

Rows and boxes are shared by all instances of an execute statement; each instance adds a base
address. A range that several cores read is checked once.
"""

from __future__ import annotations

import bisect
import mmap
import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.errors import UnsupportedError
from spyre.hw import check_table as ct
from spyre.hw.access import Box, canonical_cores, is_indirect
from spyre.hw.counters import ExecuteLabels, ProgramView, StatementView
from spyre.hw.linking import Allocation, LinkedProgram, Variant, variants_of
from spyre.hw.memory import reserve
from spyre.hw.sanitizer.findings import Check
from spyre.hw.spec import (
    CORES,
    HOST_BYTES,
    LX_BASE,
    LX_BYTES,
    REGION_BITS,
    REGION_SKEW_BYTES,
    STICK_BYTES,
    host_offset,
)
from spyre.layout import AccessMap, Axis, Int64Array, drop_unit_axes, join_axes
from spyre.mlir.operation import Component, Indirection, Tensor, footprint

# --- shadow memory -------------------------------------------------------------------------------

UInt32Array = npt.NDArray[np.uint32]
_WORD_BYTES = 4
_LX_FIRST = host_offset(LX_BASE) // STICK_BYTES


class LabelledProgram(msgspec.Struct, frozen=True):
    """A launched program, with the numbers and names of its executes in findings."""

    view: ProgramView
    label: ExecuteLabels

    def locate(self, execution: int) -> tuple[StatementView, int, tuple[int, ...]]:
        """Statement, instance and loop indices of execution number ``execution`` of a launch."""
        index = int(self.view.executions.statement[execution])
        instance = int(self.view.executions.instance[execution])
        return self.view.statements[index], instance, self.view.loop_indices(index, instance)

    def describe(self, execution: int, core: int | None) -> str:
        """One execution in words, such as ``execute 3 (add), core 5, loop indices (1, 0)``."""
        statement, _, loops = self.locate(execution)
        parts = [f"execute {self.label.first_execute + statement.index} ({statement.name})"]
        parts += [] if core is None else [f"core {core}"]
        parts += [f"loop indices {tuple(loops)}"] if loops else []
        return ", ".join(parts)


Event = str | LabelledProgram
"""A launch, or the name of the memory that the host wrote, by a transfer or directly."""


class RecordLog:
    """Uploads and launches by record. Records count from 1; a launch has one per execution.

    Copies in several threads may `add` at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._firsts: list[int] = []
        self._events: list[Event] = []
        self.next_record = 1

    def add(self, event: Event, records: int = 1) -> int:
        """The first record of a new event. UnsupportedError SPY738 if no records are left."""
        # Two uploads at once must not get the same record.
        with self._lock:
            first = self.next_record
            if first + records > ct.MAX_RECORD:
                raise UnsupportedError(
                    "SPY738",
                    "the sanitizer has seen more executions than it can tell apart",
                    expected=f"at most {ct.MAX_RECORD} executions and uploads until a reset",
                    found=f"{first + records}",
                    hint="Device.reset() starts again",
                )
            self._firsts.append(first)
            self._events.append(event)
            self.next_record += records
            return first

    def find(self, record: int) -> tuple[Event, int]:
        """The event of ``record``, and the number of the execution within the event."""
        number = bisect.bisect_right(self._firsts, record) - 1
        return self._events[number], record - self._firsts[number]


class ShadowMemory:
    """The words of all sticks, in the order of the card's memory on the host.

    ``words``: by number of the host stick. ``ranges``: by number of the LX stick, the range of the
    tensor that wrote it.
    """

    def __init__(self) -> None:
        self._mapping = reserve(HOST_BYTES // STICK_BYTES * _WORD_BYTES)
        self.words: UInt32Array = np.frombuffer(self._mapping, np.uint32)
        self.ranges: UInt32Array = np.zeros(CORES * LX_BYTES // STICK_BYTES, np.uint32)

    def of_range(self, address_bytes: int, size_bytes: int) -> UInt32Array:
        """The words of the sticks of a device range, as a view."""
        start = host_offset(address_bytes)
        return self.words[start // STICK_BYTES : -(-(start + size_bytes) // STICK_BYTES)]

    def mark(self, address_bytes: int, size_bytes: int, record: int) -> None:
        """Record a host write of a range."""
        self.of_range(address_bytes, size_bytes)[:] = record << ct.CORE_BITS | ct.UNKNOWN_CORE
        self._forget_ranges(address_bytes, size_bytes)

    def mark_sticks(self, addresses_bytes: Int64Array, record: int) -> None:
        """Record a write of the sticks of HBM at ``addresses_bytes``."""
        self.words[host_sticks(addresses_bytes)] = record << ct.CORE_BITS | ct.UNKNOWN_CORE

    def clear(self, address_bytes: int, size_bytes: int) -> None:
        """Mark a range as unwritten; whole pages are returned to the host."""
        start = host_offset(address_bytes)
        first, last = start // STICK_BYTES, -(-(start + size_bytes) // STICK_BYTES)
        page = mmap.PAGESIZE // _WORD_BYTES
        low, high = -(-first // page) * page, last // page * page
        if low < high:
            # Returned pages read as zero, and an untouched page costs nothing.
            self.words[first:low] = 0
            self._mapping.madvise(mmap.MADV_DONTNEED, low * _WORD_BYTES, (high - low) * _WORD_BYTES)
            first = high
        self.words[first:last] = 0
        self._forget_ranges(address_bytes, size_bytes)

    def clear_all(self) -> None:
        """Mark all memory as unwritten."""
        pages_bytes = self.words.nbytes // mmap.PAGESIZE * mmap.PAGESIZE
        self._mapping.madvise(mmap.MADV_DONTNEED, 0, pages_bytes)
        self.words[pages_bytes // _WORD_BYTES :] = 0
        self.ranges[:] = 0

    def _forget_ranges(self, address_bytes: int, size_bytes: int) -> None:
        if address_bytes >= LX_BASE:
            first = host_offset(address_bytes) // STICK_BYTES - _LX_FIRST
            self.ranges[first : first + -(-size_bytes // STICK_BYTES)] = 0


def describe_writer(log: RecordLog, word: int) -> str:
    """The writer of a stick in words; ``word`` is not 0."""
    event, execution = log.find(word >> ct.CORE_BITS)
    if isinstance(event, str):
        return f"upload of {event}"
    tag = word & ((1 << ct.CORE_BITS) - 1)
    return event.describe(execution, tag - 1 if 0 < tag <= CORES else None)


def host_sticks(addresses: Int64Array) -> Int64Array:
    """Number in the host reservation of the stick of each device address."""
    mapped: Int64Array = addresses + (addresses >> REGION_BITS) * REGION_SKEW_BYTES
    return mapped // STICK_BYTES


# --- tables of the checks ------------------------------------------------------------------------


class OperandBoxes(msgspec.Struct, frozen=True):
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
        row[ct.IS_LX] = (1 + is_indirect(tensor)) * (tensor.component is Component.LX)
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
        message = "the sanitizer cannot watch a tensor of this many separate dims"
        expected = f"at most {ct.MAX_RANK + 1}"
        raise UnsupportedError("SPY737", message, expected=expected, found=str(len(merged) + 1))
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
