"""Reference codecs of the floating point formats: numbers to bit patterns and back, in numpy.

Slow, obvious twins of the compiled codecs in ``spyre/hw``. DL16 follows hardware reference §1.2;
the 8-bit formats are defined by a table of their 256 values and rounded by searching it, to
nearest, ties to even (§1.3). Every function takes an array of any shape and keeps the shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rounding = Literal["away", "trunc", "even"]
"""Nearest with ties away from zero, towards zero, or nearest with ties to even."""

NinfView = Literal["inf", "nan"]
"""What DL16's merged NaN-or-infinity code is read as: ±inf (the ALU) or NaN (strict)."""

UInt16Array = NDArray[np.uint16]
UInt8Array = NDArray[np.uint8]
Float32Array = NDArray[np.float32]

_DL16_NINF = 0x7FFF
_DL16_MAX = 0x7FFE
_REBIAS = 96  # float32 bias 127 minus DL16 bias 31
_FLOAT32_INF = 0x7F800000


def _float32_bits(values: ArrayLike) -> NDArray[np.int64]:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.int64)


def _drop_low_bits(bits: NDArray[np.int64], count: int, rounding: Rounding) -> NDArray[np.int64]:
    """``bits >> count`` of non-negative integers, rounded as asked."""
    half = 1 << (count - 1)
    if rounding == "away":
        return (bits + half) >> count
    if rounding == "even":
        return (bits + half - 1 + ((bits >> count) & 1)) >> count
    return bits >> count


def encode_dl16(
    values: ArrayLike, rounding: Rounding = "away", saturate: bool = False
) -> UInt16Array:
    """DL16 codes (uint16) of float32 values.

    Magnitudes below 2^-31·(1+2^-10) become signed zero; those above the largest number become
    0x7FFF (0xFFFF when negative), or with ``saturate`` 0x7FFE. Infinity and NaN always become
    0x7FFF with the sign of the input.
    """
    bits = _float32_bits(values)
    magnitude = bits & 0x7FFFFFFF
    code = _drop_low_bits(magnitude, 14, rounding) - (_REBIAS << 9)
    code = np.clip(code, 0, _DL16_MAX if saturate else _DL16_NINF)
    code = np.where(magnitude >= _FLOAT32_INF, _DL16_NINF, code)
    return (code | ((bits >> 16) & 0x8000)).astype(np.uint16)


def decode_dl16(codes: ArrayLike, ninf: NinfView = "inf") -> Float32Array:
    """float32 values of DL16 codes, exact; 0x7FFF/0xFFFF become ±inf or NaN as ``ninf`` says."""
    code = np.asarray(codes, dtype=np.uint16).astype(np.uint32)
    magnitude = code & 0x7FFF
    bits = (magnitude << 14) + (_REBIAS << 23)
    bits = np.where(magnitude == 0, 0, bits)
    special = _FLOAT32_INF if ninf == "inf" else 0x7FC00000
    bits = np.where(magnitude == _DL16_NINF, special, bits)
    return (bits | ((code & 0x8000) << 16)).astype(np.uint32).view(np.float32)


def encode_ieee_half(values: ArrayLike) -> UInt16Array:
    """binary16 codes of float32 values, to nearest, ties to even; overflow becomes infinity."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(values, dtype=np.float32).astype(np.float16).view(np.uint16)


def decode_ieee_half(codes: ArrayLike) -> Float32Array:
    """float32 values of binary16 codes, exact."""
    return np.asarray(codes, dtype=np.uint16).view(np.float16).astype(np.float32)


def encode_bfloat16(values: ArrayLike, rounding: Rounding = "even") -> UInt16Array:
    """bfloat16 codes of float32 values; NaN becomes the quiet NaN of its sign.

    Torch rounds to even on the host; the card truncates (hardware reference §1.2).
    """
    bits = _float32_bits(values)
    magnitude = bits & 0x7FFFFFFF
    code = _drop_low_bits(magnitude, 16, rounding)
    code = np.where(magnitude > _FLOAT32_INF, 0x7FC0, code)
    return (code | ((bits >> 16) & 0x8000)).astype(np.uint16)


def decode_bfloat16(codes: ArrayLike) -> Float32Array:
    """float32 values of bfloat16 codes, exact."""
    return (np.asarray(codes, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True, slots=True)
class _Minifloat:
    """An 8-bit format: the values of codes 0.. in order, and what lies beyond the largest.

    ``magnitudes[c]`` is the value of code c, for every finite code without sign and, last, the
    value the next code would have; rounding up to that one is overflow.
    """

    magnitudes: NDArray[np.float64]
    nan_code: int
    signed_nan: bool
    signed_zero: bool

    @property
    def largest_code(self) -> int:
        return len(self.magnitudes) - 2


def _minifloat_magnitudes(exponent_bits: int, fraction_bits: int, bias: int) -> NDArray[np.float64]:
    """Values of all codes without sign, and of one exponent more (IEEE-like, subnormals)."""
    code = np.arange(1 << (exponent_bits + fraction_bits))
    code = np.append(code, code[-1] + 1)
    exponent, fraction = code >> fraction_bits, code & ((1 << fraction_bits) - 1)
    scaled = np.where(exponent == 0, fraction, fraction + (1 << fraction_bits))
    power = np.maximum(exponent, 1) - bias - fraction_bits
    return np.asarray(np.ldexp(scaled.astype(np.float64), power), dtype=np.float64)


_E4M3FN = _Minifloat(_minifloat_magnitudes(4, 3, 7)[:0x80], 0x7F, True, True)
_E5M2FNUZ = _Minifloat(_minifloat_magnitudes(5, 2, 16), 0x80, False, False)


def _encode_minifloat(values: ArrayLike, form: _Minifloat, saturate: bool) -> UInt8Array:
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.asarray(values, dtype=np.float32).astype(np.float64)
    magnitude = np.abs(value)
    midpoints = (form.magnitudes[:-1] + form.magnitudes[1:]) / 2
    code = np.searchsorted(midpoints, magnitude, side="left")
    tie = (code < len(midpoints)) & (magnitude == midpoints[np.minimum(code, len(midpoints) - 1)])
    code = code + (tie & (code % 2 == 1))
    overflow = code > form.largest_code
    negative = np.signbit(value) & (form.signed_zero | (code > 0))
    code = np.where(overflow & saturate, form.largest_code, code) | (negative * 0x80)
    nan = np.isnan(value) | (overflow & (not saturate))
    nan_code = form.nan_code | ((np.signbit(value) & form.signed_nan) * 0x80)
    return np.where(nan, nan_code, code).astype(np.uint8)


def _decode_table(form: _Minifloat) -> Float32Array:
    half = np.full(0x80, np.nan)
    half[: form.largest_code + 1] = form.magnitudes[:-1]
    table = np.concatenate([half, -half])
    table[form.nan_code] = np.nan
    return table.astype(np.float32)


_E4M3FN_VALUES = _decode_table(_E4M3FN)
_E5M2FNUZ_VALUES = _decode_table(_E5M2FNUZ)


def encode_e4m3fn(values: ArrayLike, saturate: bool = False) -> UInt8Array:
    """float8_e4m3fn codes (largest 448) of float32 values; overflow is NaN or, saturated, ±448."""
    return _encode_minifloat(values, _E4M3FN, saturate)


def decode_e4m3fn(codes: ArrayLike) -> Float32Array:
    """float32 values of float8_e4m3fn codes; 0x7F and 0xFF are NaN."""
    return _lookup(_E4M3FN_VALUES, codes)


def encode_e5m2fnuz(values: ArrayLike, saturate: bool = False) -> UInt8Array:
    """float8_e5m2fnuz codes (largest 57344, no −0) of float32 values; overflow as in e4m3fn."""
    return _encode_minifloat(values, _E5M2FNUZ, saturate)


def decode_e5m2fnuz(codes: ArrayLike) -> Float32Array:
    """float32 values of float8_e5m2fnuz codes; 0x80 is NaN."""
    return _lookup(_E5M2FNUZ_VALUES, codes)


def _lookup(table: Float32Array, codes: ArrayLike) -> Float32Array:
    found: NDArray[Any] = table[np.asarray(codes, dtype=np.uint8)]
    return np.asarray(found, dtype=np.float32)
