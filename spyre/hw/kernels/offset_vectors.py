"""Elements at bit offsets: gathered to float32 by format, scattered back, and a table's vectors.

An element's bit address is ``base`` plus an entry of a vector; elements of 16 and 32 bits lie on
whole bytes, 4-bit elements two to a byte in the order of ``spyre.dtypes.NIBBLE_SHIFTS``.
"""

from __future__ import annotations

import numpy as np

from spyre.dtypes import NIBBLE_SHIFTS, decode_device
from spyre.hw.kernels.intrinsics import (
    LARGEST,
    ROUND_ADD,
    ROUND_ODD,
    decode_dl16,
    decode_half,
    encode_dl16,
    encode_dl16_as,
    encode_half,
    float_bits,
)
from spyre.hw.kernels.jit import kernel
from spyre.hw.table import plan as tb

WORDS = tb.WORDS
TABLE_WORDS = 1 << 40
"""Size of a view of a table with vectors: no bound, they are as long as the table's counts say."""
DL16, HALF, FP32, INT4 = tb.DL16, tb.HALF, tb.FP32, tb.INT4
DL16_TRUNC, DL16_EVEN = tb.DL16_TRUNC, tb.DL16_EVEN
FP8_143, INT8 = tb.FP8_143, tb.INT8

F = np.float32
FIRST_NIBBLE = NIBBLE_SHIFTS[0]


def _values_of_codes() -> np.ndarray:
    """Values of all codes of the 8- and 4-bit formats, by FORMAT word - FP8_143."""
    names = {tb.FP8_143: "SEN143_FP8", tb.FP8_152: "SEN152_FP8", tb.INT8: "SENINT8"}
    table = np.zeros((4, 256), np.float32)
    codes = np.arange(256).astype(np.uint8)
    for word, name in names.items():
        stored = codes.view(np.int8) if name == "SENINT8" else codes
        table[word - tb.FP8_143] = decode_device(stored, name)
    table[tb.INT4 - tb.FP8_143, :16] = [*range(8), *range(-8, 0)]
    return table


VALUES = _values_of_codes()


@kernel
def vector_word(table, position):
    """Element ``position`` of the vectors behind the head row (see ``plans.lines.attach``)."""
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
            target[i] = VALUES[INT4 - FP8_143, (octet[bit >> 3] >> shift) & 15]
    elif code >= FP8_143:
        values = VALUES[code - FP8_143]
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
        add, odd = ROUND_ADD[code], ROUND_ODD[code]
        for i in range(n):
            half[(base + offsets[i]) >> 4] = encode_dl16_as(source[i], add, odd, LARGEST)
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
