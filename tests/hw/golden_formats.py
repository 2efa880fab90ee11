"""Number formats of the golden vectors, apart from `spyre`: plain numpy, and torch for fp8."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
INTEGER_BITS = {"IEEE_INT32": 32, "SENUINT32": 32, "SENINT8": 8, "SENINT4": 4}
UNSIGNED = ("SENUINT32",)


def encode(values: Array, data_format: str) -> Array:
    """Codes of numbers: floats to float32 once, then to the format once; integers modulo 2^bits.

    A 4-bit code fills the low half of a uint8.
    """
    if bits := INTEGER_BITS.get(data_format):
        codes = np.asarray(values).astype(np.int64) & ((1 << bits) - 1)
        return codes.astype(np.uint32 if bits == 32 else np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.asarray(values, np.float64).astype(np.float32)
    if data_format == "IEEE_FP32":
        return single.view(np.uint32)
    if data_format == "SEN143_FP8":
        cast = torch.from_numpy(single.copy()).to(torch.float8_e4m3fn)
        return np.asarray(cast.view(torch.uint8).numpy())
    return _encode_dl16(single.astype(np.float64))


def _encode_dl16(x: Array) -> Array:
    """1 sign, 6 exponent (bias 31), 9 fraction bits; to nearest, ties away."""
    mantissa, exponent = np.frexp(np.abs(x))
    code = (exponent.astype(np.int64) + 30) * 512 + np.floor((mantissa * 2 - 1) * 512 + 0.5)
    code = np.where(np.isfinite(x), code, 0x7FFF)
    code = np.where((x == 0) | (code < 0), 0, np.minimum(code, 0x7FFF)).astype(np.int64)
    return (code | np.where(np.signbit(x), 0x8000, 0)).astype(np.uint16)


def decode(codes: Array, data_format: str) -> Array:
    """float64 values of codes; integers stay integers."""
    if bits := INTEGER_BITS.get(data_format):
        wide = codes.astype(np.int64)
        negative = (wide >> (bits - 1) == 1) & (data_format not in UNSIGNED)
        return np.where(negative, wide - (1 << bits), wide)
    if data_format == "IEEE_FP32":
        return codes.view(np.float32).astype(np.float64)
    if data_format == "SEN143_FP8":
        floats = torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn)
        return np.asarray(floats.to(torch.float64).numpy())
    return _decode_dl16(codes)


def _decode_dl16(codes: Array) -> Array:
    wide = codes.astype(np.int64)
    exponent, fraction = wide >> 9 & 63, wide & 511
    value = np.ldexp(1 + fraction / 512, exponent.astype(np.int32) - 31)
    value = np.where(wide & 0x7FFF, value, 0.0)
    value = np.where((wide & 0x7FFF) == 0x7FFF, np.inf, value)
    return np.where(wide & 0x8000, -value, value)


def half_constant(bits: int) -> float:
    return float(decode(np.array([bits], np.uint16), "SEN169_FP16")[0])
