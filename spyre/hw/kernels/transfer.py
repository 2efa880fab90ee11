"""The transfer kernels: host elements to sticks and back, with format conversion.

Both walk the same nest (see :mod:`spyre.hw.transfer`): seven outer axes, a tile of sticks that are
neighbours on the host, and sticks that are neighbours on the device. Floats pass through a float32
buffer, integers through an int64 buffer, so 64-bit integers are exact.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from spyre.hw import table as tb
from spyre.hw.jit import entry, kernel
from spyre.hw.kernels.intrinsics import (
    bits_float,
    call_entry,
    decode_dl16,
    decode_half,
    encode_dl16,
    encode_half,
    pointer_f32,
    pointer_i8,
    pointer_i32,
    pointer_i64,
    pointer_u8,
    pointer_u16,
)
from spyre.hw.kernels.rounding import encode_bfloat16_as, encode_dl16_as
from spyre.hw.kernels.transfer_table import (
    AXES,
    BFLOAT16_ADD,
    BFLOAT16_ODD,
    CHECK_LANE,
    CHECK_SIZE,
    CHECK_STEP,
    CHECKS,
    DEVICE_FORMAT,
    DEVICE_INT8,
    DEVICE_INT16,
    DEVICE_STEP,
    EXTENT,
    HOST_BFLOAT16,
    HOST_BOOL,
    HOST_FLOAT32,
    HOST_FORMAT,
    HOST_HALF,
    HOST_INT8,
    HOST_INT16,
    HOST_INT32,
    HOST_INT64,
    HOST_STEP,
    INTEGERS,
    LANE_STRIDE,
    LANES,
    LARGEST,
    NINF_IS_NAN,
    ROUND_ADD,
    ROUND_ODD,
    TO_DEVICE,
    WORDS,
)

FAR = 1 << 46
"""Extent given to arrays made from raw addresses."""
DL16, HALF, FP32 = tb.DL16, tb.HALF, tb.FP32
F = np.float32


@kernel
def gather_floats(code, pointer, at, stride, count, buffer):
    """``count`` host elements from element ``at`` on, as float32."""
    if code == HOST_HALF:
        halves = carray(pointer_u16(pointer), FAR)
        if stride == 1:
            source, target = halves[at : at + count], buffer[:count]
            for i in range(target.size):
                target[i] = decode_half(source[i])
            return
        for i in range(count):
            buffer[i] = decode_half(halves[at + i * stride])
    elif code == HOST_FLOAT32:
        floats = carray(pointer_f32(pointer), FAR)
        for i in range(count):
            buffer[i] = floats[at + i * stride]
    elif code == HOST_BFLOAT16:
        halves = carray(pointer_u16(pointer), FAR)
        for i in range(count):
            buffer[i] = bits_float(np.int32(np.uint32(halves[at + i * stride]) << 16))
    else:
        flags = carray(pointer_u8(pointer), FAR)
        for i in range(count):
            buffer[i] = F(1.0) if flags[at + i * stride] != 0 else F(0.0)


@kernel
def scatter_floats(code, pointer, at, stride, count, add, odd, buffer):
    """float32 values to ``count`` host elements; bfloat16 rounds by the rule ``add``, ``odd``."""
    if code == HOST_HALF:
        halves = carray(pointer_u16(pointer), FAR)
        if stride == 1:
            target, source = halves[at : at + count], buffer[:count]
            for i in range(source.size):
                target[i] = encode_half(source[i])
            return
        for i in range(count):
            halves[at + i * stride] = encode_half(buffer[i])
    elif code == HOST_FLOAT32:
        floats = carray(pointer_f32(pointer), FAR)
        for i in range(count):
            floats[at + i * stride] = buffer[i]
    elif code == HOST_BFLOAT16:
        halves = carray(pointer_u16(pointer), FAR)
        for i in range(count):
            halves[at + i * stride] = encode_bfloat16_as(buffer[i], add, odd)
    else:
        flags = carray(pointer_u8(pointer), FAR)
        for i in range(count):
            flags[at + i * stride] = 1 if buffer[i] != F(0.0) else 0


@kernel
def gather_integers(code, pointer, at, stride, count, buffer):
    """``count`` host integers from element ``at`` on."""
    if code == HOST_INT64:
        longs = carray(pointer_i64(pointer), FAR)
        for i in range(count):
            buffer[i] = longs[at + i * stride]
    elif code == HOST_INT32:
        words = carray(pointer_i32(pointer), FAR)
        for i in range(count):
            buffer[i] = words[at + i * stride]
    elif code == HOST_INT16:
        halves = carray(pointer_u16(pointer), FAR)
        for i in range(count):
            buffer[i] = np.int16(halves[at + i * stride])
    elif code == HOST_INT8:
        octets = carray(pointer_i8(pointer), FAR)
        for i in range(count):
            buffer[i] = octets[at + i * stride]
    else:
        flags = carray(pointer_u8(pointer), FAR)
        for i in range(count):
            buffer[i] = flags[at + i * stride]


@kernel
def scatter_integers(code, pointer, at, stride, count, buffer):
    """Integers to ``count`` host elements; HOST_BOOL makes them 0 or 1."""
    if code == HOST_INT64:
        longs = carray(pointer_i64(pointer), FAR)
        for i in range(count):
            longs[at + i * stride] = buffer[i]
    elif code == HOST_INT32:
        words = carray(pointer_i32(pointer), FAR)
        for i in range(count):
            words[at + i * stride] = np.int32(buffer[i])
    elif code == HOST_INT16:
        halves = carray(pointer_u16(pointer), FAR)
        for i in range(count):
            halves[at + i * stride] = np.uint16(buffer[i])
    elif code == HOST_BOOL:
        flags = carray(pointer_u8(pointer), FAR)
        for i in range(count):
            flags[at + i * stride] = 1 if buffer[i] != 0 else 0
    else:
        octets = carray(pointer_u8(pointer), FAR)
        for i in range(count):
            octets[at + i * stride] = np.uint8(buffer[i])


@kernel
def write_float_stick(table, pointer, address, lanes, buffer):
    """Encode one device stick."""
    code = table[DEVICE_FORMAT]
    if code == FP32:
        words = carray(pointer_f32(pointer), FAR)[address >> 2 : (address >> 2) + lanes]
        for i in range(words.size):
            words[i] = buffer[i]
        return
    codes = carray(pointer_u16(pointer), FAR)[address >> 1 : (address >> 1) + 64]
    if code == HALF:
        for i in range(64):
            codes[i] = encode_half(buffer[i])
    elif code == DL16:
        for i in range(64):
            codes[i] = encode_dl16(buffer[i])
    else:
        add, odd, largest = table[ROUND_ADD], table[ROUND_ODD], table[LARGEST]
        for i in range(64):
            codes[i] = encode_dl16_as(buffer[i], add, odd, largest)


@kernel
def read_float_stick(code, pointer, address, lanes, ninf_is_nan, buffer):
    """Decode one device stick; DL16's merged symbol becomes ±inf, or NaN if asked."""
    if code == FP32:
        words = carray(pointer_f32(pointer), FAR)[address >> 2 : (address >> 2) + lanes]
        for i in range(words.size):
            buffer[i] = words[i]
        return
    codes = carray(pointer_u16(pointer), FAR)[address >> 1 : (address >> 1) + 64]
    if code == HALF:
        for i in range(64):
            buffer[i] = decode_half(codes[i])
        return
    for i in range(64):
        buffer[i] = decode_dl16(codes[i])
    if ninf_is_nan != 0:
        for i in range(64):
            if codes[i] & 0x7FFF == 0x7FFF:
                buffer[i] = F(np.nan)


@kernel
def write_integer_stick(code, pointer, address, lanes, buffer):
    """Store one stick of integers, wrapping to the device's width."""
    if code == DEVICE_INT8:
        octets = carray(pointer_u8(pointer), FAR)[address : address + lanes]
        for i in range(octets.size):
            octets[i] = np.uint8(buffer[i])
    elif code == DEVICE_INT16:
        halves = carray(pointer_u16(pointer), FAR)[address >> 1 : (address >> 1) + lanes]
        for i in range(halves.size):
            halves[i] = np.uint16(buffer[i])
    else:
        words = carray(pointer_i32(pointer), FAR)[address >> 2 : (address >> 2) + lanes]
        for i in range(words.size):
            words[i] = np.int32(buffer[i])


@kernel
def read_integer_stick(code, pointer, address, lanes, buffer):
    """Load one stick of two's complement integers."""
    if code == DEVICE_INT8:
        octets = carray(pointer_i8(pointer), FAR)[address : address + lanes]
        for i in range(octets.size):
            buffer[i] = octets[i]
    elif code == DEVICE_INT16:
        halves = carray(pointer_u16(pointer), FAR)[address >> 1 : (address >> 1) + lanes]
        for i in range(halves.size):
            buffer[i] = np.int16(halves[i])
    else:
        words = carray(pointer_i32(pointer), FAR)[address >> 2 : (address >> 2) + lanes]
        for i in range(words.size):
            buffer[i] = words[i]


@kernel
def valid_lanes(table, coordinates, a, b, lanes):
    """Lanes of this stick that hold host elements, given the two innermost indices."""
    count = lanes
    for k in range(table[CHECKS]):
        steps = CHECK_STEP + k * AXES
        at = coordinates[k] + a * table[steps + AXES - 2] + b * table[steps + AXES - 1]
        room = table[CHECK_SIZE + k] - at
        lane_step = table[CHECK_LANE + k]
        if room <= 0:
            return np.int64(0)
        if lane_step > 0:
            count = min(count, -(-room // lane_step))
    return count


@kernel
def to_device_stick(table, host, at, device, address, count, floats, integers):
    """One stick host → device; lanes from ``count`` on become zero."""
    lanes = table[LANES]
    if table[INTEGERS] != 0:
        gather_integers(table[HOST_FORMAT], host, at, table[LANE_STRIDE], count, integers)
        for i in range(count, lanes):
            integers[i] = 0
        write_integer_stick(table[DEVICE_FORMAT], device, address, lanes, integers)
    else:
        gather_floats(table[HOST_FORMAT], host, at, table[LANE_STRIDE], count, floats)
        for i in range(count, lanes):
            floats[i] = F(0.0)
        write_float_stick(table, device, address, lanes, floats)


@kernel
def to_host_stick(table, host, at, device, address, count, floats, integers):
    """One stick device → host; only ``count`` lanes are written."""
    lanes = table[LANES]
    if table[INTEGERS] != 0:
        read_integer_stick(table[DEVICE_FORMAT], device, address, lanes, integers)
        scatter_integers(table[HOST_FORMAT], host, at, table[LANE_STRIDE], count, integers)
    else:
        read_float_stick(table[DEVICE_FORMAT], device, address, lanes, table[NINF_IS_NAN], floats)
        scatter_floats(
            table[HOST_FORMAT], host, at, table[LANE_STRIDE], count,
            table[BFLOAT16_ADD], table[BFLOAT16_ODD], floats,
        )  # fmt: skip


@kernel
def half_stick(to_device, host, at, device, address):
    """A whole stick of float16 host neighbours against DL16, without buffers."""
    halves = carray(pointer_u16(host), FAR)[at : at + 64]
    codes = carray(pointer_u16(device), FAR)[address >> 1 : (address >> 1) + 64]
    if to_device:
        for i in range(64):
            codes[i] = encode_dl16(decode_half(halves[i]))
    else:
        for i in range(64):
            halves[i] = encode_half(decode_dl16(codes[i]))


@kernel
def transfer_units(table, to_device, host, device, first, last):
    """Copy units ``first`` .. ``last``; ``host`` and ``device`` are addresses."""
    floats, integers = np.empty(128, np.float32), np.empty(128, np.int64)
    coordinates = np.empty(8, np.int64)
    lanes = table[LANES]
    direct = table[HOST_FORMAT] == HOST_HALF and table[DEVICE_FORMAT] == DL16
    direct = direct and table[LANE_STRIDE] == 1 and table[NINF_IS_NAN] == 0
    for unit in range(first, last):
        rest = unit
        host_at, address = np.int64(0), np.int64(0)
        for k in range(table[CHECKS]):
            coordinates[k] = 0
        for axis in range(AXES - 3, -1, -1):
            index = rest % table[EXTENT + axis]
            rest //= table[EXTENT + axis]
            host_at += index * table[HOST_STEP + axis]
            address += index * table[DEVICE_STEP + axis]
            for k in range(table[CHECKS]):
                coordinates[k] += index * table[CHECK_STEP + k * AXES + axis]
        for a in range(table[EXTENT + AXES - 2]):
            for b in range(table[EXTENT + AXES - 1]):
                count = valid_lanes(table, coordinates, a, b, lanes)
                x = host_at + a * table[HOST_STEP + AXES - 2] + b * table[HOST_STEP + AXES - 1]
                y = address + a * table[DEVICE_STEP + AXES - 2] + b * table[DEVICE_STEP + AXES - 1]
                if direct and count == 64:
                    half_stick(to_device, host, x, device, y)
                elif to_device:
                    to_device_stick(table, host, x, device, y, count, floats, integers)
                elif count > 0:
                    to_host_stick(table, host, x, device, y, count, floats, integers)


@entry
def run(table, bases, memory, scratch, first, last):
    """C entry of :func:`transfer_units`: ``bases`` is the host tensor, ``memory`` the device's."""
    words = carray(pointer_i64(table), WORDS)
    transfer_units(words, words[TO_DEVICE] != 0, bases, memory, first, last)
    return 0


@kernel
def run_transfer(
    function: int, table: int, host: int, device: int, scratch: int, units: int
) -> None:
    """The whole copy on this thread."""
    call_entry(function, table, host, device, scratch, 0, units)
