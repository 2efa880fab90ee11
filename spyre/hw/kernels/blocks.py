"""Staging: sticks of device memory to float32 buffers and back, and the walk over the axes.

``half`` is the reservation viewed as uint16, ``word`` as float32. Buffers hold LANES floats per
stick. Everything here is called from kernels and takes byte addresses.
"""

from __future__ import annotations

import numpy as np

from spyre.hw import plan_table as tb
from spyre.hw.kernels.dl16_vectors import decode_runs, encode_runs, stick_loops
from spyre.hw.kernels.intrinsics import bits_float, decode_dl16, decode_half, encode_dl16_as
from spyre.hw.kernels.jit import kernel

BASE, TENSOR, PITCH, EXTENT = tb.BASE, tb.TENSOR, tb.PITCH, tb.EXTENT
OPERAND, OPERAND_WORDS = tb.OPERAND, tb.OPERAND_WORDS
RANK, OPERANDS = tb.RANK, tb.OPERANDS
MASK, MASK_LANES, MASK_BITS = tb.MASK, tb.MASK_LANES, tb.MASK_BITS
MASK_START, MASK_END = tb.MASK_START, tb.MASK_END
HALF_FORMAT, FP32_FORMAT, DL16_FORMAT = tb.HALF, tb.FP32, tb.DL16
ROUNDING_ADD, ROUNDING_ODD, LARGEST_CODE = tb.ROUNDING_ADD, tb.ROUNDING_ODD, tb.LARGEST_CODE


@kernel
def _lane_value(half, address, lane, code):
    element = half[(address >> 1) + lane]
    return decode_half(element) if code == HALF_FORMAT else decode_dl16(element)


@kernel
def fill(buffer, value):
    """buffer[i] = value."""
    for i in range(buffer.size):
        buffer[i] = value


@kernel
def _load(half, word, address, sticks, pitch, lane, code, buffer):
    if code == FP32_FORMAT:
        source, target = word.ctypes.data + address, buffer.ctypes.data
        places = source + 4 * max(lane, 0), target
        stick_loops(tb.SPREAD_WORD if lane >= 0 else tb.COPY, places, (pitch, 128), sticks, 32)
    elif lane >= 0:
        for s in range(sticks):
            value = _lane_value(half, address + s * pitch, lane, code)
            fill(buffer[s * 64 : s * 64 + 64], value)
    else:
        places = half.ctypes.data + address, buffer.ctypes.data
        decode_runs(code, places, (pitch, 256), sticks, 64)


@kernel
def load_sticks(half, word, address, sticks, pitch, lane, code, lanes, buffer):
    """Decode ``sticks`` sticks, one every ``pitch`` bytes from byte ``address`` on, to ``buffer``.

    ``lane`` -1: whole sticks; otherwise that lane of every stick fills all lanes.
    """
    if pitch != 0 or sticks == 1 or code == FP32_FORMAT:
        _load(half, word, address, sticks, pitch, lane, code, buffer)
    elif lane >= 0:  # one value for all
        fill(buffer[: sticks * lanes], _lane_value(half, address, lane, code))
    else:  # one stick for all: decoded once, then copied, each copy from the one before
        load_one(half, word, address, lane, code, buffer)
        first, copies = buffer.ctypes.data, (sticks - 1) * (lanes // 32)
        stick_loops(tb.COPY, (first, first + 4 * lanes), (128, 128), copies, 32)


@kernel
def load_one(half, word, address, lane, code, buffer):
    """Decode one stick; see :func:`load_sticks`."""
    _load(half, word, address, 1, 128, lane, code, buffer)


@kernel
def _store_rounded(half, address, sticks, pitch, code, buffer):
    """DL16 with another rounding than ties away."""
    add, odd = ROUNDING_ADD[code], ROUNDING_ODD[code]
    for s in range(sticks):
        at = (address + s * pitch) >> 1
        target = half[at : at + 64]
        source = buffer[s * 64 : s * 64 + 64]
        for i in range(64):
            target[i] = encode_dl16_as(source[i], add, odd, LARGEST_CODE)


@kernel
def store_sticks(half, word, address, sticks, pitch, code, buffer):
    """Encode ``sticks`` sticks of ``buffer``: one every ``pitch`` bytes from ``address`` on."""
    if code == FP32_FORMAT:
        places = buffer.ctypes.data, word.ctypes.data + address
        stick_loops(tb.COPY, places, (128, pitch), sticks, 32)
    elif code == DL16_FORMAT or code == HALF_FORMAT:
        places = buffer.ctypes.data, half.ctypes.data + address
        encode_runs(code, places, (256, pitch), sticks, 64)
    else:
        _store_rounded(half, address, sticks, pitch, code, buffer)


@kernel
def mask(table, coordinate, step, sticks, lanes, buffer):
    """Replace masked elements, if the table masks any. Coordinates begin at ``coordinate`` and grow
    by ``step`` per stick; those of lanes by one (MASK_LANES), or a stick has one for all.
    """
    kind, start, end = table[MASK], table[MASK_START], table[MASK_END]
    value = bits_float(np.int32(table[MASK_BITS]))
    for s in range(sticks if kind != 0 else 0):
        at = coordinate + s * step
        first, last = 0, lanes if start <= at < end else 0
        if kind == MASK_LANES:
            first = min(max(start - at, 0), lanes)
            last = min(max(end - at, 0), lanes)
        for i in range(first, last):
            buffer[s * lanes + i] = value


@kernel
def seek(table, bases, run, counters):
    """Set loop counters (words 0..7) and operand addresses (words 8..) to outer index ``run``."""
    rank, operands = table[RANK], table[OPERANDS]
    for k in range(operands):
        word = OPERAND + k * OPERAND_WORDS
        tensor = table[word + TENSOR]
        counters[8 + k] = table[word + BASE] + (bases[tensor] if tensor >= 0 else 0)
    for axis in range(rank - 1, -1, -1):
        extent = table[EXTENT + axis]
        counters[axis] = run % extent
        run //= extent
        for k in range(operands):
            pitch = table[OPERAND + k * OPERAND_WORDS + PITCH + axis]
            counters[8 + k] += counters[axis] * pitch


@kernel
def advance(table, counters):
    """Step the outer axes by one, carrying; addresses follow."""
    operands = table[OPERANDS]
    axis = table[RANK] - 1
    while axis >= 0:
        counters[axis] += 1
        wrapped = counters[axis] == table[EXTENT + axis]
        for k in range(operands):
            pitch = table[OPERAND + k * OPERAND_WORDS + PITCH + axis]
            if wrapped:  # back to the first step, while the next axis makes one
                pitch -= pitch * table[EXTENT + axis]
            counters[8 + k] += pitch
        if not wrapped:
            return
        counters[axis] = 0
        axis -= 1


@kernel
def begin(table, bases, counters, unit, per_run):
    """Go to ``unit``, of which ``per_run`` make a run of the innermost axis; its place there."""
    run = unit // per_run
    seek(table, bases, run, counters)
    return unit - run * per_run


@kernel
def follow(table, counters, place, per_run):
    """The place of the next unit; steps the outer axes at the end of a run."""
    if place + 1 < per_run:
        return place + 1
    advance(table, counters)
    return np.int64(0)
