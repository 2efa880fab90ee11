"""Elements of copies: neighbours on the host or on the device, to and from a buffer of numbers.

Floats pass through a float32 buffer, integers through an int64 buffer, so 64-bit integers are
exact. Used by :mod:`spyre.hw.kernels.transfer`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from spyre.hw import plan_table as tb, transfer_table as tt
from spyre.hw.kernels.intrinsics import (
    bits_float,
    call_entry,
    decode_dl16,
    decode_half,
    encode_bfloat16_as,
    encode_dl16,
    encode_dl16_as,
    encode_half,
    float_bits,
    pointer_f32,
    pointer_i8,
    pointer_i32,
    pointer_i64,
    pointer_u8,
    pointer_u16,
    transpose_tile,
)
from spyre.hw.kernels.jit import entry, kernel
from spyre.hw.kernels.vector_math import copy_sign

FAR = 1 << 46
"""Extent given to arrays made from raw addresses."""
DL16, HALF, FP32 = tb.DL16, tb.HALF, tb.FP32
F = np.float32
_SMALLEST_NORMAL = F(2.0**-14)  # of float16


@kernel
def gather_floats(code, pointer, at, stride, count, buffer):
    """``count`` host elements from element ``at`` on, as float32."""
    if code == tt.HOST_HALF:
        halves = carray(pointer_u16(pointer), FAR)
        for i in range(count):
            buffer[i] = decode_half(halves[at + i * stride])
    elif code == tt.HOST_FLOAT32:
        floats = carray(pointer_f32(pointer), FAR)
        for i in range(count):
            buffer[i] = floats[at + i * stride]
    elif code == tt.HOST_BFLOAT16:
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
    if code == tt.HOST_HALF:
        halves = carray(pointer_u16(pointer), FAR)
        if stride == 1:
            target, source = halves[at : at + count], buffer[:count]
            for i in range(source.size):
                target[i] = encode_half(source[i])
            return
        for i in range(count):
            halves[at + i * stride] = encode_half(buffer[i])
    elif code == tt.HOST_FLOAT32:
        floats = carray(pointer_f32(pointer), FAR)
        for i in range(count):
            floats[at + i * stride] = buffer[i]
    elif code == tt.HOST_BFLOAT16:
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
    if code == tt.HOST_INT64:
        longs = carray(pointer_i64(pointer), FAR)
        for i in range(count):
            buffer[i] = longs[at + i * stride]
    elif code == tt.HOST_INT32:
        words = carray(pointer_i32(pointer), FAR)
        for i in range(count):
            buffer[i] = words[at + i * stride]
    elif code == tt.HOST_INT16:
        halves = carray(pointer_u16(pointer), FAR)
        for i in range(count):
            buffer[i] = np.int16(halves[at + i * stride])
    elif code == tt.HOST_INT8:
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
    if code == tt.HOST_INT64:
        longs = carray(pointer_i64(pointer), FAR)
        for i in range(count):
            longs[at + i * stride] = buffer[i]
    elif code == tt.HOST_INT32:
        words = carray(pointer_i32(pointer), FAR)
        for i in range(count):
            words[at + i * stride] = np.int32(buffer[i])
    elif code == tt.HOST_INT16:
        halves = carray(pointer_u16(pointer), FAR)
        for i in range(count):
            halves[at + i * stride] = np.uint16(buffer[i])
    elif code == tt.HOST_BOOL:
        flags = carray(pointer_u8(pointer), FAR)
        for i in range(count):
            flags[at + i * stride] = 1 if buffer[i] != 0 else 0
    else:
        octets = carray(pointer_u8(pointer), FAR)
        for i in range(count):
            octets[at + i * stride] = np.uint8(buffer[i])


@kernel
def write_floats(table, pointer, address, count, buffer):
    """Encode ``count`` device neighbours."""
    code = table[tt.DEVICE_FORMAT]
    if code == FP32:
        words = carray(pointer_f32(pointer), FAR)[address >> 2 : (address >> 2) + count]
        for i in range(words.size):
            words[i] = buffer[i]
        return
    codes = carray(pointer_u16(pointer), FAR)[address >> 1 : (address >> 1) + count]
    if code == HALF:
        for i in range(codes.size):
            codes[i] = encode_half(buffer[i])
    elif code == DL16:
        for i in range(codes.size):
            codes[i] = encode_dl16(buffer[i])
    else:
        add, odd, largest = table[tt.ROUND_ADD], table[tt.ROUND_ODD], table[tt.LARGEST]
        for i in range(codes.size):
            codes[i] = encode_dl16_as(buffer[i], add, odd, largest)


@kernel
def read_floats(table, pointer, address, count, buffer):
    """Decode ``count`` device neighbours; DL16's merged symbol becomes ±inf, or NaN if asked.

    A long run begins at its stick, of which all 64 lanes are decoded: a fixed count is faster.
    """
    code = table[tt.DEVICE_FORMAT]
    if code == FP32:
        words = carray(pointer_f32(pointer), FAR)[address >> 2 : (address >> 2) + count]
        for i in range(words.size):
            buffer[i] = words[i]
        return
    codes = carray(pointer_u16(pointer), FAR)[address >> 1 : (address >> 1) + 64]
    if code == HALF:
        for i in range(count):
            buffer[i] = decode_half(codes[i])
        return
    if count > tt.SHORT_RUN:
        for i in range(64):
            buffer[i] = decode_dl16(codes[i])
    else:
        for i in range(count):
            buffer[i] = decode_dl16(codes[i])
    if table[tt.NINF_IS_NAN] != 0:
        for i in range(count):
            if codes[i] & 0x7FFF == 0x7FFF:
                buffer[i] = F(np.nan)


@kernel
def write_integers(code, pointer, address, count, buffer):
    """Store ``count`` device neighbours, wrapping to the device's width."""
    if code == tt.DEVICE_INT8:
        octets = carray(pointer_u8(pointer), FAR)[address : address + count]
        for i in range(octets.size):
            octets[i] = np.uint8(buffer[i])
    elif code == tt.DEVICE_INT16:
        halves = carray(pointer_u16(pointer), FAR)[address >> 1 : (address >> 1) + count]
        for i in range(halves.size):
            halves[i] = np.uint16(buffer[i])
    else:
        words = carray(pointer_i32(pointer), FAR)[address >> 2 : (address >> 2) + count]
        for i in range(words.size):
            words[i] = np.int32(buffer[i])


@kernel
def read_integers(code, pointer, address, count, buffer):
    """Load ``count`` device neighbours, two's complement but for DEVICE_UINT32."""
    if code == tt.DEVICE_INT8:
        octets = carray(pointer_i8(pointer), FAR)[address : address + count]
        for i in range(octets.size):
            buffer[i] = octets[i]
    elif code == tt.DEVICE_INT16:
        halves = carray(pointer_u16(pointer), FAR)[address >> 1 : (address >> 1) + count]
        for i in range(halves.size):
            buffer[i] = np.int16(halves[i])
    else:
        words = carray(pointer_i32(pointer), FAR)[address >> 2 : (address >> 2) + count]
        for i in range(words.size):
            buffer[i] = words[i]
        if code == tt.DEVICE_UINT32:
            for i in range(words.size):
                buffer[i] &= 0xFFFFFFFF


@kernel
def adapt_float16(table, count, buffer):
    """float16 numbers on their way to DL16, as `spyre.dtypes.codecs.float16_for_dl16` has them."""
    for i in range(count):
        if abs(buffer[i]) == F(65504.0):
            buffer[i] = copy_sign(F(65472.0), buffer[i])
    if table[tt.FLOAT16_COPIES] != 0:
        for i in range(count):
            x = abs(buffer[i])
            if x < _SMALLEST_NORMAL and x != F(0.0):
                x = (F(1.0) + np.floor(x * F(2.0**23)) * F(2.0**-9)) * F(2.0**-15)
            elif not x < F(65536.0):
                x = F(65536.0) if x > F(0.0) else F(98304.0)
            buffer[i] = copy_sign(x, buffer[i])


@kernel
def restore_float16(count, buffer):
    """DL16 numbers on their way to float16, as `float16_from_dl16` there has them."""
    for i in range(count):
        x = buffer[i]
        if abs(x) < _SMALLEST_NORMAL and x != F(0.0):
            fraction = bits_float(np.int32((float_bits(x) & 0x7FFFFF) | 0x3F800000)) - F(1.0)
            unit = F(2.0**-15) if abs(x) >= F(2.0**-15) else F(2.0**-14)
            buffer[i] = copy_sign(fraction * unit, x)
        elif F(65536.0) < abs(x) < F(131072.0):
            buffer[i] = F(np.nan)


@kernel
def half_stick(table, to_device, host, at, device, address):
    """A whole stick of 16-bit host neighbours against DL16 or float16, without buffers."""
    code, is_float16 = table[tt.HOST_FORMAT], table[tt.DEVICE_FORMAT] == HALF
    halves = carray(pointer_u16(host), FAR)[at : at + 64]
    codes = carray(pointer_u16(device), FAR)[address >> 1 : (address >> 1) + 64]
    if code == tt.HOST_BFLOAT16 and to_device:
        for i in range(64):
            number = bits_float(np.int32(np.uint32(halves[i]) << 16))
            codes[i] = encode_half(number) if is_float16 else encode_dl16(number)
    elif code == tt.HOST_BFLOAT16:
        add, odd = table[tt.BFLOAT16_ADD], table[tt.BFLOAT16_ODD]
        for i in range(64):
            number = decode_half(codes[i]) if is_float16 else decode_dl16(codes[i])
            halves[i] = encode_bfloat16_as(number, add, odd)
    elif is_float16:
        source, target = (halves, codes) if to_device else (codes, halves)
        for i in range(64):
            is_nan = source[i] & np.uint16(0x7FFF) > np.uint16(0x7C00)
            target[i] = source[i] | np.uint16(is_nan) << np.uint16(9)  # NaN is quiet
    elif to_device:
        for i in range(64):
            is_largest = halves[i] & np.uint16(0x7FFF) == np.uint16(0x7BFF)
            codes[i] = encode_dl16(decode_half(np.uint16(halves[i] - np.uint16(is_largest))))
    else:
        for i in range(64):
            halves[i] = encode_half(decode_dl16(codes[i]))


@kernel
def half_block(table, to_device, stride, step, host, at, device, address, block):
    """16 sticks, ``step`` bytes apart, that begin with host neighbours; see `half_stick`.

    They are transposed in ``block``: rows a power of two apart share few places of a cache, so each
    is read once.
    """
    scratch, pitch = block.ctypes.data, 2 * stride
    if to_device:
        for k in range(4):
            transpose_tile(host + 2 * at + 16 * k * pitch, pitch, scratch + 32 * k, 128)
    for k in range(tt.TILE):
        half_stick(table, to_device, scratch, k * 64, device, address + k * step)
    if not to_device:
        for k in range(4):
            transpose_tile(scratch + 32 * k, 128, host + 2 * at + 16 * k * pitch, pitch)


@kernel
def word_stick(to_device, host, at, device, address):
    """A whole stick of 32 host neighbours, float32 or int32 as on the device."""
    numbers = carray(pointer_f32(host), FAR)[at : at + 32]
    words = carray(pointer_f32(device), FAR)[address >> 2 : (address >> 2) + 32]
    source, target = (numbers, words) if to_device else (words, numbers)
    for i in range(32):
        target[i] = source[i]


@kernel
def element_bytes(table):
    """Bytes of an element on the device."""
    code = table[tt.DEVICE_FORMAT]
    if table[tt.INTEGERS] == 0:
        return 4 if code == FP32 else 2
    return 1 if code == tt.DEVICE_INT8 else 2 if code == tt.DEVICE_INT16 else 4


@kernel
def run_to_device(table, stride, count, fill, host, at, device, address, floats, integers):
    """``count`` neighbours host → device, and ``fill`` zeros after them."""
    if table[tt.INTEGERS] != 0:
        gather_integers(table[tt.HOST_FORMAT], host, at, stride, count, integers)
        write_integers(table[tt.DEVICE_FORMAT], device, address, count, integers)
    else:
        gather_floats(table[tt.HOST_FORMAT], host, at, stride, count, floats)
        if table[tt.HOST_FORMAT] == tt.HOST_HALF and is_dl16(table):
            adapt_float16(table, count, floats)
        write_floats(table, device, address, count, floats)
    if fill > 0:
        size_bytes = element_bytes(table)
        start = address + count * size_bytes
        zeros = carray(pointer_u8(device), FAR)[start : start + fill * size_bytes]
        for i in range(zeros.size):
            zeros[i] = 0


@kernel
def run_to_host(table, stride, count, host, at, device, address, floats, integers):
    """``count`` neighbours device → host."""
    if table[tt.INTEGERS] != 0:
        read_integers(table[tt.DEVICE_FORMAT], device, address, count, integers)
        scatter_integers(table[tt.HOST_FORMAT], host, at, stride, count, integers)
    else:
        read_floats(table, device, address, count, floats)
        if table[tt.FLOAT16_COPIES] != 0:
            restore_float16(count, floats)
        scatter_floats(
            table[tt.HOST_FORMAT], host, at, stride, count,
            table[tt.BFLOAT16_ADD], table[tt.BFLOAT16_ODD], floats,
        )  # fmt: skip


@kernel
def is_dl16(table):
    """True if 16-bit device floats are DL16, however rounded."""
    return table[tt.DEVICE_FORMAT] == DL16 or table[tt.DEVICE_FORMAT] == tt.DEVICE_DL16_AS


@kernel
def is_half(table):
    """True if `half_stick` can move the whole sticks of this copy."""
    host, device = table[tt.HOST_FORMAT], table[tt.DEVICE_FORMAT]
    formats = host == tt.HOST_HALF or host == tt.HOST_BFLOAT16
    formats = formats and (device == DL16 or device == HALF)
    return formats and table[tt.FLOAT16_COPIES] == 0 and table[tt.NINF_IS_NAN] == 0


@kernel
def is_word(table):
    """True if `word_stick` can move the whole sticks of this copy."""
    if table[tt.INTEGERS] != 0:
        return table[tt.HOST_FORMAT] == tt.HOST_INT32 and element_bytes(table) == 4
    formats = table[tt.HOST_FORMAT] == tt.HOST_FLOAT32 and table[tt.DEVICE_FORMAT] == FP32
    return formats and table[tt.NINF_IS_NAN] == 0


@kernel
def is_block(table, row, tail):
    """True if the runs of a tile are whole sticks, and their first elements host neighbours."""
    near = row + tt.AXES - 1
    across = table[near + tt.HOST_STEP] == 1 and table[near + tt.TAIL_STEP] == 0
    several = table[row + tt.LANE_STRIDE] != 1 and table[near + tt.EXTENT] == tt.TILE
    ends = tail == table[row + tt.TAIL_AT]
    return (
        across and several and (table[row + tt.TAIL_COUNT] if ends else table[row + tt.COUNT]) == 64
    )


@kernel
def transfer_tile(table, row, tail, host, at, device, address, floats, integers, block):
    """The runs of one unit, the last two axes; ``tail``: its index along the tail's axis."""
    to_device, stride, half = table[tt.TO_DEVICE] != 0, table[row + tt.LANE_STRIDE], is_half(table)
    word = is_word(table) and stride == 1
    near_host, near = row + tt.AXES - 2, row + tt.AXES - 1
    for a in range(table[near_host + tt.EXTENT]):
        x = at + a * table[near_host + tt.HOST_STEP]
        y = address + a * table[near_host + tt.DEVICE_STEP]
        t = tail + a * table[near_host + tt.TAIL_STEP]
        if half and is_block(table, row, t):
            step = table[near + tt.DEVICE_STEP]
            half_block(table, to_device, stride, step, host, x, device, y, block)
            continue
        for _ in range(table[near + tt.EXTENT]):
            ends = t == table[row + tt.TAIL_AT]
            count = table[row + tt.TAIL_COUNT] if ends else table[row + tt.COUNT]
            if half and stride == 1 and count == 64:
                half_stick(table, to_device, host, x, device, y)
            elif word and count == 32:
                word_stick(to_device, host, x, device, y)
            elif to_device:
                fill = table[row + tt.TAIL_FILL] if ends else table[row + tt.FILL]
                run_to_device(table, stride, count, fill, host, x, device, y, floats, integers)
            else:
                run_to_host(table, stride, count, host, x, device, y, floats, integers)
            x += table[near + tt.HOST_STEP]
            y += table[near + tt.DEVICE_STEP]
            t += table[near + tt.TAIL_STEP]


@kernel
def transfer_row(table, row, host, device, first, end, floats, integers, block):
    """Units ``first`` .. ``end`` of a row, counted from its own first one."""
    for unit in range(first, end):
        rest, tail = unit, np.int64(0)
        at, address = table[row + tt.HOST_OFFSET], table[row + tt.DEVICE_OFFSET]
        for axis in range(row + tt.AXES - 3, row + table[row + tt.FIRST_AXIS] - 1, -1):
            index = rest % table[tt.EXTENT + axis]
            rest //= table[tt.EXTENT + axis]
            at += index * table[tt.HOST_STEP + axis]
            address += index * table[tt.DEVICE_STEP + axis]
            tail += index * table[tt.TAIL_STEP + axis]
        transfer_tile(table, row, tail, host, at, device, address, floats, integers, block)


@kernel
def transfer_units(table, host, device, first, last):
    """Copy units ``first`` .. ``last`` of all rows; ``host`` and ``device`` are addresses."""
    floats, integers = np.empty(128, np.float32), np.empty(128, np.int64)
    block = np.empty(tt.TILE * 64, np.uint16)
    for k in range(table[tt.ROWS]):
        row = tt.HEAD_WORDS + k * tt.ROW_WORDS
        begin = table[row + tt.FIRST_UNIT]
        at, end = max(first, begin), min(last, table[row + tt.END_UNIT])
        if at < end:
            transfer_row(table, row, host, device, at - begin, end - begin, floats, integers, block)


run = entry(transfer_units)


@kernel
def run_transfer(
    function: int, table: int, host: int, device: int, scratch: int, units: int
) -> Any:
    """The whole copy on this thread; 0 or a fault word."""
    return call_entry(function, table, host, device, scratch, 0, units)
