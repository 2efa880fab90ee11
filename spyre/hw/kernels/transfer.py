"""The transfer kernels: host elements to sticks and back, with format conversion.

Both directions walk the rows of a transfer table (:mod:`spyre.hw.transfer_plan`), made from the
nests of the descriptor: outer axes, a tile of runs that are neighbours on the host, and runs that
are neighbours on the device. What happens to a run: :mod:`spyre.hw.kernels.transfer_elements`.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from spyre.hw import table as tb
from spyre.hw.jit import entry, kernel
from spyre.hw.kernels.intrinsics import (
    call_entry,
    pointer_i64,
)
from spyre.hw.kernels.transfer_elements import (
    FAR,
    gather_floats,
    gather_integers,
    half_stick,
    read_floats,
    read_integers,
    scatter_floats,
    scatter_integers,
    write_floats,
    write_integers,
)
from spyre.hw.kernels.transfer_table import (
    AXES,
    BFLOAT16_ADD,
    BFLOAT16_ODD,
    COUNT,
    DEVICE_FORMAT,
    DEVICE_OFFSET,
    DEVICE_STEP,
    END_UNIT,
    EXTENT,
    FILL,
    FIRST_AXIS,
    FIRST_UNIT,
    HEAD_WORDS,
    HOST_FORMAT,
    HOST_HALF,
    HOST_OFFSET,
    HOST_STEP,
    INTEGERS,
    LANE_STRIDE,
    NINF_IS_NAN,
    ROW_WORDS,
    ROWS,
    TAIL_AT,
    TAIL_COUNT,
    TAIL_FILL,
    TAIL_STEP,
    TO_DEVICE,
)


@kernel
def run_to_device(table, stride, count, fill, host, at, device, address, floats, integers):
    """``count`` neighbours host → device, and ``fill`` zeros after them."""
    end = count + fill
    if table[INTEGERS] != 0:
        gather_integers(table[HOST_FORMAT], host, at, stride, count, integers)
        for i in range(count, end):
            integers[i] = 0
        write_integers(table[DEVICE_FORMAT], device, address, end, integers)
    else:
        gather_floats(table[HOST_FORMAT], host, at, stride, count, floats)
        for i in range(count, end):
            floats[i] = np.float32(0.0)
        write_floats(table, device, address, end, floats)


@kernel
def run_to_host(table, stride, count, host, at, device, address, floats, integers):
    """``count`` neighbours device → host."""
    if table[INTEGERS] != 0:
        read_integers(table[DEVICE_FORMAT], device, address, count, integers)
        scatter_integers(table[HOST_FORMAT], host, at, stride, count, integers)
    else:
        read_floats(table, device, address, count, floats)
        scatter_floats(
            table[HOST_FORMAT], host, at, stride, count,
            table[BFLOAT16_ADD], table[BFLOAT16_ODD], floats,
        )  # fmt: skip


@kernel
def is_half(table, row):
    """True if `half_stick` can move the whole sticks of this row."""
    formats = table[HOST_FORMAT] == HOST_HALF and table[DEVICE_FORMAT] == tb.DL16
    return formats and table[row + LANE_STRIDE] == 1 and table[NINF_IS_NAN] == 0


@kernel
def transfer_tile(table, row, tail, host, at, device, address, floats, integers):
    """The runs of one unit, the last two axes; ``tail``: its index along the tail's axis."""
    to_device, half, stride = table[TO_DEVICE] != 0, is_half(table, row), table[row + LANE_STRIDE]
    near_host, near = row + AXES - 2, row + AXES - 1
    for a in range(table[near_host + EXTENT]):
        for b in range(table[near + EXTENT]):
            x = at + a * table[near_host + HOST_STEP] + b * table[near + HOST_STEP]
            y = address + a * table[near_host + DEVICE_STEP] + b * table[near + DEVICE_STEP]
            t = tail + a * table[near_host + TAIL_STEP] + b * table[near + TAIL_STEP]
            ends = t == table[row + TAIL_AT]
            count = table[row + TAIL_COUNT] if ends else table[row + COUNT]
            if half and count == 64:
                half_stick(to_device, host, x, device, y)
            elif to_device:
                fill = table[row + TAIL_FILL] if ends else table[row + FILL]
                run_to_device(table, stride, count, fill, host, x, device, y, floats, integers)
            else:
                run_to_host(table, stride, count, host, x, device, y, floats, integers)


@kernel
def transfer_row(table, row, host, device, first, end, floats, integers):
    """Units ``first`` .. ``end`` of a row, counted from its own first one."""
    for unit in range(first, end):
        rest, tail = unit, np.int64(0)
        at, address = table[row + HOST_OFFSET], table[row + DEVICE_OFFSET]
        for axis in range(row + AXES - 3, row + table[row + FIRST_AXIS] - 1, -1):
            index = rest % table[EXTENT + axis]
            rest //= table[EXTENT + axis]
            at += index * table[HOST_STEP + axis]
            address += index * table[DEVICE_STEP + axis]
            tail += index * table[TAIL_STEP + axis]
        transfer_tile(table, row, tail, host, at, device, address, floats, integers)


@kernel
def transfer_units(table, host, device, first, last):
    """Copy units ``first`` .. ``last`` of all rows; ``host`` and ``device`` are addresses."""
    floats, integers = np.empty(128, np.float32), np.empty(128, np.int64)
    for k in range(table[ROWS]):
        row = HEAD_WORDS + k * ROW_WORDS
        begin = table[row + FIRST_UNIT]
        at, end = max(first, begin), min(last, table[row + END_UNIT])
        if at < end:
            transfer_row(table, row, host, device, at - begin, end - begin, floats, integers)


@entry
def run(table, bases, memory, scratch, first, last):
    """C entry of :func:`transfer_units`: ``bases`` is the host tensor, ``memory`` the device's."""
    transfer_units(carray(pointer_i64(table), FAR), bases, memory, first, last)
    return 0


@kernel
def run_transfer(
    function: int, table: int, host: int, device: int, scratch: int, units: int
) -> None:
    """The whole copy on this thread."""
    call_entry(function, table, host, device, scratch, 0, units)
