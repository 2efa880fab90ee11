"""Every code of every number format against torch and ml_dtypes, where those have the format.

Decoding is checked over all codes; encoding over all float16 and bfloat16 numbers, every code and
tie, the floats next to both, and random bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spyre.dtypes import (
    FORMATS,
    bytes_to_codes,
    codes_to_bytes,
    decode_bfloat16,
    decode_device,
    decode_e4m3fn,
    decode_e5m2fnuz,
    decode_ieee_half,
    encode_bfloat16,
    encode_device,
    encode_e4m3fn,
    encode_e5m2fnuz,
    encode_ieee_half,
)

Array = np.ndarray[Any, Any]
BYTES = np.arange(256).astype(np.uint8)
HALVES = np.arange(1 << 16).astype(np.uint16)

FLOATS: list[tuple[str, str, Array, Callable[[Array], Array], Callable[[Array], Array]]] = [
    ("SEN143_FP8", "float8_e4m3fn", BYTES, decode_e4m3fn, encode_e4m3fn),
    ("SEN152_FP8", "float8_e5m2fnuz", BYTES, decode_e5m2fnuz, encode_e5m2fnuz),
    ("BFLOAT16", "bfloat16", HALVES, decode_bfloat16, encode_bfloat16),
    ("IEEE_FP16", "float16", HALVES, decode_ieee_half, encode_ieee_half),
]
IDS = [row[0] for row in FLOATS]


def same_numbers(found: Array, expected: Array) -> None:
    """Equal bits of float32 but for NaN."""
    a, b = (np.asarray(x, np.float32) for x in (found, expected))
    assert np.array_equal(np.isnan(a), np.isnan(b))
    number = ~np.isnan(a)
    assert np.array_equal(a[number].view(np.uint32), b[number].view(np.uint32))


def neighbourhood(values: Array) -> Array:
    """Numbers, the middles between neighbours, and the floats next to all of these."""
    finite = np.unique(values[np.isfinite(values)]).astype(np.float64)
    middles = (finite[:-1] + finite[1:]) / 2
    points = np.concatenate([finite, middles, [finite[-1] * 1.03, finite[-1] * 1.07]])
    with np.errstate(over="ignore"):
        points = points.astype(np.float32)
        around = [points, np.nextafter(points, np.inf), np.nextafter(points, -np.inf)]
        return np.concatenate(around).astype(np.float32)


def arguments(decode: Callable[[Array], Array], codes: Array) -> Array:
    rng = np.random.default_rng(11)
    bits = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32)
    parts = [neighbourhood(decode(codes)), decode_ieee_half(HALVES), decode_bfloat16(HALVES)]
    specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    return np.concatenate([*parts, -parts[0], bits.view(np.float32), specials])


def torch_cast(values: Array, name: str) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(values).to(getattr(torch, name))


def torch_codes(cast: Any, codes: Array) -> Array:
    torch = pytest.importorskip("torch")
    whole = {1: torch.uint8, 2: torch.int16}[codes.itemsize]
    result: Array = cast.view(whole).numpy().view(codes.dtype)
    return result


@pytest.mark.parametrize(("name", "dtype", "codes", "decode", "encode"), FLOATS, ids=IDS)
class TestFloats:
    def test_decoding_against_torch(self, name, dtype, codes, decode, encode):
        torch = pytest.importorskip("torch")
        whole = {1: torch.uint8, 2: torch.int16}[codes.itemsize]
        raw = torch.from_numpy(codes.view(np.int16) if codes.itemsize == 2 else codes)
        values = raw.view(whole).view(getattr(torch, dtype)).float().numpy()
        same_numbers(decode(codes), values)
        same_numbers(decode_device(codes, name), values)

    def test_encoding_against_torch(self, name, dtype, codes, decode, encode):
        """torch 2.13 saturates e4m3fn; the codec does so when asked, and on the device."""
        values = arguments(decode, codes)
        expected = torch_codes(torch_cast(values, dtype), codes)
        number = ~np.isnan(values)
        found = encode_device(values, name)
        assert np.array_equal(found[number], expected[number])
        assert np.isnan(decode(found[~number])).all()

    def test_against_ml_dtypes(self, name, dtype, codes, decode, encode):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        same_numbers(decode(codes), codes.view(kind).astype(np.float32))
        values = arguments(decode, codes)
        with np.errstate(all="ignore"):
            expected = values.astype(kind).view(codes.dtype)
        number = ~np.isnan(values) & ~np.isnan(decode(expected))
        found = encode(values)
        assert np.array_equal(found[number], expected[number])
        assert np.isnan(decode(found[~number])).all()


INTEGERS = ["SENINT8", "SENINT16", "IEEE_INT32", "IEEE_INT64", "SENUINT32"]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_as_in_torch(name: str):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    random = rng.integers(-(1 << 62), 1 << 62, 1 << 18)
    edges = (1 << np.arange(63)).astype(np.int64)
    values = np.concatenate([np.arange(-70000, 70000), random, edges - 1, edges, -edges, ~edges])
    dtype = FORMATS[name].code_dtype
    expected = torch.from_numpy(values).to(getattr(torch, dtype)).numpy()
    found = encode_device(values, name)
    assert found.dtype == dtype
    assert np.array_equal(found, expected)
    assert np.array_equal(decode_device(found, name), expected.astype(np.int64))
    assert np.array_equal(bytes_to_codes(codes_to_bytes(found, name), name), found)


def test_int4_against_ml_dtypes():
    """All 16 numbers, all 256 pairs, and the wrap of larger integers."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    nibbles = np.arange(16).astype(np.uint8)
    numbers = nibbles.view(np.int8).astype(ml_dtypes.int4).astype(np.int8)
    assert sorted(numbers.tolist()) == list(range(-8, 8))
    assert np.array_equal(encode_device(np.arange(16), "SENINT4"), numbers)
    pairs = bytes_to_codes(BYTES, "SENINT4").reshape(-1, 2)
    assert np.array_equal(pairs[:, 0], numbers[BYTES & 15])
    assert np.array_equal(pairs[:, 1], numbers[BYTES >> 4])
    assert np.array_equal(codes_to_bytes(pairs, "SENINT4"), BYTES)


def test_every_stored_format_is_covered():
    known = {*IDS, *INTEGERS, "SENINT4"}
    elsewhere = {"SEN169_FP16", "IEEE_FP32", "BOOL"}  # DL16: test_dtypes and hw/test_numerics
    assert {n for n, f in FORMATS.items() if f.stored} == known | elsewhere


def test_binary32_and_booleans_are_stored_as_they_are():
    bits = np.random.default_rng(1).integers(0, 1 << 32, 4096, dtype=np.uint64).astype(np.uint32)
    codes = encode_device(bits.view(np.float32), "IEEE_FP32")
    assert np.array_equal(codes.view(np.uint32), bits)
    assert encode_device(np.array([0, 1, 2, -1]), "BOOL").tolist() == [0, 1, 1, 1]
    assert decode_device(BYTES, "BOOL").tolist() == [bool(b) for b in BYTES]
