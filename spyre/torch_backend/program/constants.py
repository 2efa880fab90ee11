"""Constants of operations."""

from __future__ import annotations

import struct


def float_bits(number: float) -> int:
    """A constant of an operation: its bits as float32."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits)


def float_of(bits: int) -> float:
    """The number that `float_bits` of it are."""
    (number,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(number)
