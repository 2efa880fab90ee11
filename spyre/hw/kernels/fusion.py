"""Strip-mined fusion: neighbouring dispatches run together, on a few units at a time.

Elementwise dispatches that walk the same units make a *chain* if any two operands of two of them,
one of which is written, are the same sticks unit by unit or have no stick in common: each unit then
reads the same values as if the dispatches ran one after the other. Every member shares an operand
with another one, which is then still in the host's cache.
"""

from __future__ import annotations

from typing import Any

from spyre.hw import plan_table as tb
from spyre.hw.kernels.intrinsics import call_entry
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.spec import LX_BASE, LX_BYTES, STICK_BYTES

KIND, INPUTS, UNITS, RANK, INNER = tb.KIND, tb.INPUTS, tb.UNITS, tb.RANK, tb.INNER
EXTENT, BLOCK_STICKS = tb.EXTENT, tb.BLOCK_STICKS
OPERAND, OPERAND_WORDS = tb.OPERAND, tb.OPERAND_WORDS
BASE, TENSOR, LANE, PITCH, INNER_PITCH = tb.BASE, tb.TENSOR, tb.LANE, tb.PITCH, tb.INNER_PITCH
WHOLE_STICK = tb.WHOLE_STICK
DISJOINT, SAME, MIXED = 0, 1, 2
"""No stick in common, the same sticks unit by unit, or any other overlap."""


@kernel
def operand_start(table: Any, row: Any, operand: int) -> Any:
    """Device address of an operand's first stick."""
    word = OPERAND + operand * OPERAND_WORDS
    return table[word + BASE] + row[tb.DISPATCH_BASES + table[word + TENSOR]]


@kernel
def axis_extent(table: Any, axis: int) -> Any:
    """Extent of an axis; axis RANK is the innermost one, along which sticks are in units."""
    return table[INNER] if axis == table[RANK] else table[EXTENT + axis]


@kernel
def axis_pitch(table: Any, operand: int, axis: int) -> Any:
    """Bytes an operand steps along an axis."""
    word = OPERAND + operand * OPERAND_WORDS
    return table[word + (INNER_PITCH if axis == table[RANK] else PITCH + axis)]


@kernel
def operand_box(table: Any, row: Any, operand: int) -> Any:
    """(first byte, end) of an operand; in LX relative to the scratchpad of each core."""
    low = operand_start(table, row, operand)
    in_lx = low >= LX_BASE
    if in_lx:  # each core has the same offsets in its scratchpad
        low = (low - LX_BASE) % LX_BYTES
    high = low + STICK_BYTES
    for axis in range(table[RANK] + 1):
        pitch = axis_pitch(table, operand, axis)
        span = (axis_extent(table, axis) - 1) * pitch
        between_cores = axis < table[RANK] and pitch % LX_BYTES == 0
        if in_lx and between_cores:
            continue
        low += min(span, 0)
        high += max(span, 0)
    return low, high


@kernel
def same_walk(table: Any, other: Any, operand: int, other_operand: int) -> Any:
    """True if both operands visit the same sticks in the same order, from equal starts.

    Axes are compared from the innermost one outwards, the longer of two in pieces of the shorter.
    """
    for t, k in ((table, operand), (other, other_operand)):
        if t[OPERAND + k * OPERAND_WORDS + LANE] != WHOLE_STICK:
            return False
    axis, other_axis = table[RANK], other[RANK]
    extent, pitch = axis_extent(table, axis), axis_pitch(table, operand, axis)
    other_extent = axis_extent(other, other_axis)
    other_pitch = axis_pitch(other, other_operand, other_axis)
    while True:
        common = min(extent, other_extent)
        if extent % common != 0 or other_extent % common != 0:
            return False
        if common > 1 and pitch != other_pitch:
            return False
        extent, pitch = extent // common, pitch * common
        other_extent, other_pitch = other_extent // common, other_pitch * common
        if extent == 1:
            axis -= 1
            if axis >= 0:
                extent, pitch = axis_extent(table, axis), axis_pitch(table, operand, axis)
        if other_extent == 1:
            other_axis -= 1
            if other_axis >= 0:
                other_extent = axis_extent(other, other_axis)
                other_pitch = axis_pitch(other, other_operand, other_axis)
        if axis < 0 or other_axis < 0:
            return axis < 0 and other_axis < 0


@kernel
def relation(table: Any, row: Any, operand: int, other: Any, other_row: Any, q: int) -> int:
    """DISJOINT, SAME or MIXED: operand ``operand`` of one dispatch and ``q`` of another."""
    start, other_start = operand_start(table, row, operand), operand_start(other, other_row, q)
    if (start >= LX_BASE) != (other_start >= LX_BASE):
        return DISJOINT
    # the same walk from the same start: unit by unit the same sticks, in any order
    if start == other_start and same_walk(table, other, operand, q):
        return SAME
    low, high = operand_box(table, row, operand)
    other_low, other_high = operand_box(other, other_row, q)
    # offsets that leave a scratchpad may be those of another core's
    if start >= LX_BASE and (min(low, other_low) < 0 or max(high, other_high) > LX_BYTES):
        return MIXED
    return DISJOINT if high <= other_low or other_high <= low else MIXED


@kernel
def same_units(table: Any, other: Any) -> Any:
    """True if two tables are elementwise, have the same sticks in each unit, and enough of them."""
    if table[KIND] != tb.ELEMENTWISE_KIND or other[KIND] != tb.ELEMENTWISE_KIND:
        return False
    inner, other_inner = table[INNER], other[INNER]
    sticks = table[UNITS] * min(inner, BLOCK_STICKS)
    if table[UNITS] != other[UNITS] or sticks <= tb.STRIP_STICKS:
        return False
    return inner == other_inner or (inner % BLOCK_STICKS == 0 and other_inner % BLOCK_STICKS == 0)


@kernel
def joins(tables: Any, dispatch: Any, first: int, new: int) -> bool:
    """True if dispatch ``new`` continues the chain of dispatches ``first`` to ``new`` - 1."""
    table, row = tables[dispatch[new, 0]], dispatch[new]
    output, shares = table[INPUTS], False
    for member in range(first, new):
        other, other_row = tables[dispatch[member, 0]], dispatch[member]
        if not same_units(other, table):
            return False
        written = other[INPUTS]
        for p in range(written + 1):
            for q in range(output + 1):
                found = relation(other, other_row, p, table, row, q)
                if q == output:
                    if found == MIXED:
                        return False
                elif p == written and found == MIXED:
                    return False
                else:
                    shares |= found == SAME
    return shares


@kernel
def find_chains(tables: Any, dispatch: Any) -> bool:
    """Set CHAIN_LENGTH of every dispatch: how many, from it on, make a chain. True if any do.

    Dispatches of length 0 are left as they are.
    """
    first, any_chain = 0, False
    while first < dispatch.shape[0]:
        if dispatch[first, tb.CHAIN_LENGTH] == 0:
            first += 1
            continue
        end = first + 1
        while end < dispatch.shape[0] and end - first < tb.MAX_CHAIN:
            if dispatch[end, tb.CHAIN_LENGTH] == 0 or not joins(tables, dispatch, first, end):
                break
            end += 1
        any_chain |= end - first > 1
        for member in range(first, end):
            dispatch[member, tb.CHAIN_LENGTH] = end - member
        first = end
    return any_chain


@kernel
def chain(table, memory, scratch_address, first, last):
    """Run units ``first`` .. ``last`` of every member; a fault word, or 0."""
    members, strip = table[0], table[1]
    for start in range(first, last, strip):
        end = min(start + strip, last)
        for member in range(members):
            at = 2 + 3 * member
            status = call_entry(
                table[at], table[at + 1], table[at + 2], memory, scratch_address, start, end
            )
            if status != 0:
                return status
    return 0


run = entry(chain, reports_faults=True)
