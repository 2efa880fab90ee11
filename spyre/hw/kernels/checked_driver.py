"""The checking driver: shadow checks of every execution before its dispatches run.

Per execution: reads look for unwritten sticks, writes for sticks that another core wrote in the
same execution; inputs that overlap an output are checked again after the writes. The tables are
those of :mod:`spyre.hw.check_table`; the slow reference is `qa.sanitize_mutants`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spyre.hw import check_table as ct
from spyre.hw.kernels.driver import drive
from spyre.hw.kernels.jit import inline, kernel
from spyre.hw.spec import LX_BASE, LX_BYTES, STICK_BYTES, host_offset

ROLE, FIRST_BOX, BOXES, BASES, PATTERNS = ct.ROLE, ct.FIRST_BOX, ct.BOXES, ct.BASES, ct.PATTERNS
OFFSETS, IS_LX, CHECKS_CLASHES = ct.OFFSETS, ct.IS_LX, ct.CHECKS_CLASHES
READ, WRITE = ct.READ, ct.WRITE
TAG, NEST, BEFORE, LENGTH = ct.TAG, ct.NEST, ct.BEFORE, ct.LENGTH
RANK, RUN, STRIDE = ct.RANK, ct.RUN, ct.STRIDE
STEPS, PITCHES, MAX_RANK = ct.STEPS, ct.PITCHES, ct.MAX_RANK
MAIN, OVERWRITTEN, COUNT, EXECUTION, BOX = ct.MAIN, ct.OVERWRITTEN, ct.COUNT, ct.EXECUTION, ct.BOX
STICK, WORD, EXECUTIONS, LATEST = ct.STICK, ct.WORD, ct.EXECUTIONS, ct.LATEST
CORE_BITS, RANGE_BITS, RANGE_MARK = ct.CORE_BITS, ct.RANGE_BITS, ct.RANGE_MARK
RANGE_MASK = (1 << RANGE_BITS) - 1
ZERO, ONE, CORE_LIMIT = np.uint32(0), np.uint32(1), np.uint32(1 << CORE_BITS)
LX_FIRST = host_offset(LX_BASE) // STICK_BYTES
LX_MASK = LX_BYTES // STICK_BYTES - 1


@inline
def count_unwritten(shadow, first, run, stride):
    """Count the unwritten sticks of a run."""
    count = 0
    if stride == 1:
        words = shadow[first : first + run]
        for i in range(words.size):
            count += int(words[i] == ZERO)
    else:
        for i in range(run):
            count += int(shadow[first + i * stride] == ZERO)
    return count


@inline
def count_clashes(shadow, first, run, stride, tag):
    """Count the sticks of a run that another core than that of ``tag`` wrote under its record."""
    count = 0
    if stride == 1:
        words = shadow[first : first + run]
        for i in range(words.size):
            count += int(np.uint32(np.uint32(words[i] ^ tag) - ONE) < CORE_LIMIT - ONE)
    else:
        for i in range(run):
            other = np.uint32(shadow[first + i * stride] ^ tag)
            count += int(np.uint32(other - ONE) < CORE_LIMIT - ONE)
    return count


@inline
def fill(words, first, run, stride, value):
    """Set a run of words."""
    if stride == 1:
        part = words[first : first + run]
        for i in range(part.size):
            part[i] = value
    else:
        for i in range(run):
            words[first + i * stride] = value


@kernel
def is_clash(word, tag):
    """True if another core wrote the stick under the record of ``tag``."""
    other = np.uint32(word ^ tag)
    return (other != ZERO) and (other < CORE_LIMIT)


@kernel
def overlaps_partially(word, low, high):
    """True if a stick's written range and ``low`` .. ``high`` overlap, neither within the other."""
    if word & RANGE_MARK == 0:
        return False
    first, last = (word >> RANGE_BITS) & RANGE_MASK, word & RANGE_MASK
    return not ((first >= low and last <= high) or (first <= low and last >= high))


@kernel
def record_finding(result, count, execution, box, stick, word):
    """Add ``count`` sticks to a finding, which keeps the position of the first."""
    if result[COUNT] == 0:
        result[EXECUTION] = execution
        result[BOX] = box
        result[STICK] = stick
        result[WORD] = word
        result[LATEST] = -1
    result[COUNT] += count
    if result[LATEST] != execution:
        result[LATEST] = execution
        result[EXECUTIONS] += 1


@inline
def check_read(shadow, first, run, stride, result, execution, box):
    """Look for unwritten sticks in a run that is read."""
    count = count_unwritten(shadow, first, run, stride)
    if count > 0:
        stick = first
        while shadow[stick] != ZERO:
            stick += stride
        record_finding(result, count, execution, box, stick, 0)


@inline
def check_clashes(shadow, first, run, stride, tag, result, execution, box):
    """Look for sticks of a run that another core wrote in this execution."""
    count = count_clashes(shadow, first, run, stride, tag)
    if count > 0:
        stick = first
        while not is_clash(shadow[stick], tag):
            stick += stride
        record_finding(result, count, execution, box, stick, shadow[stick])


@kernel
def check_ranges(shadow, ranges, first, run, stride, low, high, result, execution, box):
    """Look for sticks of an LX run, read in the range ``low`` .. ``high``, that were written
    through a range that overlaps it partially.
    """
    same = low << RANGE_BITS | high | RANGE_MARK
    count, stick = 0, -1
    for i in range(run):
        at = first + i * stride
        word = np.int64(ranges[at - LX_FIRST])
        if word != same and overlaps_partially(word, low, high):
            if count == 0:
                stick = at
            count += 1
    if count > 0:
        record_finding(result, count, execution, box, stick, shadow[stick])


@inline
def check_run(shadow, ranges, row, first, run, stride, tag, low, high, results, execution, box):
    """Check one run of a row's box, and mark its sticks if they are written."""
    if row[ROLE] == READ:
        check_read(shadow, first, run, stride, results[MAIN], execution, box)
        if row[IS_LX] == 1:
            result = results[OVERWRITTEN]
            check_ranges(shadow, ranges, first, run, stride, low, high, result, execution, box)
    else:
        if row[CHECKS_CLASHES] == 1:
            check_clashes(shadow, first, run, stride, tag, results[MAIN], execution, box)
        if row[ROLE] == WRITE:
            fill(shadow, first, run, stride, tag)
            if row[IS_LX] != 0:
                word = low << RANGE_BITS | high | RANGE_MARK if row[IS_LX] == 1 else 0
                fill(ranges, first - LX_FIRST, run, stride, np.uint32(word))


@kernel
def check_box(shadow, ranges, row, place, nest, start, tag, results, execution, box, counters):
    """Check every run of a box; ``place``: its words."""
    rank, run, stride = nest[RANK], nest[RUN], nest[STRIDE]
    low = ((start - LX_FIRST) & LX_MASK) - place[BEFORE]
    high = low + place[LENGTH]
    total = 1
    for axis in range(rank):
        total *= nest[STEPS + axis]
        counters[axis] = 0
    at = start
    for _ in range(total):
        check_run(shadow, ranges, row, at, run, stride, tag, low, high, results, execution, box)
        axis = rank - 1
        while axis >= 0:
            at += nest[PITCHES + axis]
            counters[axis] += 1
            if counters[axis] < nest[STEPS + axis]:
                break
            at -= nest[PITCHES + axis] * nest[STEPS + axis]
            counters[axis] = 0
            axis -= 1


@kernel
def check_execution(
    shadow, ranges, rows, boxes, nests, bases, patterns, offsets, results,
    first_row, last_row, instance, execution, record, counters,
):  # fmt: skip
    """Check all rows of one execution, in order."""
    for r in range(first_row, last_row):
        row = rows[r]
        base = bases[row[BASES] + instance]
        if base < 0:
            continue
        pattern = patterns[row[PATTERNS] + instance] if row[PATTERNS] >= 0 else 0
        at = row[OFFSETS] + pattern * row[BOXES]
        for b in range(row[BOXES]):
            box = boxes[row[FIRST_BOX] + b]
            tag = np.uint32(record << CORE_BITS | box[TAG])
            check_box(
                shadow, ranges, row, box, nests[box[NEST]], base + offsets[at + b], tag,
                results[r], execution, b, counters,
            )  # fmt: skip


@kernel
def drive_checked(
    dispatch: Any, tables: Any, entries: Any, memory: int, pool: int, scratch: int, threads: int,
    first: int, last: int, fault: Any,
    executions: Any, heads: Any, rows: Any, boxes: Any, nests: Any, bases: Any, patterns: Any,
    offsets: Any, results: Any, shadow: Any, ranges: Any, record: int,
) -> Any:  # fmt: skip
    """Like `drive`, but check each execution first.

    ``executions``: per dispatch the number of the execution it begins, -1 for its further ones.
    ``heads``: first row per execute statement. ``record``: number of the record of execution 0.
    """
    counters = np.zeros(MAX_RANK, np.int64)
    e = first
    while e < last:
        execution = executions[e]
        if execution >= 0:
            static = dispatch[e, 1]
            check_execution(
                shadow, ranges, rows, boxes, nests, bases, patterns, offsets, results,
                heads[static], heads[static + 1], dispatch[e, 2], execution, record + execution,
                counters,
            )  # fmt: skip
        end = e + 1
        while end < last and executions[end] < 0:
            end += 1
        faulty = drive(
            dispatch, tables, entries, memory, pool, scratch, threads, e, end, fault
        )  # fmt: skip
        if faulty >= 0:
            return faulty
        e = end
    return np.int64(-1)
