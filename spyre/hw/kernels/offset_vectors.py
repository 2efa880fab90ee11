"""Elements at bit offsets: gathered to float32 by format, scattered back, and a table's vectors.

An element's bit address is ``base`` plus an entry of a vector; elements of 16 and 32 bits are at
whole bytes, 4-bit elements two to a byte in the order of ``spyre.dtypes.NIBBLE_SHIFTS``.
"""

from __future__ import annotations

import numpy as np

from spyre.dtypes import FORMATS, NIBBLE_SHIFTS, FormatKind, decode_device
from spyre.hw import plan_table as tb
from spyre.hw.kernels.intrinsics import (
    decode_dl16,
    decode_half,
    encode_dl16,
    encode_dl16_as,
    encode_half,
    float_bits,
)
from spyre.hw.kernels.jit import kernel

WORDS = tb.WORDS
"""Size of a view of a table with vectors: no bound, they are as long as the table's counts say."""
DL16, HALF, FP32, INT4 = tb.DL16, tb.HALF, tb.FP32, tb.INT4
DL16_TRUNC, DL16_EVEN = tb.DL16_TRUNC, tb.DL16_EVEN
FP8_143, INT8, FIRST_PACKED = tb.FP8_143, tb.INT8, tb.FIRST_PACKED

FIRST_NIBBLE = NIBBLE_SHIFTS[0]


def _values_of_codes() -> np.ndarray:
    """float32 values of all codes of the 8- and 4-bit formats, by FORMAT word - FIRST_PACKED."""
    packed = [f for f in FORMATS.values() if f.plan_code >= FIRST_PACKED]
    table = np.zeros((len(packed), 256), np.float32)
    for f in packed:
        codes = np.arange(1 << f.bits)
        if f.kind is FormatKind.SIGNED:
            codes -= codes >> (f.bits - 1) << f.bits
        values = decode_device(codes.astype(f.code_dtype), f.name)
        table[f.plan_code - FIRST_PACKED, : codes.size] = values
    return table


VALUES = _values_of_codes()
ROUNDING_ADD, ROUNDING_ODD, LARGEST_CODE = tb.ROUNDING_ADD, tb.ROUNDING_ODD, tb.LARGEST_CODE


@kernel
def vector_word(table, position):
    """Element ``position`` of the vectors behind the head row, see `offset_tables.attach`."""
    row = position // (WORDS - 1)
    return table[(row + 1) * WORDS + 1 + position - row * (WORDS - 1)]


@kernel
def read_vector(table, position, target):
    """Copy ``target.size`` elements from vector element ``position`` on."""
    for i in range(target.size):
        target[i] = vector_word(table, position + i)


@kernel
def gather_values(half, word, octet, code, base, offsets, target):
    """target[i] = number at bit base + offsets[i]."""
    n = target.size
    if code == HALF:
        for i in range(n):
            target[i] = decode_half(half[(base + offsets[i]) >> 4])
    elif code == FP32:
        for i in range(n):
            target[i] = word[(base + offsets[i]) >> 5]
    elif code == INT4:
        for i in range(n):
            bit = base + offsets[i]
            shift = (bit & 4) ^ FIRST_NIBBLE
            target[i] = VALUES[INT4 - FIRST_PACKED, (octet[bit >> 3] >> shift) & 15]
    elif code >= FIRST_PACKED:
        values = VALUES[code - FIRST_PACKED]
        for i in range(n):
            target[i] = values[octet[(base + offsets[i]) >> 3]]
    else:
        for i in range(n):
            target[i] = decode_dl16(half[(base + offsets[i]) >> 4])


@kernel
def encode_e4m3(value):
    """float32 within ±448 (or NaN) → float8_e4m3fn code, nearest even."""
    bits = np.int64(float_bits(value))
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return np.uint8(sign | 0x7F)
    if magnitude < 0x3C800000:  # below the smallest normal number, 2^-6
        return np.uint8(sign | np.int64(np.rint(np.float64(abs(value)) * 512.0)))
    rounded = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    return np.uint8(sign | (rounded - ((127 - 7) << 3)))


@kernel
def scatter_values(half, word, octet, code, base, offsets, source):
    """Encode source[i] to bit base + offsets[i]; integers must be whole and in range."""
    n = source.size
    if code == DL16:
        for i in range(n):
            half[(base + offsets[i]) >> 4] = encode_dl16(source[i])
    elif code == DL16_TRUNC or code == DL16_EVEN:
        add, odd = ROUNDING_ADD[code], ROUNDING_ODD[code]
        for i in range(n):
            half[(base + offsets[i]) >> 4] = encode_dl16_as(source[i], add, odd, LARGEST_CODE)
    elif code == HALF:
        for i in range(n):
            half[(base + offsets[i]) >> 4] = encode_half(source[i])
    elif code == FP32:
        for i in range(n):
            word[(base + offsets[i]) >> 5] = source[i]
    elif code == FP8_143:
        for i in range(n):
            octet[(base + offsets[i]) >> 3] = encode_e4m3(source[i])
    elif code == INT8:
        for i in range(n):
            octet[(base + offsets[i]) >> 3] = np.uint8(np.int64(source[i]) & 0xFF)
    elif code == INT4:
        for i in range(n):
            bit = base + offsets[i]
            shift = (bit & 4) ^ FIRST_NIBBLE
            kept = np.int64(octet[bit >> 3]) & (0xF0 >> shift)
            octet[bit >> 3] = np.uint8(kept | ((np.int64(source[i]) & 15) << shift))
