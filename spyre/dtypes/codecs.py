"""Values to stored codes and back, for every format of the card and every dtype of the host.

The transfer reference (`spyre.layout`), the launch files and the comparison all convert through
these: host storage → values → device codes → bytes, and back. Values are float32 for floating
formats, int64 for integers, bool for booleans. Rules: runtime reference §2-3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from spyre.dtypes.formats import DataFormat, FormatKind, HostDtype
from spyre.dtypes.lookup import find_host_dtype, find_stored_format

Rounding = Literal["away", "trunc", "even"]
"""Nearest with ties away from zero, towards zero, or nearest with ties to even."""

NinfView = Literal["inf", "nan"]
"""Value of DL16's merged NaN-or-infinity code: ±inf (the ALU) or NaN (strict)."""

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
    """float32 values of DL16 codes, exact; 0x7FFF/0xFFFF become ±inf or NaN, by ``ninf``."""
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


def float16_for_dl16(values: ArrayLike, float16_copies: bool = False) -> Float32Array:
    """float16 numbers as a copy to the card converts them to DL16, before they are rounded.

    ±65504, the largest, becomes the largest number both formats have, since it would be rounded to
    one that float16 has not. ``float16_copies``: of `NumericRules`.
    """
    given = np.asarray(values, dtype=np.float32)
    given = np.where(np.abs(given) == 65504.0, np.copysign(np.float32(65472.0), given), given)
    if float16_copies:
        small = (np.abs(given) < 2.0**-14) & (given != 0.0)
        fraction = np.floor(np.abs(np.where(small, given, 0.0)) * 2.0**23) / 512
        given = np.where(small, np.copysign((1.0 + fraction) * 2.0**-15, given), given)
        special = np.where(np.isnan(given), 1.5, 1.0) * 2.0**16
        given = np.where(np.isfinite(given), given, np.copysign(special, given))
    return np.asarray(given, dtype=np.float32)


def float16_from_dl16(values: ArrayLike) -> Float32Array:
    """DL16 numbers as a copy to float16 reads them: `NumericRules.float16_copies`."""
    given = np.asarray(values, dtype=np.float32)
    fraction, exponent = np.frexp(np.abs(given))
    unit = np.where(exponent == -14, np.float32(2.0**-15), np.float32(2.0**-14))
    read = np.copysign((2.0 * fraction - 1.0) * unit, given)
    small = (np.abs(given) < 2.0**-14) & (given != 0.0)
    special = (np.abs(given) > 2.0**16) & (np.abs(given) < 2.0**17)
    return np.where(special, np.nan, np.where(small, read, given)).astype(np.float32)


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


class _Minifloat(msgspec.Struct, frozen=True):
    """An 8-bit format: the values of codes 0.. in order, and the codes of NaN and zero.

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
    values: NDArray[Any] = table[np.asarray(codes, dtype=np.uint8)]
    return np.asarray(values, dtype=np.float32)


Codes = NDArray[Any]
Values = NDArray[Any]

Mode = Literal["dl16", "dl16-chunk", "ieee"]
"""Number modes: how 16-bit floats are stored, and in dl16-chunk how they are added up."""


class NumericRules(msgspec.Struct, frozen=True):
    """Rules of conversions between host and card; the sources leave several of them open.

    ``numerics``: "dl16", "dl16-chunk" (the same storage), or "ieee", where SEN169_FP16
    storage holds IEEE half bits. ``rounding``/``saturate``: host number → DL16. ``ninf``: value on
    the host of DL16's NaN-or-infinity code. ``bfloat16_rounding``: DL16 → bfloat16, which truncates
    on cards (hardware reference §1.2). ``float16_copies``: exponent fields of float16 are copied as
    those of numbers. m·2^-24 becomes (1 + ⌊m/2⌋/512)·2^-15, infinity 2^16, NaN 1.5·2^16. Back, a
    fraction f below 2^-14 becomes f·2^-24, below 2^-15 f·2^-23, and numbers up to 2^17 NaN.
    """

    numerics: Mode = "dl16"
    rounding: Rounding = "away"
    saturate: bool = False
    ninf: NinfView = "inf"
    bfloat16_rounding: Rounding = "trunc"
    float16_copies: bool = False

    def __post_init__(self) -> None:
        if self.numerics not in get_args(Mode):
            raise ValueError(f"numerics must be dl16, dl16-chunk or ieee, not {self.numerics!r}")


DEFAULT_RULES = NumericRules()

NIBBLE_SHIFTS = (0, 4)
"""Shifts of the first and the second 4-bit code in a byte. The order is not published; the first in
the low bits is the operations reference's proposal (§1)."""

_DECODERS: dict[str, Callable[[ArrayLike], Values]] = {
    "IEEE_FP16": decode_ieee_half,
    "BFLOAT16": decode_bfloat16,
    "SEN143_FP8": decode_e4m3fn,
    "SEN152_FP8": decode_e5m2fnuz,
}
_ENCODERS: dict[str, Callable[[ArrayLike], Codes]] = {
    "IEEE_FP16": encode_ieee_half,
    "BFLOAT16": encode_bfloat16,
    "SEN143_FP8": partial(encode_e4m3fn, saturate=True),
    "SEN152_FP8": encode_e5m2fnuz,
}


def _decoder(data_format: DataFormat, rules: NumericRules) -> Callable[[ArrayLike], Values] | None:
    if data_format.name != "SEN169_FP16":
        return _DECODERS.get(data_format.name)
    return decode_ieee_half if rules.numerics == "ieee" else partial(decode_dl16, ninf=rules.ninf)


def _encoder(data_format: DataFormat, rules: NumericRules) -> Callable[[ArrayLike], Codes] | None:
    if data_format.name != "SEN169_FP16":
        return _ENCODERS.get(data_format.name)
    if rules.numerics == "ieee":
        return encode_ieee_half
    return partial(encode_dl16, rounding=rules.rounding, saturate=rules.saturate)


def decode_device(codes: Codes, format_name: str, rules: NumericRules = DEFAULT_RULES) -> Values:
    """Values of device codes: float32, int64, or bool, by the kind of the format."""
    data_format = find_stored_format(format_name)
    if (decode := _decoder(data_format, rules)) is not None:
        return decode(codes)
    stored = np.asarray(codes, dtype=data_format.code_dtype)
    if data_format.kind is FormatKind.BOOLEAN:
        return np.asarray(stored != 0)
    return stored if data_format.is_float else stored.astype(np.int64)


def encode_device(values: Values, format_name: str, rules: NumericRules = DEFAULT_RULES) -> Codes:
    """Device codes (``code_dtype`` of the format) of values; integers keep their low bits.

    Floating values converted to an integer format are truncated towards zero; NaN becomes 0, and
    values out of range become the nearest representable integer. SEN143_FP8 saturates at ±448, as
    torch 2.13's cast and the quantisation of hardware reference §1.3 do.
    """
    data_format = find_stored_format(format_name)
    if (encode := _encoder(data_format, rules)) is not None:
        return encode(values)
    if data_format.is_float:
        return np.asarray(values, dtype=data_format.code_dtype)
    if data_format.kind is FormatKind.BOOLEAN:
        return np.asarray(np.asarray(values) != 0, dtype=np.uint8)
    return _keep_low_bits(_as_integers(values, data_format), data_format)


def _as_integers(values: Values, data_format: DataFormat) -> NDArray[np.int64]:
    if not np.issubdtype(values.dtype, np.floating):
        return values.astype(np.int64)
    signed = data_format.kind is FormatKind.SIGNED
    low = -(1 << (data_format.bits - 1)) if signed else 0
    high = (1 << (data_format.bits - signed)) - 1
    whole = np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0))
    above, below = whole >= float(high), whole <= float(low)
    integers = np.where(above | below, 0.0, whole).astype(np.int64)
    integers[above] = high
    integers[below] = low
    return integers


def _keep_low_bits(values: NDArray[np.int64], data_format: DataFormat) -> Codes:
    if data_format.bits == 4:
        return (((values & 0xF) ^ 8) - 8).astype(np.int8)
    return values.astype(data_format.code_dtype)


def encode_copied(
    values: Values, dtype_name: str, format_name: str, rules: NumericRules = DEFAULT_RULES
) -> Codes:
    """Device codes of values of host dtype ``dtype_name``, as a host-to-device transfer writes
    them."""
    if (dtype_name, format_name) == ("float16", "SEN169_FP16") and rules.numerics != "ieee":
        values = float16_for_dl16(values, rules.float16_copies)
    return encode_device(values, format_name, rules)


def decode_host(storage: NDArray[Any], dtype_name: str) -> Values:
    """Values of host storage: float32 for floats (exact), int64 for integers, bool."""
    dtype = find_host_dtype(dtype_name)
    if dtype.holds_bits:
        return decode_device(storage, dtype.host_format)
    kind = np.dtype(dtype.storage_dtype).kind
    return np.asarray(storage, dtype={"f": np.float32, "b": np.bool_}.get(kind, np.int64))


def encode_host(values: Values, dtype_name: str, rules: NumericRules = DEFAULT_RULES) -> Codes:
    """Host storage of values, as a device-to-host transfer writes it.

    Integers keep their low bits; floats round to nearest even, but for bfloat16, which follows
    ``rules.bfloat16_rounding``; booleans are "not zero".
    """
    dtype = find_host_dtype(dtype_name)
    if dtype.name == "bfloat16":
        return encode_bfloat16(values, rules.bfloat16_rounding)
    if dtype.holds_bits:
        return encode_device(values, dtype.host_format)
    if rules.float16_copies and dtype.name == "float16":
        values = float16_from_dl16(values)
    return _cast_to_numpy(np.asarray(values), dtype)


def _cast_to_numpy(values: Values, dtype: HostDtype) -> Codes:
    target = np.dtype(dtype.storage_dtype)
    if target.kind == "b":
        return np.asarray(values != 0)
    if target.kind in "iu" and values.dtype.kind == "f":
        kind = FormatKind.SIGNED if target.kind == "i" else FormatKind.UNSIGNED
        values = _as_integers(values, DataFormat("", 8 * target.itemsize, kind))
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(target)


def codes_to_bytes(codes: Codes, format_name: str) -> NDArray[np.uint8]:
    """Memory bytes (1-D) of codes in element order; `NIBBLE_SHIFTS` orders two 4-bit ones."""
    data_format = find_stored_format(format_name)
    flat = np.ascontiguousarray(codes, dtype=data_format.code_dtype).reshape(-1)
    if data_format.bits != 4:
        return flat.view(np.uint8)
    nibbles = flat.view(np.uint8).reshape(-1, 2) & 0xF
    first, second = NIBBLE_SHIFTS
    return ((nibbles[:, 0] << first) | (nibbles[:, 1] << second)).astype(np.uint8)


def bytes_to_codes(memory: NDArray[np.uint8], format_name: str) -> Codes:
    """Codes (1-D) held by memory bytes: the inverse of `codes_to_bytes`."""
    data_format = find_stored_format(format_name)
    flat = np.ascontiguousarray(memory, dtype=np.uint8).reshape(-1)
    if data_format.bits != 4:
        return flat.view(data_format.code_dtype)
    nibbles = np.stack([(flat >> shift) & 0xF for shift in NIBBLE_SHIFTS], axis=1)
    nibbles = nibbles.reshape(-1).astype(np.int8)
    return (nibbles ^ 8) - 8
