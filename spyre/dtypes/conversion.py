"""Values to stored codes and back, for every format of the card and every dtype of the host.

The transfer reference (`spyre.layout`), the launch files and the comparison all convert through
these: host storage → values → device codes → bytes, and back. Values are float32 for floating
formats, int64 for integers, bool for booleans. Rules: runtime reference §2-3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spyre.dtypes.codecs import (
    NinfView,
    Rounding,
    decode_bfloat16,
    decode_dl16,
    decode_e4m3fn,
    decode_e5m2fnuz,
    decode_ieee_half,
    encode_bfloat16,
    encode_dl16,
    encode_e4m3fn,
    encode_e5m2fnuz,
    encode_ieee_half,
)
from spyre.dtypes.formats import (
    DataFormat,
    FormatKind,
    HostDtype,
    find_host_dtype,
    find_stored_format,
)

Codes = NDArray[Any]
Values = NDArray[Any]

Mode = Literal["dl16", "dl16-chunk", "ieee"]
"""Number modes: how 16-bit floats are stored, and in dl16-chunk how they are added up."""


@dataclass(frozen=True, slots=True)
class NumericRules:
    """How numbers change form between host and card; sources leave several points open.

    ``numerics``: "dl16", "dl16-chunk", which stores alike, or "ieee", where SEN169_FP16
    storage holds IEEE half bits. ``rounding``/``saturate``: host number → DL16. ``ninf``: what
    DL16's NaN-or-infinity code is on the host. ``bfloat16_rounding``: DL16 → bfloat16, seen to
    truncate on cards (hardware reference §1.2).
    """

    numerics: Mode = "dl16"
    rounding: Rounding = "away"
    saturate: bool = False
    ninf: NinfView = "inf"
    bfloat16_rounding: Rounding = "trunc"

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

    Floating values going into an integer format are truncated towards zero; NaN becomes 0 and
    what does not fit becomes the nearest representable integer. SEN143_FP8 saturates at ±448, as
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
    return _cast_to_numpy(np.asarray(values), dtype)


def _cast_to_numpy(values: Values, dtype: HostDtype) -> Codes:
    target = np.dtype(dtype.storage_dtype)
    if target.kind == "b":
        return np.asarray(values != 0)
    if target.kind in "iu" and values.dtype.kind == "f":
        kind = FormatKind.SIGNED if target.kind == "i" else FormatKind.UNSIGNED
        values = _as_integers(values, DataFormat("", 8 * target.itemsize, kind, 0, target.name))
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
